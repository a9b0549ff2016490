"""
The port between the coordinator and what holds machines and places slots.

Adapters: `astra_gang.engines.embedded`, and Nomad's later. The words of an engine ("alloc", "node") stop in it.
`tests/contract/test_engine.py` is the suite that every adapter passes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from astra_agent.wire import MachineFacts, SlotRequest


@dataclass(frozen=True, slots=True)
class Machine:
    """
    A machine as placement sees it: what it has, less what slots hold.

    Attributes:
        connected: Its agent has a link to the coordinator now.
        silent: It has one, and has not been heard over it for a while: it may be cut off, so nothing new goes there.
        out_of_use: A sentence when nothing new may be placed here, else None.
    """

    facts: MachineFacts
    free_cpu_cores: float
    free_memory_bytes: int
    free_gpus: tuple[int, ...]
    slots: tuple[str, ...]
    connected: bool
    out_of_use: str | None = None
    silent: bool = False


@dataclass(frozen=True, slots=True)
class SlotOffer:
    """One slot of a reservation: the machine that was chosen, and what its agent is to prepare."""

    machine: str
    request: SlotRequest


@dataclass(frozen=True, slots=True)
class Held:
    """A slot in the engine's book. *leaving*: given back, but its processes are not known to be gone yet."""

    slot: str
    machine: str
    leaving: bool


class Engine(Protocol):
    async def machines(self) -> tuple[Machine, ...]:
        """One consistent snapshot, sorted by name."""
        ...

    async def reserve(self, reservation: str, offers: tuple[SlotOffer, ...]) -> None:
        """
        Hold exactly these machines' resources, all or none, then hand each slot to its machine's agent.

        Recorded before it is done. Idempotent by *reservation* (`<run uid>/<n>`): asked again, it goes on where it was.
        Returns once every agent has accepted its slot.

        Raises:
            NoCapacity: one sentence which machine lacks what; nothing of this call is held any more.
            Unavailable: an agent could not be asked; nothing of this call is held any more (it is leaving).
        """
        ...

    async def give_back(self, slot: str, code: int, reason: str) -> None:
        """
        Take the slot back. Recorded before it returns; the resources are free once the machine's agent has confirmed
        that no process of it is left (at once for a machine that has been booted since). Idempotent; an unknown slot is
        remembered as given back, so that a reservation that is still under way can't bring it to life.
        """
        ...

    async def held(self) -> tuple[Held, ...]: ...

    def trouble(self, reservation: str) -> str | None:
        """A sentence, while a `reserve` that is under way waits for somebody who refuses or does not answer."""
        ...
