"""
What one attempt gets of its machine: from the inventory as it is now to edits of its container. Values in, values out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from astra_agent.attach import Edits, Placement, Request, attach
from astra_agent.errors import HostFault
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
    lacks = _why_no_connection_manager(inventory, placed)
    if lacks is not None:
        raise HostFault(lacks)
    return replace(edits, mounts=(), hooks=(), cpus=None, memory_nodes=None) if is_played else edits


def _why_no_connection_manager(inventory: Inventory, placed: Placed) -> str | None:
    """
    NCCL does without it; UCX, NVSHMEM and storage clients fail in the midst of their start, with a sentence that names
    neither machine nor cause. What `attach` gives stays what the machine has, so that captured machines compare.
    """
    if placed.tier not in ("infiniband", "rdma") or inventory.transport == "efa" or inventory.rdma_cm is not None:
        return None
    return (
        f"/dev/infiniband/rdma_cm is not on {inventory.machine}, and programs connect over {placed.tier} through it: "
        "modprobe rdma_ucm"
    )


def training_up(inventory: Inventory) -> tuple[str, ...]:
    """Names of the training ports that are active."""
    return tuple(port.name for port in inventory.ports() if port.name in inventory.training and port.is_active)


def why_fewer(inventory: Inventory, came_with: Sequence[str], request: SlotRequest, placed: Placed) -> str | None:
    """
    Why a worker must not be armed over fewer ports than its run was placed by; None when it has them all, or chooses
    for itself.
    """
    if placed.tier not in ("infiniband", "rdma") or "NCCL_IB_HCA" in request.env:
        return None
    left = {*training_up(inventory), *(name for name, _ in inventory.excluded)}
    down = [name for name in came_with if name not in left]
    if not down:
        return None
    have = "has" if len(down) == 1 else "have"
    return f"{', '.join(down)} of {inventory.machine} {have} gone down since {request.worker} was placed there"


def why_down(inventory: Inventory, ports: Sequence[str]) -> str | None:
    """Why a worker that was told to use *ports* must not start; None when they are all up."""
    active = {port.name for port in inventory.ports() if port.is_active}
    down = [name for name in ports if name not in active]
    if not down:
        return None
    are = "is" if len(down) == 1 else "are"
    return f"{', '.join(down)} of {inventory.machine} {are} down, which the worker was told to use"
