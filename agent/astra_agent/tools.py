"""What every slot of a machine works with, put together once by `astra_agent.agent`."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path

from astra_agent.book import Book
from astra_agent.config import AgentConfig
from astra_agent.errors import Conflict
from astra_agent.logs import Logs
from astra_agent.names import Names
from astra_agent.network import SlotNetworks
from astra_agent.patience import Patience
from astra_agent.records import SlotRecord
from astra_agent.runtime import Containers, Images
from astra_agent.wire import MachineFacts, SlotRequest


@dataclass(slots=True)
class Holdings:
    """What each slot holds exclusively on this machine (rule 3): while it lives, nobody else gets it."""

    gpus: dict[int, str] = field(default_factory=dict)
    ports: dict[int, str] = field(default_factory=dict)
    addresses: dict[str, str] = field(default_factory=dict)
    choosing: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held from looking for something free until it is held."""

    def claim_gpus(self, request: SlotRequest) -> None:
        """Raises: Conflict, and nothing is held."""
        for gpu in request.gpus:
            if self.gpus.get(gpu, request.slot) != request.slot:
                raise Conflict(f"GPU {gpu} is held by slot {self.gpus[gpu]}; wait until that has ended")
        self.gpus.update(dict.fromkeys(request.gpus, request.slot))

    def restore(self, record: SlotRecord) -> None:
        slot = record.request.slot
        self.gpus.update(dict.fromkeys(record.request.gpus, slot))
        if record.prepared is not None and record.request.network is None:
            if record.prepared.port:
                self.ports[record.prepared.port] = slot
            self.addresses[record.prepared.address] = slot

    def release(self, slot: str) -> None:
        self.gpus = {gpu: holder for gpu, holder in self.gpus.items() if holder != slot}
        self.ports = {port: holder for port, holder in self.ports.items() if holder != slot}
        self.addresses = {address: holder for address, holder in self.addresses.items() if holder != slot}


@dataclass(frozen=True, slots=True)
class Tools:
    """
    Attributes:
        facts: What was found at start; *out_of_use* is not in it.
        boot: This boot's ID.
        resolv_conf: Text for containers that ask the machine's own servers.
        own_resolv_conf: The same for a container whose loopback is not the machine's.
        search: The machine's search domains.
        hosts: The machine's /etc/hosts, for the image that brings it along.
    """

    config: AgentConfig
    facts: MachineFacts
    boot: str
    book: Book
    containers: Containers
    images: Images
    patience: Patience
    networks: SlotNetworks
    holdings: Holdings
    logs: Logs
    names: Names
    resolv_conf: str
    own_resolv_conf: str
    search: tuple[str, ...]
    hosts: str

    def slot_folder(self, slot: str) -> Path:
        """Files that the slot's containers see; gone with the slot."""
        return self._slots / slot

    def slots_with_files(self) -> tuple[str, ...]:
        return tuple(path.name for path in self._slots.glob("*"))

    @property
    def _slots(self) -> Path:
        return self.config.state_dir / "slots"
