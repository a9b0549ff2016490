"""
The barrier of an attempt: slots get ready, the attempt is recorded and armed, older attempts end, and it opens, or what
does not arrive, breaks or gets lost is replaced.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

from astra_gang.core import proving, sentences, timing
from astra_gang.core.decisions import Decision, Tell
from astra_gang.core.proof import is_proving, is_unproved, needs_proof
from astra_gang.core.record import open_attempt, record_attempt
from astra_gang.core.slots import (
    attempt_in,
    has_lost_device,
    has_started,
    is_armed,
    is_ready,
    is_returning,
    is_usable,
    may_run,
    old_alive,
    update_slot,
    update_worker,
)
from astra_gang.core.state import OnFailure, Outcome, Phase, RunState, Worker
from astra_gang.core.transitions import (
    Moved,
    ask_for_machines,
    end,
    members_of,
    never_ran,
    next_attempt,
    replace_slots,
    requeue,
)
from astra_gang.core.verdict import bystanders, over_limit

Check = Callable[[RunState, float], Moved | None]

_FAULTS_IN_PLACE = 2
"""After this many attempts in a row that did not start, the slot at fault is replaced instead of armed once more."""


def assembling(state: RunState, now: float) -> Moved:
    for check in _BARRIER:
        moved = check(state, now)
        if moved is not None:
            return moved
    return _say_how_far(state, now)


def _refused(state: RunState, now: float) -> Moved | None:
    for worker in members_of(state):
        slot = worker.slot
        if slot is None or slot.fault != "user":
            continue
        if slot.phase == "failed" or slot.arm_failed == worker.attempt:
            return end(state, Outcome.FAILED, slot.detail, now, refused=never_ran(state))
    return None


def broken(state: RunState, now: float) -> Moved | None:
    """Slots that can't be used any more are replaced; an attempt that could not start is made anew."""
    returning = {w.rank for w in members_of(state) if w.slot is not None and is_returning(w.slot)}
    unusable = {w.rank for w in members_of(state) if w.slot is not None and not is_usable(w.slot)} - returning
    failed = {w.rank for w in members_of(state) if w.rank not in unusable | returning and _failed_to_start(state, w)}
    again = returning if state.recorded else set()
    if not unusable and not failed and not again:
        return None
    first = state.workers[min(unusable | failed | again)]
    why = _why_broken(state, first)
    hit = {rank for rank in unusable if _is_hit(state.workers[rank])}
    if hit and state.policy.on_failure is OnFailure.FAIL_JOB and state.phase is Phase.STARTING:
        return end(state, Outcome.FAILED, why, now)
    if unusable - hit or failed:
        state = replace(state, faults=state.faults + 1)
    if state.faults > state.policy.faults_limit:
        why = sentences.faults_spent(why, state.faults)
        return end(state, Outcome.FAILED, why, now, refused=never_ran(state))
    said: list[Decision] = []
    if not _is_told(state, first, now):
        said = [Tell(why, rank=first.rank, level="warning", slots="at once")]
    if hit:
        state = _pay_back(state, now)
    if state.recorded:
        state = next_attempt(state, state.members, state.start_at, why, now)
    if state.faults > _FAULTS_IN_PLACE:
        unusable |= failed
    state, moved = replace_slots(state, unusable, why, now)
    return state, [*said, *moved]


def _failed_to_start(state: RunState, worker: Worker) -> bool:
    slot = worker.slot
    if slot is None or not state.recorded:
        return False
    if slot.arm_failed is not None and slot.arm_failed >= worker.attempt and not has_started(worker):
        return True
    seen = attempt_in(slot, worker.attempt)
    return state.phase is Phase.ASSEMBLING and seen is not None and seen.state in ("stopping", "exited")


def _why_broken(state: RunState, worker: Worker) -> str:
    slot = worker.slot
    if slot is None:
        return f"{worker.name} has no slot"
    if slot.lost:
        return sentences.down(worker, slot.machine)
    if slot.withdrawn:
        return sentences.leaves(worker, slot)
    if slot.stuck is not None:
        return slot.stuck
    if has_lost_device(slot):
        failed = has_started(worker)
        return sentences.worker_failed(worker, slot.machine, slot.detail) if failed else sentences.leaves(worker, slot)
    if is_returning(slot):
        return sentences.gang_restart(worker) if len(state.workers) > 1 else sentences.task_restart(worker)
    what = slot.detail or "its container ended before it was started"
    return f"{worker.name} could not start on {slot.machine}: {what}"


def _is_nobodys_fault(worker: Worker) -> bool:
    """Its machine is lost, or has to be left."""
    return worker.slot is not None and (worker.slot.lost or bool(worker.slot.withdrawn))


def _is_hit(worker: Worker) -> bool:
    """By what befell its machine, which says nothing of the attempt."""
    return _is_nobodys_fault(worker) or (worker.slot is not None and has_lost_device(worker.slot))


def _is_told(state: RunState, worker: Worker, now: float) -> bool:
    """What is wrong with its slot, already: by the event that said so, or by who judged the worker in this step."""
    slot = worker.slot
    if _is_nobodys_fault(worker) or (slot is not None and slot.stuck is not None):
        return True
    return _is_hit(worker) and state.phase_since == now


