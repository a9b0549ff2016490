"""NCCL's variables that depend on the tier alone."""

from __future__ import annotations

from astra_agent.attach.edits import Edits
from astra_agent.attach.request import Placement
from astra_agent.inventory.model import Inventory

SOCKET_INTERFACES = "^lo,docker,virbr,veth,cni,wg"

_ALWAYS = (
    ("NCCL_ASYNC_ERROR_HANDLING", "1"),
    ("NCCL_DEBUG", "WARN"),
    ("NCCL_SOCKET_IFNAME", SOCKET_INTERFACES),
    ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
)


def nccl(inventory: Inventory, placement: Placement) -> Edits:
    env = list(_ALWAYS)
    if placement.tier == "ethernet":
        env.append(("NCCL_IB_DISABLE", "1"))
    if placement.tier not in ("machine", "nvlink") and (inventory.rack_scale or inventory.nvlink.key is not None):
        # NCCL would try to share memory across the domain, find no IMEX channel and end, also in its automatic mode.
        env.append(("NCCL_MNNVL_ENABLE", "0"))
    return Edits(env=tuple(env))
