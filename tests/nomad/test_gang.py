"""Gangs on a real Nomad: four clients with agents, a coordinator, and workers that write down what happens to them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.containers.dev_cluster import kill
from tests.containers.gangs import DRIVE, check_nothing_started_twice
from tests.nomad.cluster import eventually
from tests.nomad.conftest import made
from tests.nomad.gangs import AGENT, LINK, Coordinator, NomadGangs

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def gangs(binary: Path) -> Iterator[NomadGangs]:
    with tempfile.TemporaryDirectory(prefix="astra-diary-", dir="/var/tmp") as drive:
        token = Path(drive) / "agent.token"
        token.write_text(AGENT)
        agents = {"coordinator": LINK, "token_file": str(token), "drives": {DRIVE: drive}}
        with made(binary, clients=4, agents=agents) as cluster:
            coordinator = Coordinator(cluster)
            coordinator.start()
            found = NomadGangs(cluster, Path(drive), coordinator)
            try:
                found.settled()
                yield found
            finally:
                found.coordinator.kill()


@pytest.fixture(autouse=True)
def _nothing_runs_on(gangs: NomadGangs) -> Iterator[None]:
    yield
    gangs.stop_all()


def test_a_gang_of_four_starts_together_and_its_job_completes(gangs: NomadGangs) -> None:
    diary = gangs.submit("whole")
    gangs.running("whole", diary)
    diary.finish()
    gangs.ended("whole", "Completed")
    gangs.settled()
    allocations = gangs.cluster.allocations(gangs.job_of("whole"))
    assert [a["ClientStatus"] for a in allocations] == ["complete"] * 4
    check_nothing_started_twice(gangs, "whole", diary)


def test_a_worker_that_fails_restarts_the_gang_in_place_and_nomad_schedules_nothing(gangs: NomadGangs) -> None:
    diary = gangs.submit("restarted")
    gangs.running("restarted", diary)
    job = gangs.job_of("restarted")
    before = gangs.running_allocations(job)
    evaluations = gangs.evaluations(job)
    kill([gangs.program("restarted", rank=1)])
    diary.let_go()
    status = gangs.running("restarted", diary, attempt=1)
    assert status["attempt"] == 1
    assert "Gang restart: restarted-1 failed." in gangs.sentences("restarted")
    assert gangs.running_allocations(job) == before
    assert len(gangs.cluster.allocations(job)) == 4
    assert gangs.evaluations(job) == evaluations
    diary.finish()
    gangs.ended("restarted", "Completed")
    check_nothing_started_twice(gangs, "restarted", diary)


def test_a_run_that_is_stopped_leaves_nothing(gangs: NomadGangs) -> None:
    diary = gangs.submit("stopped")
    diary.let_go()
    gangs.running("stopped", diary)
    gangs.stop("stopped")
    gangs.ended("stopped", "Stopped")
    gangs.settled()
    assert [a["ClientStatus"] for a in gangs.cluster.allocations(gangs.job_of("stopped"))] != ["running"] * 4


def test_two_gangs_that_do_not_fit_together_run_one_after_the_other(gangs: NomadGangs) -> None:
    """By itself Nomad gives the one three machines and the other one: both would wait for ever."""
    cores = next(iter(gangs.machines().values()))["cpu_cores"] * 0.9
    share = {"machines": 3, "cpu_cores": cores}
    diaries = {name: gangs.submit(name, requested_resources=share) for name in ("first", "second")}
    for _ in diaries:
        running = eventually("one of them runs", lambda: [n for n in diaries if gangs.status(n)["phase"] == "Running"])
        assert len(running) == 1
        (other,) = set(diaries) - set(running)
        assert gangs.status(other)["phase"] in ("Pending", "Completed")
        diaries[running[0]].finish()
        gangs.ended(running[0], "Completed")


@pytest.mark.parametrize("victim", ["coordinator", "server", "client", "driver", "agent"])
def test_kill_9_of_each_part_while_a_gang_runs_changes_nothing_for_its_workers(gangs: NomadGangs, victim: str) -> None:
    name = f"kill-{victim}"
    diary = gangs.submit(name)
    gangs.running(name, diary)
    before = gangs.running_allocations(gangs.job_of(name))
    gangs.kill(victim, gangs.ranks(name)["items"][1]["machine"])
    gangs.settled_again()
    assert gangs.status(name)["attempt"] == 0
    assert gangs.running_allocations(gangs.job_of(name)) == before
    kill([gangs.program(name, rank=2)])
    diary.let_go()
    gangs.running(name, diary, attempt=1)
    diary.finish()
    gangs.ended(name, "Completed")
    check_nothing_started_twice(gangs, name, diary)


def test_a_coordinator_that_is_killed_is_followed_within_30_s(gangs: NomadGangs) -> None:
    diary = gangs.submit("followed")
    gangs.running("followed", diary)
    first = gangs.coordinator
    second = Coordinator(gangs.cluster, "coordinator-2")
    second.start()
    eventually("the second one waits", lambda: "office_awaited" in second.log.read_text())
    first.kill()
    gangs.coordinator = second
    eventually("the second one serves", second.serves, within_s=30)
    gangs.settled_again()
    assert gangs.status("followed")["attempt"] == 0
    diary.finish()
    gangs.ended("followed", "Completed")
    check_nothing_started_twice(gangs, "followed", diary)


# Drains (H08) ------------------------------------------------------------------------------------------------------


@pytest.fixture
def undrained(gangs: NomadGangs) -> Iterator[None]:
    yield
    for machine in gangs.machines():
        gangs.nomad_node("drain", "-disable", machine)


@pytest.mark.usefixtures("undrained")
@pytest.mark.parametrize("how", [("-deadline", "1m"), ("-no-deadline",), ("-force",)], ids=lambda words: words[0][1:])
def test_a_worker_leaves_a_machine_that_is_drained_after_its_checkpoint(
    gangs: NomadGangs, how: tuple[str, ...]
) -> None:
    name = f"drained{how[0]}"
    diary = gangs.submit(name, machines=3)
    gangs.running(name, diary)
    machine = gangs.ranks(name)["items"][1]["machine"]
    gangs.nomad_node("drain", "-enable", *how, machine)
    eventually("the worker is asked", lambda: 1 in diary.ranks("asked", 0))
    assert diary.ranks("start", 1) == [], "nothing starts before it has written its checkpoint"
    diary.let_go()
    status = gangs.running(name, diary, attempt=1)
    assert machine not in [worker["machine"] for worker in status["workers"]]
    assert [worker["failures"] for worker in status["workers"]] == [0, 0, 0]
    diary.finish()
    gangs.ended(name, "Completed")
    check_nothing_started_twice(gangs, name, diary)


@pytest.mark.usefixtures("undrained")
def test_with_no_place_left_the_run_waits_and_says_for_what(gangs: NomadGangs) -> None:
    diary = gangs.submit("nowhere", machines=3)
    diary.let_go()
    gangs.running("nowhere", diary)
    drained = [item["machine"] for item in gangs.ranks("nowhere")["items"][:2]]
    for machine in drained:
        gangs.nomad_node("drain", "-enable", "-deadline", "1m", machine)
    status = gangs.until("nowhere", lambda s: s["phase"] == "Pending", "nowhere waits")
    gangs.until("nowhere", lambda s: f"{drained[0]} is being drained" in s["reason"], "it says for what")
    assert status["refused"] is False
    gangs.nomad_node("drain", "-disable", drained[0])
    gangs.nomad_node("drain", "-disable", drained[1])
    status = gangs.running("nowhere", diary, attempt=1)
    diary.finish()
    gangs.ended("nowhere", "Completed")
    check_nothing_started_twice(gangs, "nowhere", diary)
