"""
The book of the embedded engine: which slot holds what on which machine. Values only; the store keeps them.

A slot is `held` from the moment its reservation is recorded, before its agent hears of it; `leaving` from the moment it
is given back until its agent has said that nothing of it is left; then `gone`, a tombstone that keeps a late
reservation from bringing it to life. Held and leaving slots both take their resources.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from astra_agent.wire import MachineFacts, SlotRequest
from astra_gang.engine import Machine, SlotOffer

TOMBSTONE_KEPT_S = 86400.0
"""A reservation is under way for minutes at most; a day is plenty."""


class Hold(StrEnum):
    HELD = "held"
    LEAVING = "leaving"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class BookEntry:
    """
    Attributes:
        machine: None for a slot that was given back before it was ever reserved.
        request: None for a slot that this book did not hand out: what it holds is not known.
        since: When *hold* became what it is, seconds on the cluster's clock.
        code: How the worker ended, for the agent; set with `leaving`.
    """

    slot: str
    machine: str | None
    reservation: str
    request: SlotRequest | None
    hold: Hold
    since: float
    code: int = 0
    reason: str = ""


def free(facts: MachineFacts, entries: Iterable[BookEntry], *, connected: bool, silent: bool = False) -> Machine:
    """
    What *facts* leave after the slots of this machine.

    Args:
        entries: All entries of this machine; those that are gone take nothing.
    """
    taken = [entry for entry in entries if entry.hold is not Hold.GONE]
    requests = [entry.request for entry in taken if entry.request is not None]
    used_gpus = {gpu for request in requests for gpu in request.gpus}
    unknown = next((entry.slot for entry in taken if entry.request is None), None)
    out_of_use = facts.out_of_use
    if out_of_use is None and unknown is not None:
        out_of_use = f"{facts.name} has slot {unknown}, which this coordinator did not hand out; it is being removed"
    return Machine(
        facts=facts,
        free_cpu_cores=round(facts.cpu_cores - sum(request.cpu_cores for request in requests), 6),
        free_memory_bytes=facts.memory_bytes - sum(request.memory_bytes for request in requests),
        free_gpus=tuple(gpu.index for gpu in facts.gpus if gpu.index not in used_gpus),
        slots=tuple(sorted(entry.slot for entry in taken)),
        connected=connected,
        silent=silent,
        out_of_use=out_of_use,
    )


def lack(machine: Machine, offer: SlotOffer) -> str | None:
    """One sentence what *machine* lacks for *offer*; None when it fits."""
    name, request = machine.facts.name, offer.request
    if machine.out_of_use is not None:
        return f"{name} is out of use: {machine.out_of_use}"
    if not machine.connected:
        return f"{name} is not connected"
    if machine.silent:
        return f"{name} does not answer"
    missing = [gpu for gpu in request.gpus if gpu not in machine.free_gpus]
    if missing:
        return f"GPU {missing[0]} of {name} is not free"
    if request.cpu_cores > machine.free_cpu_cores:
        return f"{name} has {machine.free_cpu_cores:g} CPU cores free; {request.worker} needs {request.cpu_cores:g}"
    if request.memory_bytes > machine.free_memory_bytes:
        return (
            f"{name} has {machine.free_memory_bytes} bytes of memory free; "
            f"{request.worker} needs {request.memory_bytes}"
        )
    return None
