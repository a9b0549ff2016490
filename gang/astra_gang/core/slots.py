"""
What the core makes of reports about slots: merging that does not depend on their order, and questions about a slot.

An attempt's state and a slot's phase only ever move forward, so two reports give the same slot in either order; what is
not monotone (a sentence, stuck or not) is taken from the newest *rev*.
"""

from __future__ import annotations

from dataclasses import replace

from astra_gang.core.events import SlotSeen
from astra_gang.core.state import AttemptSeen, RunState, Slot, Worker

_ATTEMPT_ORDER = {"arming": 0, "armed": 1, "running": 2, "stopping": 3, "exited": 4}
_PHASE_ORDER = {"asked": 0, "preparing": 1, "ready": 2, "failed": 3, "finished": 4}


def merge(slot: Slot, seen: SlotSeen, now: float) -> Slot:
    """The slot with what *seen* adds. Idempotent, and the same whatever the order of reports."""
    if slot.incarnation and seen.incarnation != slot.incarnation:
        if seen.rev < slot.rev:
            return slot
        slot = _used_anew(slot)
    phase = max(slot.phase, seen.phase, key=lambda word: _PHASE_ORDER.get(word, 0))
    merged = replace(
        slot,
        phase=phase,
        incarnation=seen.incarnation or slot.incarnation,
        ready_at=_ready_at(slot, phase, now),
        address=slot.address or seen.address,
        attempts=_merge_attempts(slot.attempts, seen.attempts),
        arm_failed=max((n for n in (slot.arm_failed, seen.arm_failed) if n is not None), default=None),
    )
    if phase == "finished" and not any_alive(merged) and (slot.ended_at is None or any_alive(slot)):
        merged = replace(merged, ended_at=now)
    if seen.rev < slot.rev:
        return merged
    return replace(
        merged, rev=seen.rev, detail=seen.detail, fault=seen.fault, stuck=seen.stuck, port=seen.port or slot.port
    )


def _ready_at(slot: Slot, phase: str, now: float) -> float | None:
    if phase == "finished":
        return None
    return now if slot.ready_at is None and phase == "ready" else slot.ready_at


def _used_anew(slot: Slot) -> Slot:
    """As it is when its engine puts it again: what was there of it has ended, whoever saw that."""
    return replace(
        slot,
        phase="asked",
        ready_at=None,
        ended_at=None,
        address=None,
        port=None,
        attempts=_all_ended(slot.attempts),
        arm_failed=None,
        stuck=None,
    )


def gone_for_now(slot: Slot, now: float) -> Slot:
    """Its engine has ended it, and its agent has nothing of it any more."""
    return replace(slot, attempts=_all_ended(slot.attempts), ended_at=now if slot.ended_at is None else slot.ended_at)


def _all_ended(attempts: tuple[AttemptSeen, ...]) -> tuple[AttemptSeen, ...]:
    """Whoever saw how."""
    return tuple(
        seen if seen.state == "exited" else replace(seen, state="exited", code_unknown=True, fault="machine")
        for seen in attempts
    )


def _merge_attempts(old: tuple[AttemptSeen, ...], new: tuple[AttemptSeen, ...]) -> tuple[AttemptSeen, ...]:
    known = {seen.attempt: seen for seen in old}
    for seen in new:
        before = known.get(seen.attempt)
        if before is None or _ATTEMPT_ORDER[seen.state] > _ATTEMPT_ORDER[before.state]:
            known[seen.attempt] = seen
    return tuple(known[number] for number in sorted(known))


def attempt_in(slot: Slot | None, number: int) -> AttemptSeen | None:
    if slot is None:
        return None
    return next((seen for seen in slot.attempts if seen.attempt == number), None)


def is_armed(worker: Worker) -> bool:
    """Armed or beyond, in its newest attempt."""
    seen = attempt_in(worker.slot, worker.attempt)
    return seen is not None and seen.state != "arming"


def has_started(worker: Worker) -> bool:
    seen = attempt_in(worker.slot, worker.attempt)
    return seen is not None and seen.state in ("running", "stopping", "exited")


def has_ended(worker: Worker) -> bool:
    """In its newest attempt, however."""
    seen = attempt_in(worker.slot, worker.attempt)
    return seen is not None and seen.state == "exited"


def has_completed(worker: Worker) -> bool:
    seen = attempt_in(worker.slot, worker.attempt)
    return seen is not None and seen.state == "exited" and seen.code == 0


def old_alive(worker: Worker) -> bool:
    """Whether an attempt older than its newest has not ended yet in its slot."""
    slot = worker.slot
    return slot is not None and any(seen.state != "exited" and seen.attempt < worker.attempt for seen in slot.attempts)


def any_alive(slot: Slot) -> bool:
    return any(seen.state != "exited" for seen in slot.attempts)


def may_run(slot: Slot) -> bool:
    """
    Whether a program may still run in a slot that was let go: it was armed, and nobody has said that it ended. A lost
    machine's agent has stopped it by itself; one that is stuck does not run any more.
    """
    return any_alive(slot) and not slot.lost and slot.stuck is None


def is_usable(slot: Slot) -> bool:
    return not slot.lost and not slot.withdrawn and slot.stuck is None and slot.phase not in ("failed", "finished")


def has_lost_device(slot: Slot) -> bool:
    """It was good for an attempt, and is for none any more: what its programs had is gone from its machine."""
    return slot.phase == "failed" and slot.fault == "machine" and bool(slot.attempts)


def is_returning(slot: Slot) -> bool:
    """Its engine has ended it, not the run: it waits for the engine to put it again."""
    return slot.phase == "finished" and not slot.lost and not slot.withdrawn and slot.stuck is None


def is_ready(worker: Worker) -> bool:
    """At the barrier: its slot is prepared and nothing of an older attempt runs in it."""
    slot = worker.slot
    return slot is not None and slot.phase == "ready" and is_usable(slot) and not old_alive(worker)


def update_slot(state: RunState, slot: Slot) -> RunState:
    """The state with this slot in the place of the one with its ID, wherever it is."""
    return replace(
        state,
        workers=tuple(
            replace(w, slot=slot) if w.slot is not None and w.slot.id == slot.id else w for w in state.workers
        ),
        spares=tuple(slot if spare.id == slot.id else spare for spare in state.spares),
        leaving=tuple(slot if left.id == slot.id else left for left in state.leaving),
    )


def held_slots(state: RunState) -> tuple[Slot, ...]:
    """Those of its workers, in order of rank, then its spares."""
    return (*(worker.slot for worker in state.workers if worker.slot is not None), *state.spares)


def find_slot(state: RunState, slot_id: str) -> Slot | None:
    """Held or leaving."""
    return next((slot for slot in (*held_slots(state), *state.leaving) if slot.id == slot_id), None)


def update_worker(state: RunState, worker: Worker) -> RunState:
    workers = list(state.workers)
    workers[worker.rank] = worker
    return replace(state, workers=tuple(workers))