def _pay_back(state: RunState, now: float) -> RunState:
    """The failure that led here was a machine's, not the user's: no budget, no wait."""
    if state.charged is None:
        return state
    worker = state.workers[state.charged]
    state = update_worker(state, replace(worker, failures=max(0, worker.failures - 1)))
    return replace(state, charged=None, start_at=min(state.start_at, now))


def _reserve_late(state: RunState, now: float) -> Moved | None:
    due = timing.reserve_due(state)
    if due is None or now < due:
        return None
    ranks = {assignment.rank for assignment in state.assignments}
    state, moved = replace_slots(
        replace(state, assignments=(), faults=state.faults + 1), ranks, "it did not take its slot in time", now
    )
    return state, [Tell("A replacement machine did not take its slot in time", level="warning"), *moved]


def _not_returned(state: RunState, now: float) -> Moved | None:
    due = timing.return_due(state)
    if due is None or now < due:
        return None
    said: list[Decision] = []
    for worker in state.workers:
        slot = worker.slot
        if slot is None or not is_returning(slot) or slot.ended_at is None:
            continue
        if now >= slot.ended_at + state.policy.return_timeout_s:
            state = update_slot(state, replace(slot, lost=True))
            said.append(Tell(sentences.not_returned(worker, slot.machine), rank=worker.rank, level="warning"))
    return state, said


def _missing(state: RunState, now: float) -> Moved | None:
    if state.wants_place or state.assignments or all(w.slot is not None for w in members_of(state)):
        return None
    return ask_for_machines(state, now), []


def _late(state: RunState, now: float) -> Moved | None:
    due = timing.barrier_due(state)
    if due is None or now < due:
        return None
    late = {w.rank for w in members_of(state) if w.slot is not None and w.slot.ready_at is None}
    if len(late) == len(state.members):
        first = state.workers[min(late)]
        detail = first.slot.detail if first.slot is not None else ""
        return requeue(state, f"No worker was ready in time; {first.name}: {detail or 'no word from its machine'}", now)
    if state.late_swapped or not late:
        return requeue(state, sentences.BARRIER_TIMED_OUT, now)
    names = ", ".join(state.workers[rank].name for rank in sorted(late))
    state, moved = replace_slots(state, late, sentences.BARRIER_TIMED_OUT, now)
    state = replace(state, late_swapped=True, phase_since=now)
    return state, [
        Tell(f"{names} did not arrive at the gang barrier in time: another machine is tried", level="warning"), *moved,
    ]  # fmt: skip


def _record(state: RunState, now: float) -> Moved | None:
    if state.recorded or state.assignments or needs_proof(state):
        return None
    if not all(w.slot is not None and w.slot.phase == "ready" for w in members_of(state)):
        return None
    said: list[Decision] = [Tell(sentences.unproved(state), attempt=state.attempt)] if is_unproved(state) else []
    return record_attempt(state, now), said


def _arm_late(state: RunState, now: float) -> Moved | None:
    due = timing.arm_due(state)
    if due is None or now < due:
        return None
    return mark_failed(state, f"it was not armed within {state.policy.arm_timeout_s:g} s", is_armed), []


def mark_failed(state: RunState, detail: str, unless: Callable[[Worker], bool]) -> RunState:
    for worker in members_of(state):
        if worker.slot is not None and not unless(worker):
            slot = replace(worker.slot, arm_failed=worker.attempt, detail=detail, fault="machine")
            state = update_slot(state, slot)
    return state


def _old_late(state: RunState, now: float) -> Moved | None:
    due = timing.stop_due(state)
    if due is None or now < due:
        return None
    old = [(w.slot, state.phase_since) for w in members_of(state) if w.slot is not None and old_alive(w)]
    old += [(left, left.left_at) for left in state.leaving if may_run(left)]
    for slot in [slot for slot, since in old if now >= timing.overdue_at(state, since)]:
        stuck = f"What ran in {slot.id} on {slot.machine} did not stop in time, and its agent does not say why"
        state = update_slot(state, replace(slot, stuck=stuck))
    return state, []


def _open(state: RunState, now: float) -> Moved | None:
    due = timing.back_off_due(state)
    if due is None or now < due:
        return None
    state = open_attempt(replace(state, phase=Phase.STARTING, phase_since=now), now)
    members = members_of(state)
    state = replace(state, reason=sentences.starting_together(members, len(members)))
    return state, [Tell(sentences.barrier_opens(members, state.attempt), attempt=state.attempt)]


def _say_how_far(state: RunState, now: float) -> Moved:
    """`Starting together: 3 of 4 ready`; told for each worker in small gangs, for each tenth in large ones."""
    ready, total = sum(is_ready(w) for w in members_of(state)), len(state.members)
    sentence = sentences.starting_together(members_of(state), ready)
    if state.start_at > now or sentence == state.reason or is_proving(state):
        return state, []
    worth_telling = total <= 16 or ready in (total, total - 1) or ready % (total // 10) == 0
    slots: Literal["if it lasts", "at once"] = "at once" if ready == total else "if it lasts"
    said: list[Decision] = [Tell(sentence, attempt=state.attempt, slots=slots)] if worth_telling else []
    return replace(state, reason=sentence), said


_BARRIER: tuple[Check, ...] = (
    over_limit,
    bystanders, _refused, _not_returned, broken, _reserve_late, proving.swap, _missing, _late, proving.ask, _record,
    _arm_late, _old_late, _open,
)  # fmt: skip
