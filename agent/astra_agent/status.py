"""What a slot's record says to others: the wire's status, with the sentences that a user reads. Nothing but values."""

from __future__ import annotations

from dataclasses import dataclass

from astra_agent.records import AttemptRecord, ExitRecord, SlotRecord
from astra_agent.wire import AttemptState, AttemptStatus, SlotPhase, SlotStatus

_MIB = 1024**2
_GIB = 1024**3
_SIGNALS = 65
"""Linux has them from 1 to 64."""


@dataclass(frozen=True, slots=True)
class Seen:
    """
    What is known of a slot beyond its record, for as long as this agent lives.

    Attributes:
        rev: Of this status.
        progress: What preparing does just now.
        away: The sentence while containerd does not answer.
        stopping: Attempts that are being stopped.
        stuck: The sentence of the oldest attempt that does not die.
    """

    rev: int
    progress: str = ""
    away: str | None = None
    stopping: frozenset[int] = frozenset()
    stuck: str | None = None


def slot_status(record: SlotRecord, seen: Seen) -> SlotStatus:
    request = record.request
    detail, fault = record.detail, record.fault
    if record.ending is not None:
        detail = record.ending.reason or "Finishing"
    elif record.phase == "preparing" or not detail:
        detail = seen.away or seen.progress or detail
    return SlotStatus(
        slot=request.slot,
        rev=seen.rev,
        run=request.run,
        worker=request.worker,
        phase=_phase(record),
        detail=detail,
        fault=fault,
        address=record.prepared.address if record.prepared else None,
        port=(record.prepared.port or None) if record.prepared else None,
        term=record.term,
        attempts=tuple(_attempt_status(record, attempt, seen) for attempt in record.attempts),
        arm_failed=record.arm_failed,
        stuck=seen.stuck,
        engine_ref=request.engine_ref,
        incarnation=request.incarnation,
        starts=request.starts,
        told=record.told,
        called=request.called,
    )


def _phase(record: SlotRecord) -> SlotPhase:
    return "finished" if record.ending is not None else record.phase


def _attempt_status(record: SlotRecord, attempt: AttemptRecord, seen: Seen) -> AttemptStatus:
    ended = attempt.exit
    return AttemptStatus(
        attempt=attempt.number,
        state=attempt_state(attempt, stopping=attempt.number in seen.stopping),
        code=ended.code if ended else None,
        code_unknown=ended is not None and ended.code is None and not ended.never_started,
        oom=ended is not None and ended.oom,
        detail=exit_sentence(attempt, ended, record.request.memory_bytes) if ended else seen.away or "",
        fault="machine" if attempt.stop is not None and attempt.stop.why else None,
    )


def attempt_state(attempt: AttemptRecord, *, stopping: bool) -> AttemptState:
    if attempt.exit is not None:
        return "exited"
    if stopping:
        return "stopping"
    if attempt.started and attempt.failed is None:
        return "running"
    return "armed" if attempt.armed else "arming"


def exit_sentence(attempt: AttemptRecord, ended: ExitRecord, memory_bytes: int) -> str:
    """How an attempt ended, when its code alone does not say it; else empty."""
    if attempt.stop is not None and attempt.stop.why:
        return attempt.stop.why
    if ended.never_started:
        return "Stopped before it was started"
    if ended.oom:
        return f"Out of memory (limit {size(memory_bytes)})" if memory_bytes else "Out of memory"
    if attempt.stop is not None and ended.killed:
        return f"Killed: it did not end within {attempt.stop.grace_s:g} s of SIGTERM"
    if ended.code is None:
        return "Ended, code unknown"
    if is_signal(ended.code):
        return f"Killed by signal {ended.code - 128}"
    return ""


def is_signal(code: int) -> bool:
    return 128 < code < 128 + _SIGNALS


def size(size_bytes: int) -> str:
    """`2 GiB`, `512 MiB`, `1.5 GiB`: the way people write limits."""
    unit, name = (_GIB, "GiB") if size_bytes >= _GIB else (_MIB, "MiB")
    return f"{size_bytes / unit:.2f}".rstrip("0").rstrip(".") + f" {name}"
