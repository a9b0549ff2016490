"""Gangs on a real Nomad: four clients with agents, a coordinator, and workers that write down what happens to them."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.containers.dev_cluster import kill
from tests.fakes.eventually import eventually
from tests.nomad.gangs import Coordinator, NomadGangs, nomad_gangs
from tests.runs_over_http import check_nothing_started_twice

pytestmark = pytest.mark.timeout(300)

TAKEN_BACK_S = 5.0


@pytest.fixture(scope="module")
def gangs(binary: Path) -> Iterator[NomadGangs]:
    with nomad_gangs(binary) as found:
        yield found


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


def test_a_restart_of_one_task_in_nomad_restarts_the_gang(gangs: NomadGangs) -> None:
    diary = gangs.submit("wished")
    diary.let_go()
    gangs.running("wished", diary)
    before = gangs.running_allocations(gangs.job_of("wished"))
    gangs.cluster.nomad("alloc", "restart", before[1])
    status = gangs.running("wished", diary, attempt=1)
    assert [worker["failures"] for worker in status["workers"]] == [0, 0, 0, 0]
    assert gangs.running_allocations(gangs.job_of("wished")) == before
    diary.finish()
    gangs.ended("wished", "Completed")
    check_nothing_started_twice(gangs, "wished", diary)


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
        running = eventually(lambda: [n for n in diaries if gangs.status(n)["phase"] == "Running"], "one of them runs")
        assert len(running) == 1
        (other,) = set(diaries) - set(running)
        assert gangs.status(other)["phase"] in ("Pending", "Completed")
        diaries[running[0]].finish()
        gangs.ended(running[0], "Completed")


@pytest.mark.parametrize("victim", ["coordinator", "server", "client", "driver", "agent", "containerd"])
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
    eventually(lambda: "office_awaited" in second.log.read_text(), "the second one waits")
    first.kill()
    gangs.coordinator = second
    eventually(second.serves, "the second one serves", within_s=30)
    gangs.settled_again()
    assert gangs.status("followed")["attempt"] == 0
    diary.finish()
    gangs.ended("followed", "Completed")
    check_nothing_started_twice(gangs, "followed", diary)


def test_two_coordinators_that_start_at_the_same_moment_act_one_after_the_other(gangs: NomadGangs) -> None:
    """And before any of them is there, a gang is asked for: whoever is killed, it is placed and started once."""
    diary = gangs.submit("contested")
    gangs.coordinator.stop()
    pair = [Coordinator(gangs.cluster, f"coordinator-{side}") for side in ("left", "right")]
    for one in pair:
        one.start()
    first = eventually(lambda: next((one for one in pair if one.serves()), None), "one of them serves")
    second = next(one for one in pair if one is not first)
    assert not second.serves()
    gangs.coordinator = second
    first.kill()
    eventually(second.serves, "the other one serves", within_s=30)
    gangs.running("contested", diary)
    there = [a for a in gangs.cluster.asked("/v1/allocations") if a["JobID"].startswith("contested-")]
    assert sorted(a["NodeName"] for a in there if a["ClientStatus"] == "running") == sorted(gangs.machines())
    kill([gangs.program("contested", rank=1)])
    diary.let_go()
    gangs.running("contested", diary, attempt=1)
    diary.finish()
    gangs.ended("contested", "Completed")
    check_nothing_started_twice(gangs, "contested", diary)


# Drains (H08) ------------------------------------------------------------------------------------------------------


@pytest.fixture
def undrained(gangs: NomadGangs) -> Iterator[None]:
    yield
    for machine in gangs.machines():
        gangs.nomad_node("drain", "-disable", machine)
        gangs.nomad_node("eligibility", "-enable", machine)


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
    eventually(lambda: 1 in diary.ranks("asked", 0), "the worker is asked")
    assert diary.ranks("start", 1) == [], "nothing starts before it has written its checkpoint"
    diary.let_go()
    status = gangs.running(name, diary, attempt=1)
    assert machine not in [worker["machine"] for worker in status["workers"]]
    assert [worker["failures"] for worker in status["workers"]] == [0, 0, 0]
    diary.finish()
    gangs.ended(name, "Completed")
    check_nothing_started_twice(gangs, name, diary)


@pytest.mark.usefixtures("undrained")
def test_a_drain_that_is_taken_back_during_the_checkpoint_starts_nothing_twice(gangs: NomadGangs) -> None:
    diary = gangs.submit("back", machines=3)
    gangs.running("back", diary)
    machine = gangs.ranks("back")["items"][1]["machine"]
    gangs.nomad_node("drain", "-enable", "-deadline", "1m", machine)
    eventually(lambda: 1 in diary.ranks("asked", 0), "the worker is asked")
    time.sleep(TAKEN_BACK_S)
    gangs.nomad_node("drain", "-disable", machine)
    gangs.nomad_node("eligibility", "-enable", machine)
    assert diary.ranks("start", 1) == [], "nothing starts before it has written its checkpoint"
    diary.let_go()
    status = gangs.running("back", diary, attempt=1)
    assert [worker["failures"] for worker in status["workers"]] == [0, 0, 0]
    diary.finish()
    gangs.ended("back", "Completed")
    check_nothing_started_twice(gangs, "back", diary)


@pytest.mark.usefixtures("undrained")
def test_with_no_place_left_the_run_waits_and_says_for_what(gangs: NomadGangs) -> None:
    diary = gangs.submit("nowhere", machines=3)
    diary.let_go()
    gangs.running("nowhere", diary)
    drained = [item["machine"] for item in gangs.ranks("nowhere")["items"][:2]]
    for machine in drained:
        gangs.nomad_node("drain", "-enable", "-deadline", "1m", machine)
    status = gangs.until("nowhere", lambda s: s["phase"] == "Pending", "nowhere waits")
    said = re.compile(rf"{drained[0]} (is being|has been) drained")
    gangs.until("nowhere", lambda s: said.search(s["reason"]), "it says for what")
    assert status["refused"] is False
    for machine in drained:
        gangs.nomad_node("drain", "-disable", machine)
        gangs.nomad_node("eligibility", "-enable", machine)
    status = gangs.running("nowhere", diary, attempt=1)
    diary.finish()
    gangs.ended("nowhere", "Completed")
    check_nothing_started_twice(gangs, "nowhere", diary)
