"""`astra demo`, which is `make demo` once everything is installed: what it shows, and that nothing is left of it."""

from __future__ import annotations

import re
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from astra_cli.dev import lock, sweep
from tests.containers.dev_cluster import DevCluster, kill, read_until

SHOWN = (
    "Pending: ",
    "Starting together: 3 of 4 ready",
    "Running",
    "Kill the program of first-gang-2",
    "Gang restart: first-gang-2 failed.",
    "Running",
    "the sum of 16384 numbers over 4 workers is right",
    "All 4 workers completed",
    "Attempt 0",
    "Attempt 1",
    "The slots are the same.",
    "[rank 0] done",
    "Nothing is left",
)


@pytest.fixture
def demo() -> Iterator[DevCluster]:
    demo = DevCluster(Path(tempfile.mkdtemp(prefix="astra-demo-", dir="/tmp")))
    yield demo
    demo.remove()


def test_it_shows_the_gang_its_restart_in_the_same_slots_and_its_end(demo: DevCluster) -> None:
    shown = demo.astra("demo", "--state", str(demo.state), timeout_s=110)
    at = 0
    for part in SHOWN:
        at = shown.find(part, at)
        assert at >= 0, f"{part!r} is missing, or comes too early:\n{shown}"
    tables = [
        re.findall(r"^ +\d  (first-gang-\d) .* (first-gang-\S+-\d) ", part, re.M)
        for part in shown.split("Attempt ")[-2:]
    ]
    assert len(tables[0]) == 4
    assert tables[0] == tables[1]
    demo.check_nothing_left()


@pytest.mark.parametrize("moment", ["1. ", "2. ", "Running", "Gang restart", "4. "])
def test_ctrl_c_leaves_nothing(demo: DevCluster, moment: str) -> None:
    with demo.background("demo", "--state", str(demo.state)) as process:
        read_until(process, moment)
        process.send_signal(signal.SIGINT)
        rest, _ = process.communicate(timeout=60)
        assert process.returncode == 130, rest
    demo.check_nothing_left()
    assert not demo.state.exists()
    assert "Traceback" not in rest


def test_what_a_kill_left_is_removed_by_the_next(demo: DevCluster) -> None:
    with demo.background("demo", "--state", str(demo.state)) as process:
        read_until(process, "Running")
        demo.note()
        kill([lock.holder(demo.layout), *sweep.ours(demo.layout)])
        process.wait(10)
    assert sweep.is_left(demo.layout)
    with demo.background("demo", "--state", str(demo.state)) as process:
        read_until(process, "An earlier demonstration was still there")
        read_until(process, "Running")
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    demo.check_nothing_left()
