"""
One step of a run: take in what has happened, then move as far as the facts allow.

`_ABSORB` has one function for each kind of event, which only writes down facts; `advance` (in `advance.py`) looks at
the facts and moves through the phases. So the order in which reports arrive decides nothing but when.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from astra_gang.core import proving, sentences
from astra_gang.core.advance import advance
from astra_gang.core.decisions import Decision, Ignore, Tell
from astra_gang.core.events import (
    ClusterChanged,
    Event,
    GivenBack,
    MachineLost,
    MachineWithdrawn,
    NotPlaced,
    NotReserved,
    Placed,
    Proved,
    Reserved,
    SlotGone,
    SlotSeen,
    StopAsked,
    Tick,
)
from astra_gang.core.outstanding import outstanding
from astra_gang.core.proof import why_left_out
from astra_gang.core.record import note_progress
from astra_gang.core.slots import attempt_in, find_slot, gone_for_now, has_completed, is_returning, merge, update_slot
from astra_gang.core.state import SPARE, Assignment, Outcome, Phase, RunState, Slot, Worker
from astra_gang.core.timing import deadline
from astra_gang.core.transitions import as_leaving, end, requeue

__all__ = ["deadline", "outstanding", "step"]

Absorbed = tuple[RunState, list[Decision]]

_RACE_RETRY_S = 1.0
"""After losing a reservation to somebody else: soon, but never at once, so that two runs can't chase each other."""


def step(state: RunState, event: Event, now: float) -> tuple[RunState, tuple[Decision, ...]]:
    """
    Args:
        now: Seconds on the cluster's clock, never less than in an earlier step.
    Returns:
        The next state, to be stored before anything is done, and what is new: sentences to tell (stored with the state)
        and decisions that were not outstanding before. Never raises on what the world sends.
    """
    if state.phase is Phase.ENDED:
        return state, (Ignore(f"{type(event).__name__} for a run that has ended"),)
    before = set(outstanding(state))
    state, said = _ABSORB[type(event)](state, event, now)
    state, more = advance(state, now)
    fresh = tuple(decision for decision in outstanding(state) if decision not in before)
    return state, (*said, *more, *fresh)


def _placed(state: RunState, event: Placed, now: float) -> Absorbed:
    if not state.wants_place or event.reservation != state.reservation:
        return _ignore(state, f"a placement for reservation {event.reservation}; {state.reservation} is current")
    if all(worker.slot is None for worker in state.workers):
        state = _with_workers(state, event.workers)
        state = replace(state, tier=event.tier, domain=event.domain)
        if event.tier == "nvlink":
            state = replace(state, channel=event.channel, channel_domain=event.domain)
    assignments = tuple(
        replace(assignment, slot=assignment.slot or _slot_id(state, state.next_slot + i))
        for i, assignment in enumerate(sorted(event.assignments, key=lambda a: (a.rank == SPARE, a.rank)))
    )
    workers, spares = list(state.workers), list(state.spares)
    for assignment in assignments:
        slot = Slot(assignment.slot, assignment.machine, assignment.gpus, asked_at=now)
        if assignment.rank == SPARE:
            spares.append(slot)
        else:
            workers[assignment.rank] = replace(workers[assignment.rank], slot=slot)
    state = replace(
        state,
        workers=tuple(workers),
        spares=tuple(spares),
        assignments=assignments,
        next_slot=state.next_slot + len(assignments),
        wants_place=False,
        place_again_at=None,
    )
    if state.phase is Phase.PENDING:
        state = replace(state, phase=Phase.RESERVING, phase_since=now, reason=event.why)
    return state, [Tell(f"Placed: {event.why}", attempt=state.attempt)]


def _with_workers(state: RunState, count: int) -> RunState:
    """The run with this many workers: where its spec leaves the shape open, the placement decides it."""
    if count == len(state.workers):
        return state
    fresh = tuple(
        Worker(rank=rank, name=f"{state.name}-{rank}", attempt=state.attempt)
        for rank in range(len(state.workers), count)
    )
    workers = (*state.workers[:count], *fresh)
    return replace(state, workers=workers, members=tuple(range(count)))


