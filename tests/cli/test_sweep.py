"""What belongs to a dev cluster is told by what it names, and nothing else is touched."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from astra_agent.errors import Conflict
from astra_cli.dev import lock, sweep
from astra_cli.dev.plan import Layout

PROGRAM = "import time; time.sleep(600)"


@pytest.fixture
def where(tmp_path: Path) -> Layout:
    where = Layout(tmp_path)
    where.machine("m-1").mkdir(parents=True)
    (where.machine("m-1") / "agent.toml").touch()
    return where


@pytest.fixture
def processes() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def run(stack: ExitStack, *words: str) -> int:
    process = subprocess.Popen([sys.executable, "-c", PROGRAM, *words])
    stack.callback(process.wait)
    stack.callback(process.kill)
    return process.pid


def test_only_processes_that_name_the_clusters_files_are_its_own(where: Layout, processes: ExitStack) -> None:
    agent = run(processes, "--config", str(where.machine("m-1") / "agent.toml"))
    shim = run(processes, "-namespace", where.containerd_namespace("m-1"), "-address", f"{where.containerd}/x.sock")
    reader = run(processes, str(where.logs / "m-1.log"))
    others = run(processes, "--config", f"{where.state}-other/machines/m-1/agent.toml")
    assert sweep.daemons(where) == [agent]
    assert sorted(sweep.ours(where)) == sorted([agent, shim])
    assert not {reader, others} & set(sweep.ours(where))


def test_processes_are_asked_to_end_and_then_made_to(where: Layout, processes: ExitStack) -> None:
    gentle = run(processes, "gentle")
    stubborn = subprocess.Popen(
        [sys.executable, "-c", f"import signal; signal.signal(15, signal.SIG_IGN); print(1, flush=True); {PROGRAM}"],
        stdout=subprocess.PIPE,
    )
    processes.callback(stubborn.communicate)
    assert stubborn.stdout is not None
    stubborn.stdout.readline()
    sweep.end_processes([gentle, stubborn.pid], term_s=0.3)
    assert stubborn.wait(10) == -9


def test_nothing_is_left_where_nothing_was(where: Layout) -> None:
    assert not sweep.is_left(where)


def test_one_supervisor_holds_a_state_folder_and_is_named_to_the_next(where: Layout) -> None:
    assert lock.holder(where) == 0
    with lock.held(where):
        with pytest.raises(Conflict, match="runs already"), lock.held(where):
            pass
        assert lock.holder(where) > 0
    assert lock.holder(where) == 0
