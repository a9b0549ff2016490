"""
What a worker gets of its machine, as edits of its container's spec. Pure: inventory, placement, request in, edits out.

`attach` never looks at the machine: whatever it needs is in the inventory. A kind of device is a module here and a line
in `attach`.
"""

from __future__ import annotations

from dataclasses import replace

from astra_agent.attach.applying import apply
from astra_agent.attach.edits import Edits, merge
from astra_agent.attach.gpu import chosen, gpu
from astra_agent.attach.imex import imex
from astra_agent.attach.nccl import nccl, nccl_topology
from astra_agent.attach.numa import near, topology
from astra_agent.attach.rdma import rdma
from astra_agent.attach.request import Placement, Request
from astra_agent.attach.shm import shm
from astra_agent.inventory.model import Inventory

__all__ = ["Edits", "Placement", "Request", "apply", "attach", "merge"]


def attach(inventory: Inventory, placement: Placement, request: Request) -> Edits:
    """
    Everything that one worker gets. None of the user's own variables is in it (rule 7).

    Raises:
        InvalidRequest: It asks for a GPU that the machine does not have, or twice for one.
        HostFault: The machine can't give what the placement promised; the sentence says what and why.
        Conflict: Two sources want different things, such as two CDI files.
    """
    gpus = chosen(inventory, request.gpus)
    edits = merge(
        gpu(inventory, gpus),
        nccl(inventory, placement),
        nccl_topology(inventory, gpus),
        rdma(inventory, placement, request) if placement.tier in ("infiniband", "rdma") else Edits(),
        imex(inventory, placement) if placement.tier == "nvlink" else Edits(),
        shm(gpus, request),
        near(inventory, gpus, request),
        topology(inventory, gpus),
    )
    return replace(edits, env=tuple(pair for pair in edits.env if pair[0] not in request.env))
