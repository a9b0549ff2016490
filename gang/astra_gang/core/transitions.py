"""Moves that several phases make: ending, requeueing, the next attempt, letting go of slots."""

from __future__ import annotations

from dataclasses import replace

from astra_gang.core import sentences
from astra_gang.core.decisions import Decision, Tell
from astra_gang.core.record import close_attempt
from astra_gang.core.slots import is_usable
from astra_gang.core.state import Outcome, Phase, RunState, Slot, Worker

Moved = tuple[RunState, list[Decision]]


def end(state: RunState, outcome: Outcome, reason: str, now: float, *, refused: bool = False) -> Moved:
    """Stop and give back everything; the run then ends with *outcome*."""
    state = let_spares_go(close_attempt(state, state.attempt, reason, now), state.spares, reason, now)
    level = "error" if outcome is Outcome.FAILED else "info"
    state = replace(
        state,
        phase=Phase.ENDING,
        phase_since=now,
        reason=reason,
        outcome=outcome,
        refused=refused,
        wants_place=False,
        place_again_at=None,
        assignments=(),
    )
    return state, [Tell(reason, attempt=state.attempt, level=level)]


def requeue(state: RunState, reason: str, now: float) -> Moved:
    """Give every machine back, then wait in the queue again (rule 2): nothing is kept while the rest is missing."""
    state = close_attempt(state, state.attempt, reason, now) if state.recorded else state
    number = state.attempt + 1 if state.recorded else state.attempt
    state = let_spares_go(state, state.spares, reason, now)
    gone = let_go(state, {w.rank for w in state.workers}, reason, now)
    state = replace(
        state,
        phase=Phase.REQUEUEING,
        phase_since=now,
        reason=reason,
        workers=tuple(replace(w, slot=None, attempt=number) for w in state.workers),
        members=tuple(w.rank for w in state.workers),
        attempt=number,
        recorded=False,
        leaving=(*state.leaving, *gone),
        wants_place=False,
        place_again_at=None,
        assignments=(),
        late_swapped=False,
        charged=None,
    )
    return state, [Tell(reason, attempt=number, level="warning")]


def next_attempt(state: RunState, members: tuple[int, ...], start_at: float, why: str, now: float) -> RunState:
    """Begin the barrier of a new attempt in the same slots: the old one is stopped while the new one is armed."""
    state = close_attempt(state, state.attempt, why, now)
    number = state.attempt + 1
    workers = tuple(replace(w, attempt=number) if w.rank in members else w for w in state.workers)
    return replace(
        state,
        phase=Phase.ASSEMBLING,
        phase_since=now,
        reason=why,
        attempt=number,
        members=members,
        workers=workers,
        recorded=False,
        start_at=start_at,
        late_swapped=False,
    )


def as_leaving(slot: Slot, why: str, now: float) -> Slot:
    """The slot as it leaves."""
    return replace(slot, leaving_why=why, left_at=now)


def let_go(state: RunState, ranks: set[int], why: str, now: float) -> tuple[Slot, ...]:
    """The slots of these workers, as they leave."""
    return tuple(as_leaving(w.slot, why, now) for w in state.workers if w.rank in ranks and w.slot is not None)


def let_spares_go(state: RunState, spares: tuple[Slot, ...], why: str, now: float) -> RunState:
    gone = tuple(as_leaving(slot, why, now) for slot in spares)
    kept = tuple(slot for slot in state.spares if slot not in spares)
    return replace(state, spares=kept, leaving=(*state.leaving, *gone))


def replace_slots(state: RunState, ranks: set[int], why: str, now: float) -> Moved:
    """
    Let go of these workers' slots; machines that failed (rather than got lost) are left out for a while. Spares that
    are prepared take over, whom there is none for has no slot.
    """
    gone = let_go(state, ranks, why, now)
    until = now + state.policy.avoid_s
    avoid = dict(state.avoid) | {slot.machine: until for slot in gone if not slot.lost and not slot.withdrawn}
    prepared = [slot for slot in state.spares if is_usable(slot) and slot.phase == "ready"]
    taken = dict(zip(sorted(ranks), prepared, strict=False))
    said: list[Decision] = [
        Tell(sentences.takes_spare(worker, taken[worker.rank]), rank=worker.rank, attempt=worker.attempt)
        for worker in state.workers
        if worker.rank in taken
    ]
    state = replace(
        state,
        workers=tuple(replace(w, slot=taken.get(w.rank)) if w.rank in ranks else w for w in state.workers),
        spares=tuple(slot for slot in state.spares if slot not in taken.values()),
        leaving=(*state.leaving, *gone),
        avoid=tuple(sorted(avoid.items())),
        # An answer that is on its way was for fewer workers.
        reservation=state.reservation + 1 if state.wants_place else state.reservation,
    )
    return state, said


def ask_for_machines(state: RunState, now: float) -> RunState:
    """A new placement is wanted, for every worker without a slot."""
    avoid = tuple((machine, until) for machine, until in state.avoid if until > now)
    return replace(state, avoid=avoid, wants_place=True, reservation=state.reservation + 1, place_again_at=None)


def never_ran(state: RunState) -> bool:
    """No program of the user has started, in any attempt."""
    return all(attempt.opened_at is None for attempt in state.attempts)


def members_of(state: RunState) -> tuple[Worker, ...]:
    """The workers of the current attempt, in order of rank."""
    return tuple(state.workers[rank] for rank in state.members)
