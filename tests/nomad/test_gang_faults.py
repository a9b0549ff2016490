"""
`kill -9` of each part between Nomad and a gang, at the stages of the gang's life; a machine that is cut off, or boots.
The rules of docs/design.md, section 5, hold in each: that is judged from what the workers wrote.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.containers.gate import GatedRegistry
from tests.fakes.eventually import eventually
from tests.nomad.gangs import NomadGangs, nomad_gangs, registry_of_workers, worker_image
from tests.nomad.jobs import gang
from tests.runs_over_http import (
    Diary,
    armed_but_one,
    check_nothing_started_twice,
    held,
    restarting_but_one,
    workers,
)

pytestmark = pytest.mark.timeout(300)

VICTIMS = ("coordinator", "server", "client", "driver", "agent", "containerd")
LIMIT_S = 40
"""Longer than Nomad takes to miss a client, and than a kill at a stage."""


@pytest.fixture(scope="module")
def gangs(binary: Path) -> Iterator[NomadGangs]:
    policy = {"stop_grace_s": 2.0}
    with nomad_gangs(binary, policy=policy, disconnect_limit_s=LIMIT_S, lost_margin_s=4) as found:
        yield found


@pytest.fixture(scope="module")
def registry() -> Iterator[GatedRegistry]:
    with registry_of_workers() as found:
        yield found


@pytest.fixture(autouse=True)
def _nothing_runs_on(gangs: NomadGangs) -> Iterator[None]:
    yield
    gangs.stop_all()


def completes(gangs: NomadGangs, run: str, diary: Diary, *, attempts: list[int]) -> None:
    """In the last of *attempts*, those that are on record, with all workers."""
    gangs.settled_again()
    gangs.running(run, diary, attempts[-1])
    assert gangs.ranks(run)["attempts"] == attempts, gangs.story(run)
    diary.finish()
    gangs.ended(run, "Completed")
    check_nothing_started_twice(gangs, run, diary)
    gangs.settled()


@pytest.mark.parametrize("victim", VICTIMS)
def test_while_it_prepares(gangs: NomadGangs, registry: GatedRegistry, victim: str) -> None:
    run = f"prepare-{victim}"
    reference = registry.push(worker_image(), victim)
    with registry.closed_after(64 << 10):
        diary = gangs.submit(run, image=reference)
        diary.let_go()
        registry.wait_closed()
        gangs.until(run, lambda status: workers(status) == ["Preparing"] * 4, "all prepare")
        gangs.kill(victim, "m-2")
        assert diary.lines() == []
    completes(gangs, run, diary, attempts=[0])


@pytest.mark.parametrize("victim", VICTIMS)
def test_at_the_barrier_armed_and_not_started(gangs: NomadGangs, victim: str) -> None:
    run = f"barrier-{victim}"
    with ExitStack() as stack:
        diary = armed_but_one(gangs, run, stack)
        gangs.kill(victim, "m-2")
        assert diary.lines() == []
    completes(gangs, run, diary, attempts=[0])


@pytest.mark.parametrize("victim", VICTIMS)
def test_while_it_restarts(gangs: NomadGangs, victim: str) -> None:
    """Between two attempts."""
    run = f"restarting-{victim}"
    diary = gangs.submit(run)
    diary.let_go()
    gangs.running(run, diary)
    before = gangs.running_allocations(gangs.job_of(run))
    with ExitStack() as stack:
        restarting_but_one(gangs, run, stack)
        gangs.kill(victim, "m-2")
        assert diary.ranks("start", 1) == []
    gangs.running(run, diary, attempt=1)
    assert gangs.running_allocations(gangs.job_of(run)) == before
    completes(gangs, run, diary, attempts=[0, 1])


@pytest.mark.parametrize("victim", VICTIMS)
def test_while_it_stops(gangs: NomadGangs, victim: str) -> None:
    run = f"stopping-{victim}"
    diary = gangs.submit(run)
    gangs.running(run, diary)
    gangs.stop(run)
    eventually(lambda: diary.ranks("asked", 0) == [0, 1, 2, 3], "all are asked to stop")
    gangs.kill(victim, "m-2")
    diary.let_go()
    gangs.ended(run, "Stopped")
    assert [line.attempt for line in diary.lines("start")] == [0] * 4
    check_nothing_started_twice(gangs, run, diary)
    gangs.settled_again()
    gangs.settled()


def test_a_machine_that_is_cut_off_for_less_than_its_limit_keeps_its_worker(gangs: NomadGangs) -> None:
    """For longer than Nomad waits for a client."""
    diary = gangs.submit("blinked", machines=3)
    diary.let_go()
    gangs.running("blinked", diary)
    machine = gangs.ranks("blinked")["items"][1]["machine"]
    before = gangs.running_allocations(gangs.job_of("blinked"), 3)
    with cut_off(gangs, machine):
        eventually(lambda: gangs.client_status("blinked", machine) == "unknown", "Nomad misses the client")
        assert diary.ranks("end", 0) == []
    gangs.settled_again()
    assert gangs.running_allocations(gangs.job_of("blinked"), 3) == before
    completes(gangs, "blinked", diary, attempts=[0])


def test_a_machine_that_is_cut_off_for_longer_loses_its_worker_before_another_takes_its_place(
    gangs: NomadGangs,
) -> None:
    diary = gangs.submit("severed", machines=3)
    diary.let_go()
    gangs.running("severed", diary)
    machine = gangs.ranks("severed")["items"][1]["machine"]
    with cut_off(gangs, machine):
        eventually(lambda: gangs.status("severed")["attempt"] == 1, "it is lost", LIMIT_S + 60)
        status = gangs.running("severed", diary, attempt=1)
        assert machine not in [worker["machine"] for worker in status["workers"]]
        assert [worker["failures"] for worker in status["workers"]] == [0, 0, 0]
        assert gangs.client(machine).agent.attempt(0) == [], "its agent has ended it by itself"
    completes(gangs, "severed", diary, attempts=[0, 1])


def test_a_client_alone_that_is_away_for_longer_takes_nothing_until_it_is_back(gangs: NomadGangs) -> None:
    """Its agent has its link, so nothing starts elsewhere. Nomad ends what it calls lost once the client is back."""
    diary = gangs.submit("clientless", machines=3)
    gangs.running("clientless", diary)
    machine = gangs.ranks("clientless")["items"][1]["machine"]
    with held(gangs.client(machine).pid):
        eventually(lambda: gangs.client_status("clientless", machine) == "lost", "Nomad gives it up", LIMIT_S + 60)
        time.sleep(LIMIT_S / 2)
        status = gangs.status("clientless")
        assert (status["phase"], status["attempt"]) == ("Running", 0), gangs.story("clientless")
        assert diary.ranks("end", 0) == []
    status = gangs.running("clientless", diary, attempt=1)
    assert [worker["failures"] for worker in status["workers"]] == [0, 0, 0]
    assert "Gang restart: clientless-1 was stopped from outside." in gangs.sentences("clientless")
    completes(gangs, "clientless", diary, attempts=[0, 1])


def test_a_machine_that_an_adopted_gang_loses_gives_all_of_it_back(gangs: NomadGangs) -> None:
    diary = gangs.adopt("orphaned", gang("orphaned", str(gangs.drive), version=gangs.version(), count=3))
    diary.let_go()
    eventually(lambda: gangs.is_there("orphaned"), "the job is adopted")
    gangs.running("orphaned", diary)
    machine = gangs.ranks("orphaned")["items"][1]["machine"]
    before = gangs.running_allocations("orphaned", 3)
    with cut_off(gangs, machine):
        eventually(lambda: gangs.status("orphaned")["attempt"] == 1, "it is lost", LIMIT_S + 60)
        status = gangs.running("orphaned", diary, attempt=1)
        assert machine not in [worker["machine"] for worker in status["workers"]]
        assert [worker["failures"] for worker in status["workers"]] == [0, 0, 0]
        assert not set(before) & set(gangs.running_allocations("orphaned", 3))
        assert gangs.client(machine).agent.attempt(0) == [], "its agent has ended it by itself"
    completes(gangs, "orphaned", diary, attempts=[0, 1])


class cut_off:  # noqa: N801 -- reads as a verb where it is used
    """Its agent reaches no coordinator, and its client stands still as one whose server does not answer."""

    def __init__(self, gangs: NomadGangs, machine: str) -> None:
        self._gangs, self._machine = gangs, machine
        self._stack = ExitStack()

    def __enter__(self) -> None:
        self._gangs.link(self._machine, up=False)
        self._stack.callback(self._gangs.link, self._machine, up=True)
        self._stack.enter_context(held(self._gangs.client(self._machine).pid))

    def __exit__(self, *_: object) -> None:
        self._stack.close()


def test_a_machine_that_boots_loses_its_worker_and_the_gang_starts_again(gangs: NomadGangs) -> None:
    diary = gangs.submit("booted")
    diary.let_go()
    gangs.running("booted", diary)
    machine = gangs.ranks("booted")["items"][1]["machine"]
    gangs.client(machine).reboot()
    status = gangs.running("booted", diary, attempt=1)
    assert [worker["failures"] for worker in status["workers"]] == [0, 0, 0, 0]
    completes(gangs, "booted", diary, attempts=[0, 1])
