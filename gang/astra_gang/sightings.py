"""
From what agents say, and from their silence, to events of the core. Values in, values out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from astra_agent.wire import SlotStatus
from astra_gang.core import AttemptSeen, RunState, Slot, SlotSeen
from astra_gang.core.slots import held_slots

PUT_GRACE_S = 60.0
"""
A hello may have been written just before its agent took a slot. So a slot that its agent has never spoken of is missed
only when it was asked for this long ago; a report about it comes within seconds.
"""


def slot_seen(status: SlotStatus) -> SlotSeen:
    return SlotSeen(
        slot=status.slot,
        rev=status.rev,
        phase=status.phase,
        detail=status.detail,
        fault=status.fault,
        address=status.address,
        port=status.port,
        attempts=tuple(
            AttemptSeen(
                attempt=a.attempt,
                state=a.state,
                code=a.code,
                code_unknown=a.code_unknown,
                oom=a.oom,
                detail=a.detail,
                fault=a.fault,
            )
            for a in status.attempts
        ),
        arm_failed=status.arm_failed,
        stuck=status.stuck,
        incarnation=status.incarnation,
    )


def slots_of(state: RunState) -> Iterator[Slot]:
    """The slots that the run holds, spares among them, and that are not known to be lost."""
    yield from (slot for slot in held_slots(state) if not slot.lost)


def watched(state: RunState) -> Iterator[Slot]:
    """The slots whose machines matter to this run: those that it holds, and those let go in which something may run."""
    yield from slots_of(state)
    yield from (slot for slot in state.leaving if not slot.lost)


def is_on(state: RunState, machine: str) -> bool:
    return any(slot.machine == machine for slot in watched(state))


def missing(state: RunState, machine: str, known: Collection[str], now: float) -> list[str]:
    """
    Slots of this run that the agent of *machine* should have and does not.

    Args:
        known: What this agent, which has a link, has.
    """
    being_put = {assignment.slot for assignment in state.assignments}
    return [
        slot.id
        for slot in watched(state)
        if slot.machine == machine
        and slot.id not in known
        and slot.id not in being_put
        and (slot.rev >= 0 or now >= slot.asked_at + PUT_GRACE_S)
    ]


def missing_due(state: RunState, machine: str, known: Collection[str]) -> float | None:
    """When `missing` will next find a slot that it does not find before; None when it won't."""
    being_put = {assignment.slot for assignment in state.assignments}
    return min(
        (
            slot.asked_at + PUT_GRACE_S
            for slot in slots_of(state)
            if slot.machine == machine and slot.id not in known and slot.id not in being_put
        ),
        default=None,
    )


def lost_at(state: RunState, heard_at: float, limit_s: float, margin_s: float) -> float:
    """
    When the workers of this run on a machine without a link count as stopped.

    The agent counts its limit from when it sent the last lease that was answered, which is before *heard_at*, when the
    last lease came in. It then gives each worker its grace time; *margin_s* is for the rest.
    """
    return heard_at + limit_s + state.policy.stop_grace_s + margin_s
