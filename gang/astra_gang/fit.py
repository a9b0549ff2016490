"""
Whether a worker fits on a machine, and which domain it is in there at each tier.

Placement asks this of every machine of the cluster; `lack` gives the same answers in words, for one at a time.

A tier is reached over ports of its own kind, or of a closer one that carries it too: RoCE ports are Ethernet ports.
*min_gbps* is for one port, not for the sum: it is what NCCL's choice of ports goes by. It binds where ports carry the
traffic; NVLink and the inside of a machine are faster than any port. A machine whose facts list no port of a tier is
taken at the word of its domain, unless a speed is asked for.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from astra_gang.engine import Machine
from astra_gang.quantities import rough_size
from astra_gang.shape import Shape

Tier = Literal["machine", "nvlink", "infiniband", "rdma", "ethernet"]

TIERS: tuple[Tier, ...] = ("machine", "nvlink", "infiniband", "rdma", "ethernet")
"""Tightest first."""
OPEN_ETHERNET = "cluster"
"""The Ethernet domain of machines that name none: a cluster's machines reach each other unless it is said otherwise."""

_PORTS: dict[Tier, frozenset[str]] = {
    "infiniband": frozenset({"infiniband"}),
    "rdma": frozenset({"rdma", "infiniband"}),
    "ethernet": frozenset({"ethernet", "rdma"}),
}
PORT_TIERS: frozenset[Tier] = frozenset(_PORTS)
"""Tiers whose traffic goes over ports: where *min_gbps* binds."""
_NAMES: dict[Tier, str] = {
    "machine": "machine",
    "nvlink": "NVLink domain",
    "infiniband": "InfiniBand fabric",
    "rdma": "RDMA pod",
    "ethernet": "Ethernet network",
}
_PORT_NAMES: dict[Tier, str] = {"infiniband": "InfiniBand", "rdma": "RDMA", "ethernet": "Ethernet"}


@dataclass(frozen=True, slots=True)
class Request:
    """
    What a gang asks of its machines.

    Attributes:
        shapes: In order of preference; never empty.
        interconnect: The loosest tier that will do, or None for any.
        min_gbps: What one port must reach at least, or 0.
        drives: Names of drives that every machine must have.
        spares: Machines beside those of a whole gang, each able to take the place of any of them.
    """

    shapes: tuple[Shape, ...]
    interconnect: str | None = None
    min_gbps: float = 0.0
    drives: tuple[str, ...] = ()
    spares: int = 0

    def wanted(self, shape: Shape) -> int:
        """How many machines a whole gang of this shape takes, with its spares."""
        return shape.machines + self.spares


def tiers(request: Request) -> tuple[Tier, ...]:
    """The tiers that will do, tightest first."""
    for last, tier in enumerate(TIERS):
        if tier == request.interconnect:
            return TIERS[: last + 1]
    return TIERS


def tier_name(tier: Tier) -> str:
    return _NAMES[tier]


def usable(machine: Machine, drives: Collection[str], avoid: Collection[str]) -> bool:
    """Whether anything of this run may come here at all."""
    facts = machine.facts
    return (
        machine.connected
        and not machine.silent
        and machine.out_of_use is None
        and facts.out_of_use is None
        and facts.name not in avoid
        and all(drive in facts.drives for drive in drives)
    )


def fits(machine: Machine, shape: Shape) -> bool:
    """Whether enough of the machine is free for a worker of this shape."""
    return (
        len(machine.free_gpus) >= shape.gpus
        and machine.free_cpu_cores >= shape.cpu_cores
        and machine.free_memory_bytes >= shape.memory_bytes
    )


def could_fit(machine: Machine, shape: Shape, drives: Collection[str]) -> bool:
    """Whether it would fit if nothing ran here and the machine were there: tells "not now" from "never"."""
    facts = machine.facts
    return (
        len(facts.gpus) >= shape.gpus
        and facts.cpu_cores >= shape.cpu_cores
        and facts.memory_bytes >= shape.memory_bytes
        and all(drive in facts.drives for drive in drives)
    )


def domain(machine: Machine, tier: Tier, min_gbps: float) -> str | None:
    """The domain that the machine can be used in at this tier; None when there is none, or no port is good enough."""
    facts = machine.facts
    if tier == "machine":
        return facts.name
    if tier == "nvlink":
        return facts.domains.get(tier)
    name = facts.domains.get(tier) or (OPEN_ETHERNET if tier == "ethernet" else None)
    if name is None or not _has_port(machine, tier, min_gbps):
        return None
    return name


def nearness(machine: Machine, request: Request, shape: Shape, tier: Tier, avoid: Collection[str]) -> int | None:
    """How near a worker of this shape comes to fitting, higher is nearer; None when it fits. `lack` says why not."""
    if any(drive not in machine.facts.drives for drive in request.drives):
        return 0
    if domain(machine, tier, request.min_gbps) is None:
        return 1
    if not usable(machine, (), avoid):
        return 2
    return None if fits(machine, shape) else 3


def lack(machine: Machine, request: Request, shape: Shape, tier: Tier, avoid: Collection[str]) -> str:
    """What keeps a worker of this shape off the machine: `3 of its 8 GPUs free`."""
    facts = machine.facts
    out_of_use = machine.out_of_use or facts.out_of_use
    missing = next((drive for drive in request.drives if drive not in facts.drives), None)
    if missing is not None:
        return f"no drive {missing}"
    if domain(machine, tier, request.min_gbps) is None:
        return _lacks_domain(machine, tier, request.min_gbps)
    if out_of_use is not None:
        return f"out of use: {out_of_use.rstrip('.')}"
    if not machine.connected:
        return "not connected"
    if machine.silent:
        return "it does not answer"
    if facts.name in avoid:
        return "failed this run a short while ago"
    if len(machine.free_gpus) < shape.gpus:
        return f"{len(machine.free_gpus)} of its {len(facts.gpus)} GPUs free"
    if machine.free_cpu_cores < shape.cpu_cores:
        return f"{machine.free_cpu_cores:g} of its {facts.cpu_cores:g} CPU cores free"
    return f"{rough_size(machine.free_memory_bytes)} of its {rough_size(facts.memory_bytes)} of memory free"


def _lacks_domain(machine: Machine, tier: Tier, min_gbps: float) -> str:
    if tier not in _PORTS or (tier != "ethernet" and tier not in machine.facts.domains):
        return f"in no {_NAMES[tier]}"
    speeds = [port.gbps for port in machine.facts.ports if port.up and port.tier in _PORTS[tier]]
    if not speeds:
        return f"no {_PORT_NAMES[tier]} port that is up"
    return f"its fastest {_PORT_NAMES[tier]} port has {max(speeds):g} Gb/s, and min_gbps is for one port"


def _has_port(machine: Machine, tier: Tier, min_gbps: float) -> bool:
    kinds = _PORTS[tier]
    if not min_gbps and tier == "ethernet":
        return True
    listed = False
    for port in machine.facts.ports:
        if port.tier in kinds:
            if port.up and port.gbps >= min_gbps:
                return True
            listed = True
    return not listed and not min_gbps
