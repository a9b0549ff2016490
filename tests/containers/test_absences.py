"""
What is away for a while: containerd, an agent, a machine's link, the whole cluster. Workers go on, nothing is lost, and
what was ordered meanwhile is done afterwards.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

import pytest

from astra_cli.dev import sweep
from tests.containers.dev_cluster import kill
from tests.containers.gangs import Gangs, gangs_on_a_cluster
from tests.fakes.eventually import eventually
from tests.runs_over_http import Diary, check_nothing_started_twice, held

AWAY_S = 30.0
BLINK_S = 3.0
"""A cut that is shorter than the disconnect limit."""
LIMIT_S = 12


@pytest.fixture(scope="module")
def gangs() -> Iterator[Gangs]:
    settings = ("backoff_first_s=0.2", "stop_grace_s=2", "lost_margin_s=4")
    words = [word for setting in settings for word in ("--set", setting)]
    with gangs_on_a_cluster("--machines", "4", "--disconnect-limit", str(LIMIT_S), *words) as gangs:
        yield gangs


@pytest.fixture(autouse=True)
def _nothing_runs_on(gangs: Gangs) -> Iterator[None]:
    yield
    gangs.stop_all()


def begin(gangs: Gangs, run: str, machines: int = 3) -> Diary:
    diary = gangs.submit(run, machines)
    diary.let_go()
    gangs.running(run, diary)
    return diary


def complete(gangs: Gangs, run: str, diary: Diary, *, attempts: list[int]) -> None:
    gangs.running(run, diary, attempts[-1])
    assert gangs.ranks(run)["attempts"] == attempts, gangs.story(run)
    diary.finish()
    gangs.ended(run, "Completed")
    check_nothing_started_twice(gangs, run, diary)
    gangs.settled()
    assert gangs.workers_left() == []


def does_not_answer(machine: str) -> re.Pattern[str]:
    return re.compile(rf"containerd on {machine} does not answer since \d+ s")


def test_containerd_is_away_and_an_attempt_is_ordered_meanwhile(gangs: Gangs) -> None:
    """All that is seen of it is a sentence. The attempt waits for containerd, and starts once."""
    diary = begin(gangs, "away")
    with held(gangs.daemons()["m-3"]) as go_on:
        kill([gangs.program("away", 0, 0)])
        gangs.until("away", lambda status: status["attempt"] == 1, "another attempt is ordered")
        with gangs.away("containerd"):
            back_s = time.monotonic() + AWAY_S
            go_on()
            gangs.until(
                "away", lambda status: does_not_answer("m-3").search(status["workers"][2]["detail"]), "m-3 says so"
            )
            assert does_not_answer("m-3").search(gangs.cluster.astra("status", "away"))
            eventually(lambda: does_not_answer("m-1").search(gangs.cluster.astra("nodes")), "so does an idle machine")
            time.sleep(max(0.0, back_s - time.monotonic()))
            assert diary.ranks("start", 1) == []
    complete(gangs, "away", diary, attempts=[0, 1])


def test_containerd_hangs_and_nothing_happens_to_a_gang_that_runs(gangs: Gangs) -> None:
    diary = begin(gangs, "hangs")
    with held(gangs.daemons()["containerd"]):
        eventually(
            lambda: does_not_answer("m-1").match(gangs.machines()["m-1"]["out_of_use"] or ""), "m-1 is out of use"
        )
        assert gangs.status("hangs")["phase"] == "Running"
    complete(gangs, "hangs", diary, attempts=[0])


@pytest.mark.parametrize("one_dies", [False, True])
def test_an_agent_and_containerd_are_away_together(gangs: Gangs, one_dies: bool) -> None:
    run = f"both-{one_dies}".lower()
    diary = begin(gangs, run)
    with gangs.away("containerd", "m-2"):
        if one_dies:
            kill([gangs.program(run, 1, 0)])
        eventually(lambda: not gangs.machines()["m-2"]["connected"], "m-2 is missed")
    complete(gangs, run, diary, attempts=[0, 1] if one_dies else [0])


def test_a_link_is_down_for_less_than_the_limit_and_nothing_happens(gangs: Gangs) -> None:
    diary = begin(gangs, "blink")
    said = gangs.sentences("blink")
    gangs.link("m-2", up=False)
    time.sleep(BLINK_S)
    gangs.link("m-2", up=True)
    complete(gangs, "blink", diary, attempts=[0])
    assert gangs.sentences("blink")[: len(said)] == said
    assert [sentence for sentence in gangs.sentences("blink") if "Down" in sentence] == []


def test_past_the_limit_the_worker_is_stopped_by_its_own_agent_before_another_takes_its_place(gangs: Gangs) -> None:
    diary = begin(gangs, "cut")
    lost = gangs.ranks("cut")["items"][1]
    gangs.link(lost["machine"], up=False)
    try:
        gangs.until("cut", lambda status: status["attempt"] > 0 and status["phase"] == "Running", "another attempt")
        assert gangs.workers_left(lost["machine"]) == []
    finally:
        gangs.link(lost["machine"], up=True)
    assert f"cut-1 is Down: its machine {lost['machine']} is lost" in " ".join(gangs.sentences("cut"))
    assert lost["machine"] not in [item["machine"] for item in gangs.ranks("cut")["items"]]
    eventually(lambda: gangs.machines()[lost["machine"]]["connected"], "the machine is back")
    eventually(lambda: gangs.machines()[lost["machine"]]["slots"] == [], "its old slot is cleaned")
    assert sweep.cgroup_directories(f"{gangs.cluster.layout.machine_cgroup(lost['machine'])}/{lost['slot']}-a0") == []
    complete(gangs, "cut", diary, attempts=gangs.ranks("cut")["attempts"])


def test_a_spare_takes_the_rank_of_a_lost_machine_and_nothing_is_placed_for_it(gangs: Gangs) -> None:
    diary = gangs.submit("spared", 3, spares=1)
    diary.let_go()
    gangs.running("spared", diary)
    (spare,) = gangs.status("spared")["spares"]
    assert spare["state"] == "ReadyToStart"
    lost = gangs.ranks("spared")["items"][1]["machine"]
    assert {lost, spare["machine"]} <= set(gangs.machines())
    gangs.link(lost, up=False)
    try:
        gangs.running("spared", diary, attempt=1)
        assert gangs.ranks("spared")["items"][1]["machine"] == spare["machine"]
        assert gangs.status("spared")["spares"] == []
        said = gangs.sentences("spared")
        assert f"spared-1 takes the spare on {spare['machine']}" in said
        assert len([sentence for sentence in said if sentence.startswith("Placed:")]) == 1
        told = gangs.cluster.astra("exec", "spared", "1", "--", "sh", "-c", "hostname; getent hosts spared-1")
        assert told.split()[0] == "spared-1"
        assert told.split()[1] == gangs.ranks("spared")["items"][1]["address"]
    finally:
        gangs.link(lost, up=True)
    complete(gangs, "spared", diary, attempts=[0, 1])


def test_the_cluster_is_stopped_and_started_with_a_run_in_the_middle(gangs: Gangs) -> None:
    diary = begin(gangs, "middle", machines=4)
    gangs.cluster.astra("dev", "stop")
    gangs.cluster.check_nothing_left()
    gangs.cluster.start()
    gangs.find()
    gangs.running("middle", diary, attempt=1)
    complete(gangs, "middle", diary, attempts=gangs.ranks("middle")["attempts"])
