"""
What one attempt gets of its machine: from the inventory as it is now to edits of its container. Values in, values out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from astra_agent.attach import Edits, Placement, Request, attach
from astra_agent.inventory.model import Inventory
from astra_agent.wire import Placed, SlotRequest


def attached(
    inventory: Inventory, request: SlotRequest, placed: Placed, *, is_played: bool, can_raise_memlock: bool
) -> Edits:
    """
    Args:
        is_played: The machine is only simulated: what its inventory names is not on this one, but for device nodes,
            which need not be.
    Raises:
        InvalidRequest: A GPU that the machine does not have.
        HostFault: The machine can't give what the placement promised.
        Conflict: Two sources want different things.
    """
    if not request.gpus and placed.tier in ("machine", "ethernet"):
        return Edits()
    edits = attach(
        inventory,
        Placement(placed.tier, placed.domain, placed.channel),
        Request(
            gpus=request.gpus,
            min_gbps=placed.min_gbps,
            env=request.env,
            cpu_cores=request.cpu_cores,
            shm_bytes=request.shm_bytes,
            memory_bytes=request.memory_bytes,
            can_raise_memlock=can_raise_memlock,
        ),
    )
    return replace(edits, mounts=(), hooks=(), cpus=None, memory_nodes=None) if is_played else edits


def why_down(inventory: Inventory, ports: Sequence[str]) -> str | None:
    """Why a worker that was told to use *ports* must not start; None when they are all up."""
    active = {port.name for port in inventory.ports() if port.is_active}
    down = [name for name in ports if name not in active]
    if not down:
        return None
    are = "is" if len(down) == 1 else "are"
    return f"{', '.join(down)} of {inventory.machine} {are} down, which the worker was told to use"
