"""A run in the words of its user: phases, workers' states, what each is doing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from astra_gang import view
from astra_gang.core import AttemptSeen, Outcome, Phase, RunState, Slot
from astra_gang.core.record import record_attempt
from astra_gang.store import RunRecord
from tests.fakes.clock import FakeClock
from tests.fakes.runs import record

CLOCK = FakeClock()
AWAY = "containerd on m1 does not answer since 12 s"


def shown(state: RunState) -> dict[str, Any]:
    return dict(view.job(RunRecord(record().spec, state), CLOCK.wall)["status"])


def with_slot(phase: str = "ready", *attempts: AttemptSeen, number: int = 0, **more: Any) -> RunState:
    """A run whose leader has this slot and is in attempt *number*."""
    state = record().state
    slot = Slot("s0", "m1", phase=phase, attempts=attempts, **more)
    leader = replace(state.workers[0], slot=slot, attempt=number)
    return replace(state, workers=(leader, *state.workers[1:]), phase=Phase.ASSEMBLING, attempt=number)


@pytest.mark.parametrize(
    ("phase", "word"),
    [
        (Phase.PENDING, "Pending"),
        (Phase.RESERVING, "Pending"),
        (Phase.REQUEUEING, "Pending"),
        (Phase.ASSEMBLING, "Starting"),
        (Phase.STARTING, "Starting"),
        (Phase.RUNNING, "Running"),
        (Phase.ENDING, "Stopping"),
    ],
)
def test_every_phase_has_its_word(phase: Phase, word: str) -> None:
    assert shown(replace(record().state, phase=phase, outcome=Outcome.STOPPED))["phase"] == word


@pytest.mark.parametrize("outcome", list(Outcome))
def test_an_ended_run_is_what_it_ended_as(outcome: Outcome) -> None:
    assert shown(replace(record().state, phase=Phase.ENDED, outcome=outcome))["phase"] == str(outcome)


def test_no_phase_is_without_a_word() -> None:
    for phase in Phase:
        assert shown(replace(record().state, phase=phase, outcome=Outcome.FAILED))["phase"]


@pytest.mark.parametrize(
    ("state", "word", "detail"),
    [
        (record().state, "Pending", ""),
        (with_slot("asked"), "Preparing", ""),
        (with_slot("preparing", detail="Pulling busybox:1.36: 43 %"), "Preparing", "Pulling busybox:1.36: 43 %"),
        (with_slot("ready"), "ReadyToStart", "Waiting at the gang barrier"),
        (with_slot("ready", AttemptSeen(0, "arming")), "ReadyToStart", "Waiting at the gang barrier"),
        (with_slot("ready", AttemptSeen(0, "armed")), "Armed", ""),
        (with_slot("ready", AttemptSeen(0, "running")), "Running", ""),
        (with_slot("ready", AttemptSeen(0, "stopping")), "Stopping", ""),
        (with_slot("ready", AttemptSeen(0, "exited", code=0)), "Completed", "Exited with code 0"),
        (with_slot("ready", AttemptSeen(0, "exited", code=1)), "Failed", "Exited with code 1"),
        (with_slot("ready", AttemptSeen(0, "exited", code_unknown=True)), "Failed", "Ended, code unknown"),
        (with_slot("ready", AttemptSeen(0, "running"), number=1), "Stopping", "Attempt 0 is being stopped"),
        (with_slot("ready", AttemptSeen(0, "running"), detail=AWAY), "Running", AWAY),
        (
            with_slot("ready", AttemptSeen(0, "running"), number=1, detail=AWAY),
            "Stopping",
            f"Attempt 0 is being stopped: {AWAY}",
        ),
        (with_slot("ready", AttemptSeen(0, "exited", code=1), number=1), "ReadyToStart", "Waiting at the gang barrier"),
        (with_slot("failed", detail="no such image: nothing:1"), "Failed", "no such image: nothing:1"),
        (with_slot("ready", AttemptSeen(0, "running"), lost=True), "Down", "its machine m1 is lost"),
        (
            with_slot("ready", stuck="process 4711 of llama-0 does not die"),
            "Failed",
            "process 4711 of llama-0 does not die",
        ),
    ],
)
def test_every_worker_has_its_word_and_says_what_it_is_doing(state: RunState, word: str, detail: str) -> None:
    worker = shown(state)["workers"][0]
    assert (worker["state"], worker["detail"]) == (word, detail)


def test_spares_are_shown_with_what_they_are_doing() -> None:
    spares = (Slot("r-2", "m3", phase="ready"), Slot("r-3", "m4", phase="preparing", detail="Pulling busybox: 40 %"))
    assert shown(replace(record().state, spares=spares))["spares"] == [
        {"machine": "m3", "state": "ReadyToStart", "detail": ""},
        {"machine": "m4", "state": "Preparing", "detail": "Pulling busybox: 40 %"},
    ]


def test_a_worker_that_was_stopped_has_not_failed() -> None:
    state = record_attempt(with_slot("ready", AttemptSeen(0, "exited", code=143)), 1.0)
    for closed_at, ended_at, word in ((2.0, 2.0, "Failed"), (2.0, 2.1, "Stopped"), (None, 2.0, "Failed")):
        members = tuple(replace(m, started_at=1.5, ended_at=ended_at, code=143) for m in state.attempts[0].members)
        attempt = replace(state.attempts[0], members=members, ended_at=closed_at)
        assert shown(replace(state, attempts=(attempt,)))["workers"][0]["state"] == word


@pytest.mark.parametrize("outcome", [Outcome.STOPPED, Outcome.FAILED])
def test_a_worker_of_an_ended_run_waits_no_more(outcome: Outcome) -> None:
    worker = shown(replace(record().state, phase=Phase.ENDED, outcome=outcome))["workers"][0]
    assert (worker["state"], worker["detail"]) == (str(outcome), "It never started")


def test_a_worker_whose_slot_is_given_back_shows_how_it_ended() -> None:
    state = record_attempt(with_slot("ready"), 1.0)
    members = tuple(
        replace(m, started_at=1.5, ended_at=2.0, code=137, detail="Out of memory") for m in state.attempts[0].members
    )
    workers = tuple(replace(worker, slot=None, attempt=0) for worker in state.workers)
    state = replace(state, attempts=(replace(state.attempts[0], members=members),), workers=workers)
    for phase, word in ((Phase.ENDING, "Failed"), (Phase.ENDED, "Failed"), (Phase.PENDING, "Pending")):
        worker = shown(replace(state, phase=phase, outcome=Outcome.FAILED))["workers"][0]
        assert worker["state"] == word
    assert (worker["machine"], worker["code"]) == ("m1", 137)


def test_ranks_of_a_run_that_has_not_begun_name_its_workers() -> None:
    run = RunRecord(record().spec, with_slot("preparing"))
    found = view.ranks(run, None, CLOCK.wall)
    assert (found["attempt"], found["attempts"], found["opened_at"]) == (0, [], None)
    assert [(item["name"], item["machine"]) for item in found["items"]] == [("llama-0", "m1"), ("llama-1", None)]
