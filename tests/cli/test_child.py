"""Daemons that the supervisor keeps alive."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

from astra_cli.dev.child import Child, last_words
from tests.fakes.eventually import until

SLEEPS = "import time; print('up', flush=True); time.sleep(600)"


def child(tmp_path: Path, program: str, said: list[str]) -> Child:
    return Child("the daemon", (sys.executable, "-c", program), tmp_path / "log", said.append)


async def test_one_that_is_killed_is_started_again_and_that_is_said(tmp_path: Path) -> None:
    said: list[str] = []
    daemon = child(tmp_path, SLEEPS, said)
    await daemon.start()
    first = daemon.pid
    os.kill(first, signal.SIGKILL)
    await until(lambda: daemon.pid not in (0, first), "another process")
    assert said[0].startswith("the daemon ended (signal SIGKILL); it is started again in 0.4 s")
    await daemon.stop()
    assert daemon.pid == 0


async def test_one_that_is_stopped_stays_so(tmp_path: Path) -> None:
    said: list[str] = []
    daemon = child(tmp_path, SLEEPS, said)
    await daemon.start()
    await daemon.stop()
    await asyncio.sleep(0.3)
    assert daemon.pid == 0
    assert said == []


async def test_one_that_ignores_sigterm_is_killed_at_once_by_a_power_cut(tmp_path: Path) -> None:
    stubborn = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN);" + SLEEPS
    daemon = child(tmp_path, stubborn, [])
    await daemon.start()
    await daemon.kill()
    assert daemon.pid == 0


async def test_its_last_words_are_told_with_where_the_rest_is(tmp_path: Path) -> None:
    said: list[str] = []
    daemon = child(tmp_path, "import sys; print('a', flush=True); sys.exit('the disk is full')", said)
    await daemon.start()
    await until(lambda: said, "its end")
    await daemon.stop()
    assert "exit code 1" in said[0]
    assert f"the disk is full (more in {tmp_path / 'log'})" in said[0]


def test_a_log_that_says_nothing_is_named(tmp_path: Path) -> None:
    assert last_words(tmp_path / "none") == f"it said nothing (its log is {tmp_path / 'none'})"
