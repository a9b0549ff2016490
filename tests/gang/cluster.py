"""Machines and runs for the tests of the pure parts."""

from __future__ import annotations

from typing import Any

from astra_agent.wire import GpuFacts, MachineFacts, PortFacts
from astra_gang.core.state import Policy, RunState, Slot, Worker
from astra_gang.engine import Machine

GIB = 2**30


def machine(
    name: str,
    free: int = 8,
    *,
    gpus: int = 8,
    cpu: float = 96,
    memory: int = 1024 * GIB,
    ports: tuple[PortFacts, ...] = (),
    drives: tuple[str, ...] = (),
    connected: bool = True,
    out_of_use: str | None = None,
    **domains: Any,
) -> Machine:
    """A machine of 96 cores and 1 TiB, of whose GPUs the last *free* ones are free."""
    facts = MachineFacts(
        name=name,
        address=f"192.0.2.{sum(map(ord, name)) % 250 + 1}",
        cpu_cores=96,
        memory_bytes=1024 * GIB,
        gpus=tuple(GpuFacts(index=index, uuid=f"{name}-{index}") for index in range(gpus)),
        ports=ports,
        domains=domains,
        drives=drives,
    )
    return Machine(
        facts=facts,
        free_cpu_cores=cpu,
        free_memory_bytes=memory,
        free_gpus=tuple(range(gpus - free, gpus)),
        slots=(),
        connected=connected,
        out_of_use=out_of_use,
    )


def port(tier: Any, gbps: float = 400, *, up: bool = True) -> PortFacts:
    return PortFacts(name=f"{tier}-{gbps:g}", tier=tier, gbps=gbps, up=up)


def placed_run(
    name: str, machines: list[str], *, gpus: int = 0, tier: str = "ethernet", domain: str = "cluster", attempt: int = 0
) -> RunState:
    """A run whose slots are all ready: worker n at 198.51.100.n, port 2950n."""
    workers = tuple(
        Worker(
            rank=rank,
            name=f"{name}-{rank}",
            attempt=attempt,
            slot=Slot(
                id=f"{name}-{rank}-s",
                machine=where,
                gpus=tuple(range(gpus)),
                phase="ready",
                address=f"198.51.100.{rank}",
                port=29500 + rank,
            ),
        )
        for rank, where in enumerate(machines)
    )
    return RunState(
        workspace="default",
        name=name,
        uid="5f0c",
        policy=Policy(),
        workers=workers,
        submitted_at=0.0,
        tier=tier,
        domain=domain,
        attempt=attempt,
    )