def _slot_id(state: RunState, number: int) -> str:
    return f"{state.name[:40].rstrip('-')}-{state.uid}-{number}"


def _not_placed(state: RunState, event: NotPlaced, now: float) -> Absorbed:
    if not state.wants_place or event.reservation != state.reservation:
        return _ignore(state, f"an answer for reservation {event.reservation}; {state.reservation} is current")
    reason = sentences.left_out(event.reason, why_left_out(state))
    if state.phase is not Phase.PENDING:
        if state.late_swapped:
            return requeue(_late_forgiven(state), sentences.BARRIER_TIMED_OUT, now)
        return requeue(state, reason, now)
    said: list[Decision] = [Tell(reason)] if reason != state.reason else []
    again = now + state.policy.place_retry_s
    return replace(state, wants_place=False, place_again_at=again, reason=reason), said


def _late_forgiven(state: RunState) -> RunState:
    """Where no other machine can take their place, those that were late, and did not fail, may try again at once."""
    since = state.phase_since + state.policy.avoid_s
    blamed = state.proof.blamed if state.proof is not None else ()
    return replace(state, avoid=tuple((m, until) for m, until in state.avoid if until != since or m in blamed))


def _reserved(state: RunState, event: Reserved, now: float) -> Absorbed:
    if event.reservation != state.reservation or not state.assignments:
        return _ignore(state, f"reservation {event.reservation} is not awaited")
    state = replace(state, assignments=())
    if state.phase is Phase.RESERVING:
        state = replace(state, phase=Phase.ASSEMBLING, phase_since=now)
    return state, []


def _not_reserved(state: RunState, event: NotReserved, now: float) -> Absorbed:
    if event.reservation != state.reservation or not state.assignments:
        return _ignore(state, f"reservation {event.reservation} is not awaited")
    if state.phase is not Phase.RESERVING:
        return _drop(state, state.assignments, event.reason, now), [Tell(event.reason, level="warning")]
    state, said = requeue(state, event.reason, now)
    return replace(state, place_again_at=now + _RACE_RETRY_S), said


def _drop(state: RunState, assignments: tuple[Assignment, ...], why: str, now: float) -> RunState:
    """The workers of a reservation that failed have no slot again; what was got of it leaves."""
    workers, gone = list(state.workers), list(state.leaving)
    for assignment in assignments:
        slot = workers[assignment.rank].slot
        if slot is not None and slot.id == assignment.slot:
            gone.append(as_leaving(slot, why, now))
            workers[assignment.rank] = replace(workers[assignment.rank], slot=None)
    return replace(state, workers=tuple(workers), leaving=tuple(gone), assignments=(), faults=state.faults + 1)


def _proved(state: RunState, event: Proved, now: float) -> Absorbed:
    return proving.take_in(state, event)


def _slot_seen(state: RunState, event: SlotSeen, now: float) -> Absorbed:
    slot = find_slot(state, event.slot)
    if slot is None:
        return _ignore(state, f"slot {event.slot} is not (or no longer) of this run")
    merged = merge(slot, event, now)
    state = note_progress(update_slot(state, merged), slot, merged, now)
    said: list[Decision] = []
    worker = next((w for w in state.workers if w.slot is merged), None)
    if worker is not None and slot.ready_at is None and merged.ready_at is not None and len(state.members) > 1:
        said.append(Tell(sentences.WAITING_AT_BARRIER, rank=worker.rank, attempt=worker.attempt))
    several = len(state.workers) > 1  # of one worker the run's own end says it
    if several and worker is not None and has_completed(worker) and not _completed_before(slot, worker.attempt):
        said.append(Tell(sentences.completed(state, worker), rank=worker.rank, attempt=worker.attempt))
    if worker is not None and merged.stuck is not None and merged.stuck != slot.stuck:
        said.append(Tell(merged.stuck, rank=worker.rank, level="error"))
    return state, said


