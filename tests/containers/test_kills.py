"""
The kill matrix: `kill -9` of each part of a running cluster, at each stage of a gang's life. The run comes to the same
end each time, and nothing starts twice: that is proved by the diary that the workers keep. And a stop by the user while
nothing runs yet.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from astra_agent.containerd import proc
from tests.containers.dev_cluster import kill
from tests.containers.gangs import Gangs, gangs_on_a_cluster
from tests.containers.gate import GatedRegistry, gated_registry
from tests.containers.images import File, Image
from tests.fakes.eventually import eventually
from tests.runs_over_http import Diary, armed_but_one, check_nothing_started_twice, restarting_but_one, workers

DAEMONS = ("coordinator", "agent", "containerd")
VICTIMS = (*DAEMONS, "program", "shim")
VICTIM_RANK = 1
PROGRAMS = ("/bin/sh", "/usr/bin/flock", "/usr/bin/date", "/bin/sleep")


@pytest.fixture(scope="module")
def gangs() -> Iterator[Gangs]:
    """One cluster for all cells; a limit that no machine reaches while it is slow."""
    with gangs_on_a_cluster("--machines", "4", "--set", "backoff_first_s=0.2", "--disconnect-limit", "120") as gangs:
        yield gangs


@pytest.fixture(scope="module")
def registry() -> Iterator[GatedRegistry]:
    with tempfile.TemporaryDirectory(prefix="astra-registry-", dir="/tmp") as folder:
        with gated_registry(Path(folder)) as registry:
            yield registry


@pytest.fixture(autouse=True)
def _nothing_runs_on(gangs: Gangs) -> Iterator[None]:
    yield
    gangs.stop_all()


def kill_one(gangs: Gangs, victim: str, run: str, attempt: int, rank: int = VICTIM_RANK) -> None:
    """
    `kill -9`, of the worker's own machine where there is one for each. When this returns a daemon is back, and a
    program is gone, also one that lost only its shim: its machine kills it a moment later.
    """
    if victim not in DAEMONS:
        program = gangs.program(run, rank, attempt)
        kill([getattr(gangs, victim)(run, rank, attempt)])
        eventually(lambda: not proc.status(program), f"{program}, the program of {run}-{rank}, is gone")
        return
    daemon = gangs.status(run)["workers"][rank]["machine"] if victim == "agent" else victim
    pid = gangs.daemons()[daemon]
    kill([pid])
    gangs.back(daemon, pid)


def check_completes(gangs: Gangs, run: str, diary: Diary, *, attempts: list[int]) -> None:
    """In the last of *attempts*, those that are on record, with all workers."""
    gangs.running(run, diary, attempts[-1])
    assert gangs.ranks(run)["attempts"] == attempts, gangs.story(run)
    diary.finish()
    gangs.ended(run, "Completed")
    assert diary.ranks("start", attempts[-1]) == diary.ranks("end", attempts[-1]) == [0, 1, 2, 3]
    check_nothing_started_twice(gangs, run, diary)
    gangs.settled()
    assert gangs.workers_left() == []


def large_image() -> Image:
    return Image().with_programs(*PROGRAMS).layer({"filler": File(os.urandom(1 << 20))}, compressed=False)


@pytest.mark.parametrize("victim", VICTIMS)
def test_while_it_prepares(gangs: Gangs, registry: GatedRegistry, victim: str) -> None:
    """No worker of it is there yet: program and shim are a neighbour's, on the same machines."""
    run, neighbour = f"prepare-{victim}", f"neighbour-{victim}"
    reference = registry.push(large_image(), victim)
    next_door = gangs.submit(neighbour, machines=1)
    next_door.let_go()
    gangs.running(neighbour, next_door)
    with registry.closed_after(64 << 10):
        diary = gangs.submit(run, image=reference)
        diary.let_go()
        registry.wait_closed()
        gangs.until(run, lambda status: workers(status) == ["Preparing"] * 4, "all prepare")
        kill_one(gangs, victim, *((run, 0) if victim in DAEMONS else (neighbour, 0, 0)))
        restarted = victim not in DAEMONS
        gangs.running(neighbour, next_door, attempt=int(restarted))
        assert diary.lines() == []
    next_door.finish()
    gangs.ended(neighbour, "Completed")
    check_nothing_started_twice(gangs, neighbour, next_door)
    check_completes(gangs, run, diary, attempts=[0])


