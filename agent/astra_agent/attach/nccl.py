"""NCCL's variables that depend on the tier alone."""

from __future__ import annotations

from collections.abc import Sequence

from astra_agent.attach.edits import Edits, File
from astra_agent.attach.request import Placement
from astra_agent.inventory.model import Gpu, Inventory

TOPOLOGY = "/run/astraeus/nccl-topology.xml"
SOCKET_INTERFACES = "^lo,docker,virbr,veth,cni,wg"

_ALWAYS = (
    ("NCCL_ASYNC_ERROR_HANDLING", "1"),
    ("NCCL_DEBUG", "WARN"),
    ("NCCL_SOCKET_IFNAME", SOCKET_INTERFACES),
    ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
)


def nccl_topology(inventory: Inventory, gpus: Sequence[Gpu]) -> Edits:
    """The topology file of the machine's kind, where it has one: inside a container NCCL would look for it in vain."""
    found = inventory.nccl_topology
    if found is None or not gpus:
        return Edits()
    says_otherwise = "NCCL_TOPO_FILE" in dict(inventory.overrides.env)
    return Edits(env=() if says_otherwise else (("NCCL_TOPO_FILE", TOPOLOGY),), files=(File(TOPOLOGY, found.text),))


def nccl(inventory: Inventory, placement: Placement) -> Edits:
    env = list(_ALWAYS)
    if placement.tier == "ethernet":
        env.append(("NCCL_IB_DISABLE", "1"))
    if placement.tier not in ("machine", "nvlink") and (inventory.rack_scale or inventory.nvlink.key is not None):
        # NCCL would try to share memory across the domain, find no IMEX channel and end, also in its automatic mode.
        env.append(("NCCL_MNNVL_ENABLE", "0"))
    return Edits(env=tuple(env))
