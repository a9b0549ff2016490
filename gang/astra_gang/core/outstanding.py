"""Which decisions a state wants: a pure reading of it, in one order, so that two readings are equal."""

from __future__ import annotations

from astra_gang.core.decisions import Arm, Decision, GiveBack, Place, Prove, Reserve, Start, Stop
from astra_gang.core.proof import is_proving
from astra_gang.core.slots import any_alive, attempt_in, held_slots, is_armed, is_usable, old_alive
from astra_gang.core.state import Outcome, Phase, RunState, Slot, Worker


def outstanding(state: RunState) -> tuple[Decision, ...]:
    """
    Everything that is wanted and not known to be done: what a coordinator does that has just started, or that has
    waited long enough for an answer.
    """
    wanted: list[Decision] = []
    if state.wants_place:
        wanted.append(_place(state))
    if state.assignments:
        wanted.append(Reserve(state.reservation, state.assignments))
    if is_proving(state):
        slots = [worker.slot for worker in state.workers if worker.slot is not None]
        wanted.append(Prove(tuple(slot.id for slot in slots), tuple(slot.machine for slot in slots)))
    for worker in state.workers:
        if worker.slot is not None and not worker.slot.lost:
            wanted += _for_slot(state, worker, worker.slot)
    wanted += [
        GiveBack(slot.id, slot.machine, _code(state, slot), slot.leaving_why)
        for slot in state.leaving
        if not slot.accepted
    ]
    return tuple(wanted)


def _place(state: RunState) -> Place:
    held = {slot.machine for slot in held_slots(state)}
    return Place(
        reservation=state.reservation,
        ranks=tuple(worker.rank for worker in state.workers if worker.slot is None),
        keep=tuple(sorted(held)),
        avoid=tuple(sorted(machine for machine, _ in state.avoid)),
        spares=0 if held else state.policy.spares,
    )


def _for_slot(state: RunState, worker: Worker, slot: Slot) -> list[Decision]:
    if state.phase is Phase.ENDING:
        if any_alive(slot):
            return [Stop(slot.id, slot.machine, worker.attempt, state.policy.stop_grace_s)]
        return []
    wanted: list[Decision] = []
    if old_alive(worker):
        wanted.append(Stop(slot.id, slot.machine, worker.attempt - 1, state.policy.stop_grace_s))
    if worker.rank not in state.members:
        return wanted
    if state.phase is Phase.ASSEMBLING and state.recorded and is_usable(slot) and not is_armed(worker):
        wanted.append(Arm(slot.id, slot.machine, worker.rank, worker.attempt))
    seen = attempt_in(slot, worker.attempt)
    if state.phase in (Phase.STARTING, Phase.RUNNING) and seen is not None and seen.state == "armed":
        wanted.append(Start(slot.id, slot.machine, worker.attempt))
    return wanted


def _code(state: RunState, slot: Slot) -> int:
    """
    How the slot's newest attempt ended; 143, as after SIGTERM, for one that never had any or ended unseen. A spare that
    was not needed has done what it was there for.
    """
    if not slot.attempts and state.outcome is Outcome.COMPLETED:
        return 0
    newest = slot.attempts[-1].code if slot.attempts else None
    return 143 if newest is None else newest
