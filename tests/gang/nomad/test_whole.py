"""Whether everything was placed, from the answers of both versions as they were recorded."""

from __future__ import annotations

from typing import Any

import pytest

from astra_gang.engines.nomad.answers import Allocation, Evaluation, Members, Task, version
from astra_gang.engines.nomad.whole import Partial, Whole, failure, has_started, judge, newest
from tests.fakes.nomad import recorded

EVERY = pytest.mark.parametrize("nomad", recorded.VERSIONS)


def evaluation(nomad: str, name: str, **changes: Any) -> Evaluation:
    return Evaluation.of(recorded.body(nomad, f"evaluation-{name}") | changes)


def allocations(nomad: str, **changes: Any) -> tuple[Allocation, ...]:
    """Two, on two nodes."""
    return Allocation.list_of([stub | changes for stub in recorded.body(nomad, "job-allocations")])


@EVERY
def test_complete_with_nothing_left_and_every_allocation_live_is_whole(nomad: str) -> None:
    verdict = judge(evaluation(nomad, "whole"), allocations(nomad), 2)
    assert isinstance(verdict, Whole)
    assert len(verdict.live) == 2


@EVERY
def test_complete_with_a_part_left_is_not_whole_and_says_what_was_lacking(nomad: str) -> None:
    verdict = judge(evaluation(nomad, "partial"), allocations(nomad), 3)
    assert verdict == Partial(
        "Nomad found no place for 1 of the workers (the chosen machines are not ready, or not eligible)"
    )


def test_a_port_that_is_taken_is_named() -> None:
    """On 2.0 it is granted a second time."""
    verdict = judge(evaluation("1.6.5", "port-collision"), (), 1)
    assert isinstance(verdict, Partial)
    assert "reserved port collision" in verdict.reason


@EVERY
def test_a_clean_evaluation_is_not_believed_against_the_list_of_allocations(nomad: str) -> None:
    verdict = judge(evaluation(nomad, "whole"), allocations(nomad)[:1], 2)
    assert verdict == Partial("Nomad placed 1 of 2 workers")


@EVERY
def test_a_worker_that_ended_at_once_is_told_with_its_reason(nomad: str) -> None:
    ended = Allocation.of(recorded.body(nomad, "allocation-failed-driver"))
    verdict = judge(evaluation(nomad, "whole"), (ended,), 1)
    assert isinstance(verdict, Partial)
    assert "no such file" in verdict.reason or "not found" in verdict.reason or "failed" in verdict.reason


@EVERY
@pytest.mark.parametrize("status", ["pending", ""])
def test_what_is_not_decided_is_looked_at_again(nomad: str, status: str) -> None:
    assert judge(evaluation(nomad, "whole", Status=status), allocations(nomad), 2) is None
    assert judge(None, (), 2) is None


@EVERY
def test_an_evaluation_that_failed_is_partial_with_its_own_words(nomad: str) -> None:
    words = "maximum attempts reached (2)"
    verdict = judge(evaluation(nomad, "whole", Status="failed", StatusDescription=words), (), 2)
    assert verdict == Partial(f"Nomad gave up placing it ({words})")


@EVERY
def test_of_several_evaluations_the_newest_that_decided_speaks(nomad: str) -> None:
    """A canceled one has given way; a blocked one says what another left; one of a reconnect is harmless."""
    first = evaluation(nomad, "whole", ID="first", CreateIndex=10, JobModifyIndex=10, Status="canceled")
    second = evaluation(nomad, "whole", ID="second", CreateIndex=11, JobModifyIndex=10)
    left = evaluation(nomad, "blocked", ID="left", CreateIndex=12, JobModifyIndex=10)
    back = evaluation(nomad, "whole", ID="back", CreateIndex=13, JobModifyIndex=10, TriggeredBy="reconnect")
    older = evaluation(nomad, "whole", ID="older", CreateIndex=14, JobModifyIndex=9)
    found = newest((first, second, left, back, older), job_modify_index=10)
    assert found is not None and found.id == "second"


@EVERY
def test_stopped_allocations_are_not_live_whatever_their_clients_say(nomad: str) -> None:
    stopped = Allocation.list_of(recorded.body(nomad, "job-allocations-stopped"))
    assert stopped and not any(a.is_live for a in stopped)


@EVERY
def test_a_member_on_a_machine_that_is_cut_off_is_live(nomad: str) -> None:
    assert all(a.is_live and not a.is_over for a in allocations(nomad, ClientStatus="unknown"))


@EVERY
def test_why_a_task_did_not_start_is_its_driver_s_sentence(nomad: str) -> None:
    (task,) = Allocation.of(recorded.body(nomad, "allocation-failed-driver")).tasks.values()
    assert "failed" in failure(task).lower()
    assert not has_started(task)


@EVERY
def test_a_running_task_has_started(nomad: str) -> None:
    for allocation in allocations(nomad):
        assert all(has_started(task) for task in allocation.tasks.values())
    assert not has_started(Task())


@EVERY
def test_the_version_is_that_of_the_oldest_server_that_is_alive(nomad: str) -> None:
    members = recorded.body(nomad, "agent-members")
    assert Members.of(members).version() == version(nomad)
    older = {"Status": "alive", "Tags": {"build": "1.6.0+ent"}}
    left = {"Status": "left", "Tags": {"build": "1.4.0"}}
    assert Members.of({"Members": [*members["Members"], older, left]}).version() == (1, 6, 0)
    assert Members.of({"Members": None}).version() is None