def _completed_before(slot: Slot, number: int) -> bool:
    seen = attempt_in(slot, number)
    return seen is not None and seen.state == "exited"


def _slot_gone(state: RunState, event: SlotGone, now: float) -> Absorbed:
    slot = find_slot(state, event.slot)
    if slot is None:
        return _ignore(state, f"slot {event.slot} is not (or no longer) of this run")
    said: list[Decision] = []
    worker = next((w for w in state.workers if w.slot is slot), None)
    if worker is not None and is_returning(slot) and not event.for_good:
        return update_slot(state, gone_for_now(slot, now)), []
    if worker is not None and not slot.lost:
        sentence = f"{worker.name} is Down: {slot.machine} came back without it"
        if event.for_good:
            sentence = sentences.not_returned(worker, slot.machine)
        said.append(Tell(sentence, rank=worker.rank, attempt=worker.attempt, level="warning"))
    return update_slot(state, replace(slot, lost=True)), said


def _machine_lost(state: RunState, event: MachineLost, now: float) -> Absorbed:
    def mark(slot: Slot) -> Slot:
        return replace(slot, lost=True) if slot.machine == event.machine else slot

    hit = [w for w in state.workers if w.slot is not None and w.slot.machine == event.machine and not w.slot.lost]
    workers = tuple(replace(w, slot=mark(w.slot)) if w.slot is not None else w for w in state.workers)
    said: list[Decision] = [
        Tell(sentences.down(w, event.machine), rank=w.rank, attempt=w.attempt, level="warning") for w in hit
    ]
    spares, leaving = (tuple(map(mark, slots)) for slots in (state.spares, state.leaving))
    return replace(state, workers=workers, spares=spares, leaving=leaving), said


def _machine_withdrawn(state: RunState, event: MachineWithdrawn, now: float) -> Absorbed:
    said: list[Decision] = []
    workers = list(state.workers)
    for worker in state.workers:
        slot = worker.slot
        if slot is not None and slot.machine == event.machine and not slot.lost and not slot.withdrawn:
            slot = replace(slot, withdrawn=event.why)
            workers[worker.rank] = replace(worker, slot=slot)
            sentence = sentences.leaves(worker, slot)
            said.append(Tell(sentence, rank=worker.rank, attempt=worker.attempt, level="warning"))
    spares = tuple(replace(s, withdrawn=event.why) if s.machine == event.machine else s for s in state.spares)
    return replace(state, workers=tuple(workers), spares=spares), said


def _given_back(state: RunState, event: GivenBack, now: float) -> Absorbed:
    leaving = tuple(replace(left, accepted=True) if left.id == event.slot else left for left in state.leaving)
    return replace(state, leaving=leaving), []


def _stop_asked(state: RunState, event: StopAsked, now: float) -> Absorbed:
    if state.phase is Phase.ENDING:
        return _ignore(state, "the run is ending already")
    return end(state, Outcome.STOPPED, f"Stopped by {event.by}", now)


def _cluster_changed(state: RunState, event: ClusterChanged, now: float) -> Absorbed:
    if state.phase is not Phase.PENDING or state.wants_place:
        return _ignore(state, "no placement waits for machines")
    return replace(state, place_again_at=now), []


def _tick(state: RunState, event: Tick, now: float) -> Absorbed:
    return state, []


def _ignore(state: RunState, reason: str) -> Absorbed:
    return state, [Ignore(reason)]


_ABSORB: dict[type[Event], Callable[[RunState, Any, float], Absorbed]] = {
    Placed: _placed,
    NotPlaced: _not_placed,
    Reserved: _reserved,
    NotReserved: _not_reserved,
    Proved: _proved,
    SlotSeen: _slot_seen,
    SlotGone: _slot_gone,
    MachineLost: _machine_lost,
    MachineWithdrawn: _machine_withdrawn,
    GivenBack: _given_back,
    StopAsked: _stop_asked,
    ClusterChanged: _cluster_changed,
    Tick: _tick,
}
