"""Locked memory, which registering memory with a card needs."""

from __future__ import annotations

from astra_agent.attach.edits import UNLIMITED, Edits, Rlimit
from astra_agent.attach.request import Request

IPC_LOCK = "CAP_IPC_LOCK"


def memlock(request: Request) -> Edits:
    """
    The limit and the capability: some programs look at the limit alone. Where the runtime can't raise it, the
    capability, which is ambient, does the same.
    """
    limits = (Rlimit("RLIMIT_MEMLOCK", UNLIMITED, UNLIMITED),) if request.can_raise_memlock else ()
    return Edits(rlimits=limits, capabilities=(IPC_LOCK,))
