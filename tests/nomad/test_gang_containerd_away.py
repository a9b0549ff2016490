"""
H50: containerd is away for a minute on one machine of a gang that runs. Nobody takes its worker for dead, and nothing
is started beside it.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from astra_agent.containerd import proc
from tests.containers.dev_cluster import kill
from tests.nomad.gangs import NomadGangs, nomad_gangs
from tests.runs_over_http import check_nothing_started_twice

pytestmark = pytest.mark.timeout(300)

AWAY_S = 60.0
_LOOK_S = 5.0


@pytest.fixture(scope="module")
def gangs_of_four(binary: Path) -> Iterator[NomadGangs]:
    with nomad_gangs(binary, policy={"stop_grace_s": 2.0}) as found:
        yield found


@pytest.fixture
def gangs(gangs_of_four: NomadGangs) -> Iterator[NomadGangs]:
    """With everything there again afterwards."""
    yield gangs_of_four
    for client in gangs_of_four.cluster.clients:
        if not client.agent.containerd.pid:
            asyncio.run(client.agent.containerd.start())
        if not client.agent.socket.exists():
            client.agent.start_agent()
    gangs_of_four.stop_all()


def processes(gangs: NomadGangs, attempt: int) -> dict[str, list[int]]:
    """
    Of the attempt, by machine, as the kernel has them in its cgroups: each first process of a container, and the
    program, without what that starts for a moment.
    """
    found = {}
    for client in gangs.cluster.clients:
        pids = client.agent.attempt(attempt)
        first = [pid for pid in pids if proc.is_init(pid)]
        found[client.folder.name] = first + [pid for pid in pids if pid not in first][:1]
    return found


@pytest.mark.parametrize("ordered", [False, True], ids=["nothing is ordered", "an attempt is ordered"])
@pytest.mark.parametrize("agent_too", [False, True], ids=["alone", "with the agent"])
def test_containerd_is_away_for_a_minute(gangs: NomadGangs, agent_too: bool, ordered: bool) -> None:
    run = f"away-{agent_too}-{ordered}".lower()
    diary = gangs.submit(run)
    diary.let_go()
    gangs.running(run, diary)
    before = gangs.running_allocations(gangs.job_of(run))
    machine = gangs.ranks(run)["items"][1]["machine"]
    agent = gangs.client(machine).agent
    there = processes(gangs, 0)
    assert [len(pids) for pids in there.values()] == [2] * 4

    agent.containerd.kill()
    if agent_too:
        agent.kill()
    back_s = time.monotonic() + AWAY_S
    if ordered:
        kill([gangs.program(run, rank=0)])
    who = machine if agent_too else f"containerd on {machine}"
    sentence = re.compile(rf"{who} does not answer( since \d+ s|; after \d+ s of silence it counts as lost)")
    gangs.until(run, lambda status: sentence.search(told(status)), f"{who} is said to be away")
    assert sentence.search(" ".join(gangs.astra("status", run).stdout.split()))
    while time.monotonic() < back_s:
        time.sleep(_LOOK_S)
        assert gangs.running_allocations(gangs.job_of(run)) == before
        assert len(gangs.cluster.allocations(gangs.job_of(run))) == 4
        status = gangs.status(run)
        assert sentence.search(told(status)), status
        if ordered:
            assert status["attempt"] == 1, gangs.story(run)
            assert diary.ranks("start", 1) == []
            assert processes(gangs, 1)[machine] == []
            assert processes(gangs, 0)[machine] in ([], there[machine]), "the old one is stopped, and nothing else"
        else:
            diary.work_on()
            assert processes(gangs, 0) == there
            assert status["attempt"] == 0, gangs.story(run)
    asyncio.run(agent.containerd.start())
    if agent_too:
        agent.start_agent()

    gangs.settled_again()
    attempt = 1 if ordered else 0
    gangs.running(run, diary, attempt)
    diary.work_on(attempt=attempt)
    if not ordered:
        assert processes(gangs, 0) == there
        kill([gangs.program(run, rank=1)])
        gangs.running(run, diary, attempt=1)
        diary.work_on(attempt=1)
    assert gangs.ranks(run)["attempts"] == [0, 1], gangs.story(run)
    assert gangs.running_allocations(gangs.job_of(run)) == before
    assert [len(pids) for pids in processes(gangs, 1).values()] == [2] * 4
    assert [pids for pids in processes(gangs, 0).values() if pids] == []
    diary.finish()
    gangs.ended(run, "Completed")
    check_nothing_started_twice(gangs, run, diary)
    gangs.settled()


def told(status: dict[str, object]) -> str:
    """All that the run's status says in words."""
    workers = status["workers"]
    assert isinstance(workers, list)
    return "; ".join([str(status["reason"]), *(worker["detail"] for worker in workers)])
