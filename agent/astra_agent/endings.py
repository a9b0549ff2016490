"""How a slot ends: by its own program, or with the code that somebody has said. Values in, values out."""

from __future__ import annotations

from astra_agent.records import Ending, SlotRecord, Tombstone
from astra_agent.status import exit_sentence

NEVER_RAN = 125
"""The code of a slot whose program could not be started."""
UNKNOWN = 1
"""The code of a program that ended while nobody could see how; the reason says so."""
_STOPPED = 143


def own_ending(record: SlotRecord) -> Ending | None:
    """How a slot that starts by itself ends by itself; None while there is no reason to."""
    if record.phase == "failed":
        return Ending(NEVER_RAN, record.detail)
    attempt = record.attempt(record.newest)
    if attempt is None:
        return None
    if attempt.failed is not None:
        return Ending(NEVER_RAN, attempt.failed)
    if attempt.exit is None:
        return None
    reason = exit_sentence(attempt, attempt.exit, record.request.memory_bytes)
    code = attempt.exit.code if attempt.exit.code is not None else UNKNOWN
    return Ending(_STOPPED if attempt.exit.never_started else code, reason, attempt.exit.oom)


def tombstone(record: SlotRecord) -> Tombstone:
    """Of a slot of which nothing is left. Who ended it may have left the code to its program."""
    ending = record.ending or Ending(UNKNOWN, "")
    own = own_ending(record) if ending.code is None else None
    return Tombstone(
        code=own.code if own is not None and own.code is not None else _STOPPED if ending.code is None else ending.code,
        reason=(own.reason if own is not None else "") or ending.reason,
        oom=own.oom if own is not None else ending.oom,
        incarnation=record.request.incarnation,
        newest=max(record.newest, record.first - 1),
    )
