"""The machine's memory nodes, and which of them a GPU is next to."""

from __future__ import annotations

import re

from astra_agent.inventory.library import GpuReading
from astra_agent.inventory.model import NumaNode, PciFunction
from astra_agent.inventory.order import parse_list
from astra_agent.inventory.tree import Reader

_NODES = "/sys/devices/system/node"
_CPUS = "/sys/devices/system/cpu"


def read_nodes(reader: Reader) -> tuple[NumaNode, ...]:
    """
    Nodes with processors. Grace shows each GPU's memory as a node of its own, without processors: never one of these.
    """
    folders = _folders(reader)
    if not folders:
        return ()
    with_cpus = reader.parsed(f"{_NODES}/has_cpu", "NUMA", "which nodes have processors", parse_list)
    with_memory = reader.parsed(f"{_NODES}/has_memory", "NUMA", "which nodes have memory", parse_list)
    nodes = []
    for number in folders if with_cpus is None else sorted(with_cpus):
        cpus = reader.parsed(f"{_NODES}/node{number}/cpulist", f"NUMA node {number}", "its processors", parse_list)
        if cpus is None or cpus:
            has_memory = with_memory is None or number in with_memory
            cores = _cores(reader, cpus or frozenset())
            nodes.append(NumaNode(number, cpus or frozenset(), has_memory, _memory_bytes(reader, number), cores))
    return tuple(nodes)


def _cores(reader: Reader, cpus: frozenset[int]) -> tuple[frozenset[int], ...]:
    """Processors that share a core, by the first of each; none where one of them does not say."""
    cores: list[frozenset[int]] = []
    left = set(cpus)
    for cpu in sorted(cpus):
        if cpu not in left:
            continue
        text = reader.may(f"{_CPUS}/cpu{cpu}/topology/thread_siblings_list", f"processor {cpu}", "which share its core")
        shared = parse_list(text) if text is not None else None
        if not shared or cpu not in shared:
            return ()
        cores.append(shared & cpus)
        left -= shared
    return tuple(cores)


def _memory_bytes(reader: Reader, number: int) -> int | None:
    text = reader.may(f"{_NODES}/node{number}/meminfo", f"NUMA node {number}", "how much memory it has")
    match = re.search(r"MemTotal: *([0-9]{1,15}) kB", text or "")
    return int(match[1]) * 1024 if match else None


def read_online(reader: Reader, nodes: tuple[NumaNode, ...]) -> frozenset[int]:
    """All of the machine's processors that are in use."""
    online = reader.parsed("/sys/devices/system/cpu/online", "processors", "which of them are online", parse_list)
    return online if online is not None else frozenset(cpu for node in nodes for cpu in node.cpus)


def next_to(
    gpu: GpuReading, function: PciFunction | None, nodes: tuple[NumaNode, ...], online: frozenset[int]
) -> tuple[int | None, frozenset[int]]:
    """
    The node that a GPU is next to, and its processors.

    The function's own files come first, then what the driver says; a node without processors is its memory, not its
    place. When nothing says, the node is None, unless the machine has only one, and the processors are all.
    """
    by_number = {node.number: node for node in nodes}
    if function is not None and function.numa_node in by_number:
        node = by_number[function.numa_node]
        return node.number, function.cpus or node.cpus
    said = [number for number in gpu.memory_nodes or () if number in by_number]
    told = (parse_list(gpu.cpus) if gpu.cpus is not None else None) or frozenset()
    for node in nodes:
        if not said and told and told <= node.cpus:
            said = [node.number]
    if said and (len(said) == 1 or told <= by_number[said[0]].cpus):
        return said[0], told or by_number[said[0]].cpus
    if len(nodes) == 1:
        return nodes[0].number, nodes[0].cpus
    return None, online


def formula(gpu_nodes: tuple[int | None, ...], nodes: tuple[NumaNode, ...]) -> tuple[int, bool]:
    """
    GPUs for each node, and whether `local rank // that` gives every GPU's node. The rank is taken as the index, as the
    formula's users do; a worker that has a part of the machine's GPUs can't use it even where it is right.
    """
    each = max(1, len(gpu_nodes) // max(1, len(nodes)))
    return each, all(index // each == node for index, node in enumerate(gpu_nodes))


def _folders(reader: Reader) -> list[int]:
    matches = (re.fullmatch(r"node([0-9]{1,5})", name) for name in reader.root.names(_NODES))
    return [int(match[1]) for match in matches if match]
