"""Plain jobs that ask to be a gang, on a real Nomad: `nomad job run`, and what their users see and do."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.containers.dev_cluster import kill
from tests.fakes.eventually import eventually
from tests.nomad.gangs import NomadGangs, nomad_gangs, registry_of_workers, worker_image
from tests.nomad.jobs import gang
from tests.runs_over_http import Diary, check_nothing_started_twice

pytestmark = pytest.mark.timeout(300)

EXAMPLES = Path(__file__).parents[2] / "examples" / "nomad"


@pytest.fixture(scope="module")
def gangs(binary: Path) -> Iterator[NomadGangs]:
    with nomad_gangs(binary) as found:
        yield found


@pytest.fixture(autouse=True)
def _nothing_runs_on(gangs: NomadGangs) -> Iterator[None]:
    yield
    gangs.stop_all()


def job(gangs: NomadGangs, name: str, **changes: Any) -> str:
    return gang(name, str(gangs.drive), version=gangs.version(), **changes)


def live(gangs: NomadGangs, name: str) -> list[str]:
    """IDs of the allocations that Nomad calls running."""
    return sorted(a["ID"] for a in gangs.cluster.allocations(name) if a["ClientStatus"] == "running")


def newest_told(gangs: NomadGangs, name: str) -> list[str]:
    allocations = gangs.cluster.allocations(name)
    return gangs.told(allocations[0]["ID"]) if allocations else []


def begin(gangs: NomadGangs, name: str) -> Diary:
    """A plain job of four that asks to be a gang, once it is one and runs; asked to stop, it does so at once."""
    diary = gangs.adopt(name, job(gangs, name))
    diary.let_go()
    eventually(lambda: gangs.is_there(name), "the job is adopted")
    gangs.running(name, diary)
    return diary


def test_the_example_starts_together_with_ranks_and_names(gangs: NomadGangs) -> None:
    before_1_8 = tuple(map(int, gangs.version().split(".")[:2])) < (1, 8)
    example = EXAMPLES / ("gang-before-1.8.nomad.hcl" if before_1_8 else "gang.nomad.hcl")
    gangs.run_job(example.read_text().replace("sleep 20", "sleep 3"))
    gangs.cluster.reaches("hello", "running")
    gangs.ended("hello", "Completed")
    gangs.settled()
    allocations = gangs.cluster.allocations("hello")
    assert [a["ClientStatus"] for a in allocations] == ["complete"] * 4
    said = sorted(gangs.cluster.nomad("alloc", "logs", a["ID"], "worker").strip() for a in allocations)
    address = re.search(r"leader at (\S+)$", said[0])
    assert address is not None
    assert said == [f"worker {rank} of 4 on hello-{rank}, leader at {address[1]}" for rank in range(4)]


def test_a_failure_restarts_the_gang_in_place_and_the_tasks_tell_it(gangs: NomadGangs) -> None:
    diary = gangs.adopt("placed", job(gangs, "placed"))
    eventually(lambda: gangs.is_there("placed"), "the job is adopted")
    gangs.running("placed", diary)
    before = gangs.running_allocations("placed")
    evaluations = gangs.evaluations("placed")
    kill([gangs.program("placed", rank=1)])
    diary.let_go()
    gangs.running("placed", diary, attempt=1)
    assert gangs.running_allocations("placed") == before
    assert gangs.evaluations("placed") == evaluations
    for allocation in before:
        wanted = ["Waiting at the gang barrier", "Starting together: 4 of 4 ready", "All 4 workers run"]
        wanted.append("Gang restart: placed-1 failed.")
        eventually(lambda at=allocation, all_of=wanted: set(all_of) <= set(gangs.told(at)), "its task tells it")  # type: ignore[misc]
    diary.finish()
    gangs.ended("placed", "Completed")
    check_nothing_started_twice(gangs, "placed", diary)


def test_one_that_is_late_is_told_to_those_that_wait(gangs: NomadGangs) -> None:
    with registry_of_workers() as registry:
        reference = registry.push(worker_image(), "late")
        warm = gangs.submit("warm", machines=3, image=reference)
        gangs.running("warm", warm)
        machines = {item["machine"] for item in gangs.ranks("warm")["items"]}
        warm.finish()
        gangs.ended("warm", "Completed")
        gangs.settled()
        with registry.closed_after(64 << 10):
            diary = gangs.adopt("late", job(gangs, "late", image=reference))
            eventually(lambda: len(gangs.cluster.allocations("late")) == 4, "it is placed")
            found = next(a["ID"] for a in gangs.cluster.allocations("late") if a["NodeName"] in machines)
            eventually(lambda: "Starting together: 3 of 4 ready" in gangs.told(found), "its peers are told")
            assert diary.lines() == []
        gangs.running("late", diary)
    diary.finish()
    gangs.ended("late", "Completed")
    check_nothing_started_twice(gangs, "late", diary)


def test_a_restart_of_one_worker_is_one_of_the_gang(gangs: NomadGangs) -> None:
    diary = begin(gangs, "wished")
    before = gangs.running_allocations("wished")
    gangs.cluster.nomad("alloc", "restart", before[2])
    status = gangs.running("wished", diary, attempt=1)
    assert status["attempt"] == 1
    assert [worker["failures"] for worker in status["workers"]] == [0, 0, 0, 0]
    assert any(re.fullmatch(r"Gang restart: wished-\d was stopped from outside.", s) for s in gangs.sentences("wished"))
    assert gangs.running_allocations("wished") == before
    diary.finish()
    gangs.ended("wished", "Completed")
    check_nothing_started_twice(gangs, "wished", diary)


def test_a_stop_of_one_worker_places_all_of_it_anew(gangs: NomadGangs) -> None:
    diary = begin(gangs, "plucked")
    before = gangs.running_allocations("plucked")
    gangs.cluster.nomad("alloc", "stop", "-detach", before[0])
    gangs.running("plucked", diary, attempt=1)
    assert not set(before) & set(gangs.running_allocations("plucked"))
    diary.finish()
    gangs.ended("plucked", "Completed")
    check_nothing_started_twice(gangs, "plucked", diary)


@pytest.mark.parametrize("purge", [False, True], ids=["stop", "purge"])
def test_a_job_that_is_stopped_ends_its_run(gangs: NomadGangs, purge: bool) -> None:
    name = "purged" if purge else "halted"
    diary = begin(gangs, name)
    gangs.cluster.nomad("job", "stop", "-detach", *(["-purge"] if purge else []), name)
    status = gangs.ended(name, "Stopped")
    assert status["reason"].startswith("Stopped by nomad job stop: ")
    gangs.settled()
    check_nothing_started_twice(gangs, name, diary)


def test_scaled_to_nothing_it_ends_and_scaled_up_again_it_is_another_run(gangs: NomadGangs) -> None:
    diary = begin(gangs, "scaled")
    first = uid(gangs, "scaled")
    gangs.cluster.nomad("job", "scale", "-detach", "scaled", "g", "0")
    status = gangs.ended("scaled", "Stopped")
    assert status["reason"] == "Stopped by nomad: job scaled has 0 workers now, not 4"
    gangs.settled()
    (diary.folder / "lines").unlink()
    gangs.cluster.nomad("job", "scale", "-detach", "scaled", "g", "3")
    eventually(lambda: uid(gangs, "scaled") != first, "it is adopted again")
    gangs.running("scaled", diary)
    assert len(gangs.ranks("scaled")["items"]) == 3
    diary.finish()
    gangs.ended("scaled", "Completed")
    check_nothing_started_twice(gangs, "scaled", diary)


def test_a_job_that_is_run_anew_with_changes_is_another_run(gangs: NomadGangs) -> None:
    diary = begin(gangs, "changed")
    first = uid(gangs, "changed")
    gangs.run_job(job(gangs, "changed"))
    gangs.run_job(job(gangs, "changed", env='NEW = "1"'))
    eventually(lambda: uid(gangs, "changed") != first, "the changed job is adopted")
    lines = diary.lines("start")
    eventually(lambda: len(diary.lines("start")) >= 8, "all have begun once more")
    assert len(lines) >= 4
    diary.finish()
    gangs.ended("changed", "Completed")
    assert [line for line in diary.lines() if line.word == "overlap"] == []


def uid(gangs: NomadGangs, name: str) -> str:
    found: str = gangs.known(f"/workspaces/default/jobs/{name}")["metadata"]["uid"]
    return found


def test_what_is_placed_in_part_is_given_back_and_tried_again(gangs: NomadGangs) -> None:
    gangs.nomad_node("eligibility", "-disable", "m-4")
    try:
        diary = gangs.adopt("partial", job(gangs, "partial"))
        eventually(lambda: gangs.is_there("partial"), "the job is adopted")
        gangs.until(
            "partial", lambda s: "3 of 4" in s["reason"] or "Gang cannot" in s["reason"], "it says why it waits"
        )
        eventually(lambda: not live(gangs, "partial"), "nothing of it is held")
        assert any("Nomad has placed 3 of 4 workers" in said for said in gangs.sentences("partial"))
        assert diary.lines() == []
    finally:
        gangs.nomad_node("eligibility", "-enable", "m-4")
    gangs.running("partial", diary)
    diary.finish()
    gangs.ended("partial", "Completed")
    check_nothing_started_twice(gangs, "partial", diary)


def test_a_coordinator_that_is_killed_goes_on_with_what_it_has_adopted(gangs: NomadGangs) -> None:
    diary = gangs.adopt("kept", job(gangs, "kept"))
    eventually(lambda: gangs.is_there("kept"), "the job is adopted")
    gangs.running("kept", diary)
    gangs.kill("coordinator", "m-1")
    gangs.settled_again()
    kill([gangs.program("kept", rank=2)])
    diary.let_go()
    gangs.running("kept", diary, attempt=1)
    diary.finish()
    gangs.ended("kept", "Completed")
    check_nothing_started_twice(gangs, "kept", diary)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"count": 1}, "count of group g is 1: a gang has 2 workers or more"),
        ({"more": "group"}, "it has 2 groups: all workers of a gang are one group, with count"),
        ({"hosts": False}, "write a constraint with operator distinct_hosts"),
        ({"restart": "attempts = 3"}, "write restart"),
        ({"kind": "service"}, "its type is service: a gang ends when its workers have, so right is batch"),
        ({"meta": "Gnag"}, 'meta astra_start is "Gnag": right is "Gang"'),
    ],
    ids=["count", "groups", "hosts", "restart", "type", "meta"],
)
def test_a_job_that_can_not_be_a_gang_says_why_in_its_task(
    gangs: NomadGangs, changes: dict[str, Any], sentence: str
) -> None:
    if "more" in changes:
        one = job(gangs, "bad")
        changes = {"more": one[one.index('group "g"') : one.rindex("}")].replace('group "g"', 'group "h"')}
    ran = gangs.cluster.submit(job(gangs, "bad", **changes))
    assert ran.code == 0, ran
    try:
        eventually(lambda: any(sentence in said for said in newest_told(gangs, "bad")), f"its task says: {sentence}")
    finally:
        gangs.cluster.nomad("job", "stop", "-purge", "-detach", "bad")
        gangs.settled()
    assert not gangs.is_there("bad")
