"""What is told of slots and attempts, in words."""

from __future__ import annotations

from dataclasses import replace

import pytest

from astra_agent.records import AttemptRecord, Ending, ExitRecord, SlotRecord, StopWish
from astra_agent.status import Seen, exit_sentence, size, slot_status
from tests.agent.machine import request

ATTEMPT = AttemptRecord(0, {}, {}, armed=True, start_wanted=True, start_begun=True, started=True)
GIB = 1024**3


@pytest.mark.parametrize(
    ("size_bytes", "words"),
    [(2 * GIB, "2 GiB"), (512 * 1024**2, "512 MiB"), (3 * GIB // 2, "1.5 GiB"), (128849018880, "120 GiB")],
)
def test_sizes_read_as_people_write_them(size_bytes: int, words: str) -> None:
    assert size(size_bytes) == words


@pytest.mark.parametrize(
    ("attempt", "ended", "sentence"),
    [
        (ATTEMPT, ExitRecord(0), ""),
        (ATTEMPT, ExitRecord(1), ""),
        (ATTEMPT, ExitRecord(139), "Killed by signal 11"),
        (ATTEMPT, ExitRecord(128), ""),
        (ATTEMPT, ExitRecord(255), ""),
        (ATTEMPT, ExitRecord(None), "Ended, code unknown"),
        (ATTEMPT, ExitRecord(None, never_started=True), "Stopped before it was started"),
        (ATTEMPT, ExitRecord(137, oom=True), "Out of memory (limit 1 GiB)"),
        (
            replace(ATTEMPT, stop=StopWish(30.0, 0.0)),
            ExitRecord(137, killed=True),
            "Killed: it did not end within 30 s of SIGTERM",
        ),
        (replace(ATTEMPT, stop=StopWish(0.0, 0.0, "Cut off")), ExitRecord(137), "Cut off"),
    ],
)
def test_how_an_attempt_ended_is_one_sentence(attempt: AttemptRecord, ended: ExitRecord, sentence: str) -> None:
    assert exit_sentence(attempt, ended, GIB) == sentence


@pytest.mark.parametrize(
    ("attempt", "stopping", "state"),
    [
        (AttemptRecord(0, {}, {}), False, "arming"),
        (AttemptRecord(0, {}, {}, armed=True, start_wanted=True, start_begun=True), False, "armed"),
        (ATTEMPT, False, "running"),
        (ATTEMPT, True, "stopping"),
        (replace(ATTEMPT, exit=ExitRecord(0)), True, "exited"),
        (replace(ATTEMPT, started=False, failed="no"), False, "armed"),
    ],
)
def test_an_attempts_state_is_read_off_its_record(attempt: AttemptRecord, stopping: bool, state: str) -> None:
    record = SlotRecord(request(), "b").with_attempt(attempt)
    seen = Seen(1, stopping=frozenset({0} if stopping else ()))
    assert slot_status(record, seen).attempts[0].state == state


def test_a_missing_runtime_is_said_of_everything_that_waits_for_it() -> None:
    away = "containerd on gpu-1 does not answer since 12 s"
    status = slot_status(SlotRecord(request(), "b").with_attempt(ATTEMPT), Seen(1, "Pulling", away))
    assert (status.detail, status.attempts[0].detail) == (away, away)


def test_a_failure_is_not_hidden_by_a_missing_runtime() -> None:
    record = SlotRecord(request(), "b", phase="failed", detail="no such image", fault="user")
    assert slot_status(record, Seen(1, away="away")).detail == "no such image"


def test_a_slot_that_ends_says_why() -> None:
    status = slot_status(SlotRecord(request(), "b", ending=Ending(1, "Gang failed")), Seen(1))
    assert (status.phase, status.detail) == ("finished", "Gang failed")
