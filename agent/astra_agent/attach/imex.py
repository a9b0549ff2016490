"""The IMEX channel of a run in an NVLink domain."""

from __future__ import annotations

from astra_agent.attach.edits import Edits
from astra_agent.attach.gpu import device
from astra_agent.attach.request import Placement
from astra_agent.errors import HostFault
from astra_agent.inventory.imex import channel, why_not
from astra_agent.inventory.model import Inventory


def imex(inventory: Inventory, placement: Placement) -> Edits:
    """
    Exactly one channel: which one CUDA would open of several is not defined.

    Raises:
        HostFault: The machine is in no NVLink domain or in another one, or has no such channel.
    """
    reason = why_not(inventory.imex, inventory.nvlink)
    if reason is not None or inventory.imex is None:
        raise HostFault(f"{inventory.machine} can't share GPU memory with other machines: {reason}")
    if placement.domain is not None and placement.domain != inventory.nvlink.key:
        raise HostFault(
            f"{inventory.machine} is in NVLink domain {inventory.nvlink.key}, the run was placed in {placement.domain}"
        )
    offered = inventory.imex.channels
    if offered is not None and placement.channel >= offered:
        raise HostFault(f"{inventory.machine} offers IMEX channels 0 to {offered - 1}, the run has {placement.channel}")
    return device(channel(inventory.imex, placement.channel))
