"""What the user of a task reads of its slot."""

from __future__ import annotations

from typing import Any

from astra_agent.wire import AttemptStatus, RunRef, SlotStatus
from astra_driver.events import Stories


def status(rev: int, **changes: Any) -> SlotStatus:
    values: dict[str, Any] = {
        "slot": "a-w",
        "rev": rev,
        "run": RunRef(workspace="default", name="llama", uid="u"),
        "worker": "w",
        "phase": "preparing",
        "starts": "when_told",
    }
    return SlotStatus(**(values | changes))


def listening() -> Stories:
    stories = Stories()
    stories.synced()
    return stories


def test_what_was_there_before_is_no_news() -> None:
    stories = Stories()
    assert stories.next(status(1, phase="failed", detail="no such image"), 0.0) == ()
    stories.synced()
    assert stories.next(status(1, phase="failed", detail="no such image"), 1.0) == ()


def test_the_same_status_again_is_no_news() -> None:
    stories = listening()
    assert stories.next(status(2, phase="ready"), 0.0) == ("Waiting at the gang barrier",)
    assert stories.next(status(2, phase="ready"), 1.0) == ()
    assert stories.next(status(3, phase="ready"), 1.0) == ()


def test_a_quick_preparation_says_nothing_and_a_slow_one_how_far_it_is_every_five_seconds() -> None:
    stories = listening()
    assert stories.next(status(1, detail="Checking the command"), 0.0) == ()
    told = [
        second
        for second in range(1, 30)
        if stories.next(status(second + 1, detail=f"Pulling: {second} %"), float(second))
    ]
    assert told == [1, 6, 11, 16, 21, 26]


def test_progress_that_came_too_soon_is_told_once_it_is_time() -> None:
    stories = listening()
    stories.next(status(1, detail="Checking the command"), 0.0)
    assert stories.next(status(2, detail="Pulling: 0 %"), 0.2) == ()
    assert stories.pause_s(0.2) == 0.8
    assert [said for _, said in stories.late(0.9)] == []
    assert [said for _, said in stories.late(1.0)] == ["Pulling: 0 %"]
    assert stories.pause_s(1.0) is None
    assert [said for _, said in stories.late(100.0)] == []
    stories.next(status(3, detail="Pulling: 1 %"), 2.0)
    assert stories.next(status(4, phase="ready", starts="when_ready"), 2.1) == ()
    assert stories.pause_s(2.1) is None, "of what is ready, nobody wants to know how far it is"


def test_a_task_that_starts_by_itself_does_not_wait_at_a_barrier() -> None:
    assert listening().next(status(1, phase="ready", starts="when_ready"), 0.0) == ()


def test_an_end_that_its_code_does_not_explain_is_told_once() -> None:
    stories = listening()
    stories.next(status(1, phase="ready", attempts=(AttemptStatus(attempt=0, state="running"),)), 0.0)
    ended = AttemptStatus(attempt=0, state="exited", code=137, oom=True, detail="Out of memory (limit 2 GiB)")
    assert stories.next(status(2, phase="ready", attempts=(ended,)), 1.0) == ("Out of memory (limit 2 GiB)",)
    assert stories.next(status(3, phase="ready", attempts=(ended,)), 2.0) == ()


def test_what_the_coordinator_tells_is_told_and_cut() -> None:
    stories = listening()
    stories.next(status(1, phase="ready"), 0.0)
    assert stories.next(status(2, phase="ready", told="Starting together: 3 of 4 ready"), 1.0) == (
        "Starting together: 3 of 4 ready",
    )
    assert [len(one) for one in stories.next(status(3, phase="ready", told="x" * 5000), 2.0)] == [300]


def test_a_process_that_does_not_die_and_a_failed_start_are_told() -> None:
    stories = listening()
    stories.next(status(1, phase="ready"), 0.0)
    assert stories.next(status(2, phase="ready", stuck="process 4711 of w does not die"), 1.0) == (
        "process 4711 of w does not die",
    )
    assert stories.next(status(3, phase="ready", arm_failed=1, detail="no such port"), 1.0)[0] == (
        "Attempt 1 did not start: no such port"
    )
