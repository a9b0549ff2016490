"""What a machine offers, as its agent tells it."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from astra_agent.wire.base import Wire

Tier = Literal["machine", "nvlink", "infiniband", "rdma", "ethernet"]
"""How close machines are, tightest first."""


class GpuFacts(Wire):
    index: int
    uuid: str
    memory_bytes: int = 0
    model: str = ""
    """`H200`, `NVIDIA-H100-80GB-HBM3`; empty: not known."""
    pci_bus_id: str = ""
    """`0000:3b:00.0`; empty: not known."""
    numa_node: int | None = None
    fault: str | None = None
    """A sentence when nothing new may use it, else None."""


class PortFacts(Wire):
    """A network port that training may use."""

    name: str
    tier: Literal["infiniband", "rdma", "ethernet"]
    gbps: float
    up: bool = True


class FindingFacts(Wire):
    """A sentence for the operator about *subject* (`mlx5_3:1`, `GPU 5`, `IMEX`); *fix* is empty where none is known."""

    level: Literal["fault", "warning", "note"]
    subject: str
    sentence: str
    fix: str = ""


class MachineFacts(Wire):
    """
    What a machine offers. *domains* names, for each tier above `machine`, the domain that this machine is in: machines
    with the same tier and domain name reach each other over it.
    """

    name: str
    address: str
    cpu_cores: float
    memory_bytes: int
    gpus: tuple[GpuFacts, ...] = ()
    ports: tuple[PortFacts, ...] = ()
    domains: dict[Literal["nvlink", "infiniband", "rdma", "ethernet"], str] = Field(default_factory=dict)
    drives: tuple[str, ...] = ()
    slot_network: Literal["host", "own"] = "host"
    out_of_use: str | None = None
    """A sentence when no new slot may come here, such as a process that does not die; else None."""
    imex_channels: int = 0
    """IMEX channels, from 0, of which each run in the NVLink domain has one of its own; 0: all share channel 0."""
    findings: tuple[FindingFacts, ...] = ()
    """What does not work as it should."""
