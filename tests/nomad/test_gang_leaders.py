"""Three servers of Nomad, of which the leader is killed while a gang runs, or is about to start; and two of three."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path

import pytest

from tests.containers.dev_cluster import kill
from tests.fakes.eventually import eventually
from tests.nomad.gangs import Coordinator, NomadGangs, nomad_gangs
from tests.nomad.server import Server
from tests.runs_over_http import Diary, armed_but_one, check_nothing_started_twice

pytestmark = pytest.mark.timeout(300)

NO_LEADER = r"Nomad has no leader now, so it can't (write variable astra/|list )"
SERVER_AWAY = r"Nomad can't .*: the server that it asks for that does not answer \(rpc error: "
"""What a client says every now and then while there is none: it asks servers by turns."""


@pytest.fixture(scope="module")
def gangs_on_three(binary: Path) -> Iterator[NomadGangs]:
    """Its coordinator asks the client of m-1, which finds a server that lives."""
    with nomad_gangs(
        binary,
        cluster={"servers": 3},
        engine=lambda cluster: {"address": f"http://127.0.0.1:{cluster.clients[0].http}"},
        policy={"stop_grace_s": 2.0},
    ) as found:
        yield found


@pytest.fixture
def gangs(gangs_on_three: NomadGangs) -> Iterator[NomadGangs]:
    yield gangs_on_three
    for server in gangs_on_three.cluster.servers:
        if not server.lives:
            server.start()
    led(gangs_on_three)
    gangs_on_three.stop_all()


def led(gangs: NomadGangs) -> Server:
    """The leader, once there is one."""
    return eventually(gangs.cluster.leader, "a server leads")


def kill_leader(gangs: NomadGangs) -> Server:
    """The one that was killed; another one leads."""
    leader = led(gangs)
    leader.kill()
    led(gangs)
    return leader


def restarts_and_completes(gangs: NomadGangs, run: str, diary: Diary, before: list[str]) -> None:
    """After a worker has failed, by which nothing but an attempt is spent."""
    gangs.running(run, diary, attempt=1)
    diary.work_on(attempt=1)
    assert gangs.ranks(run)["attempts"] == [0, 1], gangs.story(run)
    assert gangs.running_allocations(gangs.job_of(run), len(before)) == before
    diary.finish()
    gangs.ended(run, "Completed")
    check_nothing_started_twice(gangs, run, diary)
    gangs.settled_again()
    gangs.settled()


def begun(gangs: NomadGangs, run: str) -> tuple[Diary, list[str]]:
    """With its allocations."""
    diary = gangs.submit(run)
    diary.let_go()
    gangs.running(run, diary)
    return diary, gangs.running_allocations(gangs.job_of(run))


def test_the_leader_is_killed_while_a_gang_runs(gangs: NomadGangs) -> None:
    diary, before = begun(gangs, "led")
    killed = kill_leader(gangs)
    diary.work_on()
    assert gangs.status("led")["attempt"] == 0
    kill([gangs.program("led", rank=2)])
    gangs.running("led", diary, attempt=1)
    killed.start()
    restarts_and_completes(gangs, "led", diary, before)


def test_the_leader_is_killed_while_a_gang_is_at_its_barrier(gangs: NomadGangs) -> None:
    with ExitStack() as stack:
        diary = armed_but_one(gangs, "barred", stack)
        killed = kill_leader(gangs)
        assert diary.lines() == []
    gangs.running("barred", diary)
    diary.work_on()
    assert gangs.ranks("barred")["attempts"] == [0], gangs.story("barred")
    killed.start()
    diary.finish()
    gangs.ended("barred", "Completed")
    check_nothing_started_twice(gangs, "barred", diary)
    gangs.settled()


def test_the_leader_is_killed_while_a_gang_is_being_placed(gangs: NomadGangs) -> None:
    """Whatever is under way just then, it is placed and started once."""
    diary = gangs.submit("placed")
    killed = kill_leader(gangs)
    gangs.running("placed", diary)
    diary.work_on()
    there = [a for a in gangs.cluster.asked("/v1/allocations") if a["JobID"].startswith("placed-")]
    assert sorted(a["NodeName"] for a in there if a["ClientStatus"] == "running") == sorted(gangs.machines())
    killed.start()
    diary.finish()
    gangs.ended("placed", "Completed")
    check_nothing_started_twice(gangs, "placed", diary)
    gangs.settled()


@contextmanager
def asking(gangs: NomadGangs, server: Server) -> Iterator[None]:
    """The coordinator asks this server, and no other."""
    usual = gangs.coordinator
    usual.stop()
    address = f"http://127.0.0.1:{server.http}"
    gangs.coordinator = Coordinator(gangs.cluster, f"at-{server.name}", engine={"address": address})
    gangs.coordinator.start()
    gangs.settled()
    try:
        yield
    finally:
        gangs.coordinator.stop()
        gangs.coordinator = usual
        usual.start()
        gangs.settled_again()


@pytest.mark.parametrize("through", ["server", "client"])
def test_without_a_leader_a_gang_runs_on_and_restarts_once_there_is_one(gangs: NomadGangs, through: str) -> None:
    leader = led(gangs)
    left, other = (server for server in gangs.cluster.servers if server is not leader)
    run = f"leaderless-by-{through}"
    with asking(gangs, left) if through == "server" else nullcontext():
        diary, before = begun(gangs, run)
        coordinator = gangs.coordinator.pid
        leader.kill()
        other.kill()
        kill([gangs.program(run, rank=2)])
        why = NO_LEADER if through == "server" else rf"{NO_LEADER}|{SERVER_AWAY}"
        gangs.until(run, lambda status: re.search(why, status["reason"]), "it says so")
        code, said = gangs.coordinator.health()
        assert code == 503
        assert re.search(why, said), said
        status, answer = gangs.ask("/workspaces/default/jobs", gangs.document(f"{run}-2", 1))
        assert status == 503, answer
        assert re.search(why, answer["error"]["message"]), answer
        diary.work_on(2)
        assert diary.ranks("start", 1) == []
        leader.start()
        other.start()
        restarts_and_completes(gangs, run, diary, before)
        assert gangs.coordinator.health() == (200, "ok")
        assert gangs.coordinator.pid == coordinator


def test_the_one_server_that_the_coordinator_asks_is_killed_and_comes_back(gangs: NomadGangs) -> None:
    leader = led(gangs)
    with asking(gangs, leader):
        diary, before = begun(gangs, "asking")
        coordinator = gangs.coordinator.pid
        leader.kill()
        led(gangs)
        kill([gangs.program("asking", rank=2)])
        away = rf"Nomad does not answer at http://127\.0\.0\.1:{leader.http} "
        gangs.until("asking", lambda status: re.search(away, status["reason"]), "it says so")
        diary.work_on(2)
        assert diary.ranks("start", 1) == []
        leader.start()
        restarts_and_completes(gangs, "asking", diary, before)
        assert gangs.coordinator.pid == coordinator
