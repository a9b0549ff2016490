"""The record of attempts: who was in each, where, from when to when, and how it ended."""

from __future__ import annotations

from dataclasses import replace

from astra_gang.core.sentences import how_it_ended
from astra_gang.core.slots import attempt_in
from astra_gang.core.state import ATTEMPTS_KEPT, Attempt, Member, RunState, Slot


def record_attempt(state: RunState, now: float) -> RunState:
    """Write the current attempt down: from here on agents may be told of it."""
    members = tuple(
        Member(rank=w.rank, name=w.name, slot=w.slot.id, machine=w.slot.machine, address=w.slot.address)
        for w in state.workers
        if w.rank in state.members and w.slot is not None
    )
    attempts = (*state.attempts, Attempt(number=state.attempt, members=members, recorded_at=now))
    return replace(state, attempts=attempts[-ATTEMPTS_KEPT:], recorded=True)


def open_attempt(state: RunState, now: float) -> RunState:
    return _update(state, state.attempt, opened_at=now)


def close_attempt(state: RunState, number: int, why: str, now: float) -> RunState:
    """An attempt is over; the first reason stays."""
    attempt = find_attempt(state, number)
    return state if attempt is None or attempt.ended_at else _update(state, number, ended_at=now, ended_why=why)


def find_attempt(state: RunState, number: int) -> Attempt | None:
    return next((attempt for attempt in state.attempts if attempt.number == number), None)


def member_of(state: RunState, rank: int, number: int) -> Member | None:
    attempt = find_attempt(state, number)
    return None if attempt is None else next((m for m in attempt.members if m.rank == rank), None)


def note_progress(state: RunState, before: Slot, after: Slot, now: float) -> RunState:
    """Take times and exit codes of every attempt of this slot that has moved."""
    for seen in after.attempts:
        if attempt_in(before, seen.attempt) == seen:
            continue
        attempt = find_attempt(state, seen.attempt)
        if attempt is None:
            continue
        members = tuple(
            _moved(m, seen.state, seen.code, how_it_ended(seen), now) if m.slot == after.id else m
            for m in attempt.members
        )
        state = _update(state, seen.attempt, members=members)
    return state


def _moved(member: Member, word: str, code: int | None, how: str, now: float) -> Member:
    if word in ("running", "stopping") and member.started_at is None:
        return replace(member, started_at=now)
    if word == "exited" and member.ended_at is None:
        return replace(member, ended_at=now, code=code, detail=how)
    return member


def _update(state: RunState, number: int, **changes: object) -> RunState:
    attempts = tuple(
        replace(attempt, **changes) if attempt.number == number else attempt  # type: ignore[arg-type]  # names are ours
        for attempt in state.attempts
    )
    return replace(state, attempts=attempts)
