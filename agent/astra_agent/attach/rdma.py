"""RDMA: the training devices' nodes, and the ports that NCCL is to use."""

from __future__ import annotations

from collections.abc import Sequence

from astra_agent.attach.edits import Edits, merge
from astra_agent.attach.gpu import device
from astra_agent.attach.memlock import memlock
from astra_agent.attach.request import Placement, Request
from astra_agent.errors import HostFault
from astra_agent.inventory.model import CharDevice, Inventory, Port, Tier
from astra_agent.inventory.order import natural
from astra_agent.inventory.training import usable


def rdma(inventory: Inventory, placement: Placement, request: Request) -> Edits:
    """
    The nodes are those of all training devices, whatever their state now: a subset is a real filter, which keeps every
    program off storage and management cards. The variable names the ports that are up and fast enough, and only these.

    Raises:
        HostFault: No port will do, or the machine is on another network than the run was placed on.
    """
    ports = ports_for(inventory, placement, request.min_gbps)
    env = dict(inventory.overrides.env)
    if inventory.transport != "efa":
        env["NCCL_IB_HCA"] = nccl_ib_hca(ports)
    nodes = verbs_nodes(inventory)
    return merge(Edits(env=tuple(sorted(env.items()))), memlock(request), *(device(node) for node in nodes))


def ports_for(inventory: Inventory, placement: Placement, min_gbps: float) -> tuple[Port, ...]:
    """Raises: HostFault with the machine, the ports and what would do."""
    tier: Tier = "infiniband" if placement.tier == "infiniband" else "rdma"
    if inventory.domain(tier) is None and tier not in {evidence.tier for evidence in inventory.tiers}:
        raise HostFault(f"{inventory.machine} has no {tier} ports: its network is {inventory.transport}")
    here = inventory.domain(tier)
    if placement.domain is not None and here is not None and here != placement.domain:
        raise HostFault(f"{inventory.machine} is on {here}, the run was placed on {placement.domain}")
    ports = usable(inventory.ports(), inventory.training, min_gbps)
    if not ports:
        raise HostFault(_none_will_do(inventory, min_gbps))
    for port in ports:
        if inventory.device_of(port.name).verbs is None:
            raise HostFault(f"{port.device} of {inventory.machine} has no uverbs node: no worker can open it")
    return ports


def nccl_ib_hca(ports: Sequence[Port]) -> str:
    """
    NCCL's own form: the leading sign makes names exact (`mlx5_1` would take `mlx5_10` too). Never empty: NCCL reads an
    empty list as every device.
    """
    return "=" + ",".join(sorted((port.name for port in ports), key=natural))


def verbs_nodes(inventory: Inventory) -> tuple[CharDevice, ...]:
    """Of the training devices, in order of number, and the connection manager's; EFA has no use for that one."""
    names = {port.device for port in inventory.ports() if port.name in inventory.training}
    verbs = [rdma.verbs for rdma in inventory.rdma if rdma.name in names and rdma.verbs is not None]
    nodes = sorted(verbs, key=lambda node: natural(node.path))
    if inventory.rdma_cm is not None and inventory.transport != "efa":
        nodes.append(inventory.rdma_cm)
    return tuple(nodes)


def _none_will_do(inventory: Inventory, min_gbps: float) -> str:
    active = [port for port in inventory.ports() if port.name in inventory.training and port.is_active]
    if not active:
        return f"no training port of {inventory.machine} is active: {', '.join(inventory.training) or 'it has none'}"
    fastest = max(active, key=lambda port: port.gbps or 0)
    rate = f"{fastest.gbps:g} Gb/s" if fastest.gbps is not None else "a rate that its kernel does not know"
    return (
        f"no port of {inventory.machine} has {min_gbps:g} Gb/s: {fastest.name} is its fastest, with {rate}; min_gbps "
        "is for one port, not for their sum"
    )
