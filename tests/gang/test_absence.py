"""What a user reads of machines that do not answer."""

from __future__ import annotations

from dataclasses import replace

import pytest

from astra_gang.absence import Absence, awaited, reason
from astra_gang.core import AttemptSeen, Outcome, Phase, RunState, Slot
from tests.fakes.runs import record

RUNNING = AttemptSeen(0, "running")


def state(phase: Phase, sentence: str = "Starting together: 1 of 2 ready.") -> RunState:
    return replace(record().state, phase=phase, reason=sentence, outcome=Outcome.STOPPED)


def with_slots(*slots: Slot | None, leaving: tuple[Slot, ...] = ()) -> RunState:
    run = record().state
    workers = tuple(replace(w, slot=s) for w, s in zip(run.workers, slots or (None, None), strict=True))
    return replace(run, workers=workers, leaving=leaving)


@pytest.mark.parametrize(
    ("slots", "leaving", "machines"),
    [
        ((Slot("s0", "m1"), None), (), {"m1"}),
        ((Slot("s0", "m1", lost=True), Slot("s1", "m2")), (), {"m2"}),
        ((Slot("s0", "m1", attempts=(AttemptSeen(0, "exited", code=0),)), Slot("s1", "m2")), (), {"m2"}),
        ((None, None), (Slot("s0", "m3", attempts=(RUNNING,)),), {"m3"}),
        ((None, None), (Slot("s0", "m3"),), set()),
    ],
    ids=["held", "lost", "completed", "let go, and may still run", "let go, and never ran"],
)
def test_a_run_waits_for_machines_where_something_runs_or_is_to(
    slots: tuple[Slot | None, ...], leaving: tuple[Slot, ...], machines: set[str]
) -> None:
    assert awaited(with_slots(*slots, leaving=leaving)) == machines


def test_that_all_workers_run_is_not_said_when_nobody_knows() -> None:
    told = reason(state(Phase.RUNNING, "All 2 workers run"), [Absence("m-2", 12.2, 105.0)])
    assert told == "m-2 does not answer; after 105 s of silence it counts as lost"


def test_what_a_run_waits_for_is_said_together_with_who_is_away() -> None:
    told = reason(state(Phase.ASSEMBLING), [Absence("m-3", 12.2, 105.0), Absence("m-2", 3.0, 105.0)])
    assert told == (
        "Starting together: 1 of 2 ready; m-2 and m-3 do not answer; after 105 s of silence they count as lost"
    )


def test_an_ended_run_waits_for_nobody() -> None:
    assert reason(state(Phase.ENDED, "Stopped by the user"), [Absence("m-2", 3.0, 105.0)]) == "Stopped by the user"


def test_its_sentence_counts_the_seconds() -> None:
    assert Absence("m-2", 12.4, 105.0).sentence == "m-2 does not answer since 12 s"