@pytest.mark.parametrize("victim", VICTIMS)
def test_at_the_barrier_armed_and_not_started(gangs: Gangs, victim: str) -> None:
    run = f"barrier-{victim}"
    with ExitStack() as stack:
        diary = armed_but_one(gangs, run, stack)
        kill_one(gangs, victim, run, 0)
        wait_given_up(gangs, victim, run, 0)
        assert diary.lines() == []
    check_completes(gangs, run, diary, attempts=[0] if victim in DAEMONS else [0, 1])
    assert victim in DAEMONS or diary.ranks("start", 0) == []


def wait_given_up(gangs: Gangs, victim: str, run: str, attempt: int) -> None:
    """An attempt whose container has gone before its start is not started any more, as soon as that is known."""
    if victim not in DAEMONS:
        gangs.until(run, lambda status: status["attempt"] > attempt, f"attempt {attempt} is given up")


@pytest.mark.parametrize("victim", VICTIMS)
def test_while_it_runs(gangs: Gangs, victim: str) -> None:
    run = f"running-{victim}"
    diary = gangs.submit(run)
    diary.let_go()
    gangs.running(run, diary)
    before = gangs.ranks(run)["items"]
    kill_one(gangs, victim, run, 0)
    check_completes(gangs, run, diary, attempts=[0] if victim in DAEMONS else [0, 1])
    assert [item["slot"] for item in gangs.ranks(run)["items"]] == [item["slot"] for item in before]


@pytest.mark.parametrize("victim", VICTIMS)
def test_while_it_restarts(gangs: Gangs, victim: str) -> None:
    """Between two attempts."""
    run = f"restarting-{victim}"
    diary = gangs.submit(run)
    diary.let_go()
    gangs.running(run, diary)
    with ExitStack() as stack:
        restarting_but_one(gangs, run, stack)
        kill_one(gangs, victim, run, 1)
        wait_given_up(gangs, victim, run, 1)
        assert diary.ranks("start", 1) == []
    check_completes(gangs, run, diary, attempts=[0, 1] if victim in DAEMONS else [0, 1, 2])
    assert victim in DAEMONS or diary.ranks("start", 1) == []


@pytest.mark.parametrize("victim", VICTIMS)
def test_while_it_stops(gangs: Gangs, victim: str) -> None:
    run = f"stopping-{victim}"
    diary = gangs.submit(run)
    gangs.running(run, diary)
    gangs.stop(run)
    eventually(lambda: diary.ranks("asked", 0) == [0, 1, 2, 3], "all are asked to stop")
    kill_one(gangs, victim, run, 0)
    assert gangs.status(run)["phase"] == "Stopping"
    diary.let_go()
    gangs.ended(run, "Stopped")
    survivors = [0, 1, 2, 3] if victim in DAEMONS else [0, 2, 3]
    assert diary.ranks("end", 0) == survivors
    assert [line.attempt for line in diary.lines("start")] == [0] * 4
    check_nothing_started_twice(gangs, run, diary)
    gangs.settled()
    assert gangs.workers_left() == []


# A stop by the user before anything runs ------------------------------------------------------------------------------


def check_stopped_before_its_start(gangs: Gangs, run: str, diary: Diary) -> None:
    """No program of it ran, and nothing of it is left."""
    gangs.ended(run, "Stopped")
    gangs.settled()
    assert diary.lines() == []
    assert gangs.ranks(run)["opened_at"] is None
    assert gangs.workers_left() == []


def test_a_stop_while_it_prepares(gangs: Gangs, registry: GatedRegistry) -> None:
    """It ends while its image is still being pulled: the registry gives no more until the run is over."""
    reference = registry.push(large_image(), "stopped")
    with registry.closed_after(64 << 10):
        diary = gangs.submit("stopped-early", image=reference)
        registry.wait_closed()
        gangs.until("stopped-early", lambda status: workers(status) == ["Preparing"] * 4, "all prepare")
        gangs.stop("stopped-early")
        check_stopped_before_its_start(gangs, "stopped-early", diary)


def test_a_stop_while_it_is_armed(gangs: Gangs) -> None:
    """The agent that stood still hears of it last; nothing is armed or started then."""
    with ExitStack() as stack:
        diary = armed_but_one(gangs, "stopped-armed", stack)
        gangs.stop("stopped-armed")
        gangs.until("stopped-armed", lambda status: status["phase"] == "Stopping", "it stops")
    check_stopped_before_its_start(gangs, "stopped-armed", diary)
