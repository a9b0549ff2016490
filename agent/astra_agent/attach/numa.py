"""Processors and memory near the worker's GPUs, and a file that says what is near what."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from astra_agent.attach.edits import Edits, File
from astra_agent.attach.request import Request
from astra_agent.inventory.model import Gpu, Inventory, NumaNode
from astra_agent.inventory.numa import formula
from astra_agent.inventory.order import format_list

TOPOLOGY = "/run/astraeus/topology.json"


def near(inventory: Inventory, gpus: Sequence[Gpu], request: Request) -> Edits:
    """
    A cpuset of the memory nodes that the GPUs are next to: of each node's cores the GPUs' share where that holds as
    many processors as were asked for, else all of them. None where the nodes are not known, where it is the whole
    machine anyway, and where more processors were asked for than are there.
    """
    numbers = {gpu.numa_node for gpu in gpus}
    if not gpus or None in numbers:
        return Edits()
    nodes = [node for node in inventory.numa if node.number in numbers]
    cpus = frozenset(cpu for node in nodes for cpu in node.cpus) | frozenset(cpu for gpu in gpus for cpu in gpu.cpus)
    own = _share(inventory, nodes, gpus)
    if 0 < request.cpu_cores <= len(own):
        cpus = own
    if request.cpu_cores > len(cpus) or cpus >= frozenset(cpu for node in inventory.numa for cpu in node.cpus):
        return Edits()
    return Edits(cpus=cpus, memory_nodes=_memory_nodes(nodes, request) if len(nodes) < len(inventory.numa) else None)


def _share(inventory: Inventory, nodes: Sequence[NumaNode], gpus: Sequence[Gpu]) -> frozenset[int]:
    """
    Whole cores, as many for each of a node's GPUs. Which these are hangs on the GPU alone, and no GPU has two holders:
    so no two workers have a core in common, and nobody has to remember who has which. None where a node's cores are not
    known, or fewer than its GPUs.
    """
    chosen = {gpu.index for gpu in gpus}
    share: set[int] = set()
    for node in nodes:
        owners = [gpu.index for gpu in inventory.gpus if gpu.numa_node == node.number]
        if len(node.cores) < len(owners):
            return frozenset()
        for place, index in enumerate(owners):
            if index in chosen:
                first, end = (len(node.cores) * at // len(owners) for at in (place, place + 1))
                share.update(cpu for core in node.cores[first:end] for cpu in core)
    return frozenset(share)


def _memory_nodes(nodes: Sequence[NumaNode], request: Request) -> frozenset[int] | None:
    """
    Only where all that was asked for fits: a worker that may use more memory than these nodes have would be killed
    while others have plenty. What it allocates from near processors is near in any case.
    """
    sizes = [node.memory_bytes for node in nodes]
    known = sum(size for size in sizes if size is not None)
    if None in sizes or not 0 < request.memory_bytes <= known:
        return None
    return frozenset(node.number for node in nodes)


def topology(inventory: Inventory, gpus: Sequence[Gpu]) -> Edits:
    """
    `/run/astraeus/topology.json`, and the formula that some launchers use instead of it where it gives the same answer:
    it takes the local rank for the index, so the worker has to have all of the machine's GPUs, in order.
    """
    if not gpus:
        return Edits()
    ports = {device.name: [port for port in device.ports if port.is_active] for device in inventory.rdma}
    nearest = dict(inventory.near)
    ranks: list[Mapping[str, object]] = [
        {
            "local_rank": local_rank,
            "gpu": gpu.uuid,
            "index": gpu.index,
            "pci": gpu.pci,
            "numa_node": gpu.numa_node,
            "cpus": format_list(gpu.cpus),
            "ports": [
                port.name
                for name in nearest.get(gpu.index, ())
                for port in ports[name]
                if port.name in inventory.training
            ],
        }
        for local_rank, gpu in enumerate(gpus)
    ]
    each, right = formula(tuple(gpu.numa_node for gpu in inventory.gpus), inventory.numa)
    whole = [gpu.index for gpu in gpus] == [gpu.index for gpu in inventory.gpus]
    return Edits(
        env=(("NVRX_GPUS_PER_NUMA", str(each)),) if right and whole and not inventory.lost else (),
        files=(File(TOPOLOGY, _document(inventory.machine, ranks)),),
    )


def _document(machine: str, ranks: Sequence[Mapping[str, object]]) -> str:
    """JSON with a line for each rank."""
    lines = ",\n".join(f"  {json.dumps(rank)}" for rank in ranks)
    return f'{{"machine": {json.dumps(machine)}, "local_ranks": [\n{lines}\n]}}\n'
