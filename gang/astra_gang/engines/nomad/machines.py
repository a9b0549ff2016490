"""
Machines as placement sees them: a node of the pool, what its agent says of it, less what the book and others hold.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from astra_agent.wire import MachineFacts
from astra_gang.engine import Machine
from astra_gang.engines.book import BookEntry, free
from astra_gang.engines.nomad.answers import DRIVER, Allocation, Node
from astra_gang.engines.nomad.job import shares_per_core


@dataclass(frozen=True, slots=True)
class Sighting:
    """
    What there is to know of one machine.

    Attributes:
        facts: Its agent's; None when no agent of it has been heard since this coordinator started.
        entries: The book's, of this machine.
        others: Allocations on it that are not of the book, which take room as well.
    """

    node: Node
    facts: MachineFacts | None
    connected: bool
    entries: tuple[BookEntry, ...] = ()
    others: tuple[Allocation, ...] = ()
    silent: bool = False


def machine(seen: Sighting) -> Machine:
    facts = seen.facts if seen.facts is not None else _facts_of(seen.node)
    found = free(facts, seen.entries, connected=seen.connected, silent=seen.silent)
    found = _less(found, seen)
    return replace(found, out_of_use=found.out_of_use or closed(seen.node, facts.name))


def closed(node: Node, name: str) -> str | None:
    """Why Nomad would put nothing new on this node, in a sentence; None when it would."""
    driver = node.drivers.get(DRIVER)
    if node.draining:
        return f"{name} is being drained"
    if node.status != "ready":
        return f"{name} is {node.status or 'unknown'} in Nomad"
    if node.eligibility != "eligible":
        what = "has been drained" if node.last_drain.status == "complete" else "is not eligible"
        return f"{name} {what}: nomad node eligibility -enable {node.id[:8]} makes it eligible again"
    if driver is None or not driver.detected:
        return f"{name} has no task driver {DRIVER}: install it there and restart Nomad's client"
    if not driver.healthy:
        return f"the task driver {DRIVER} of {name} is not healthy: {driver.description}"
    return None


def leaving(node: Node) -> str | None:
    """Why what runs on this node has to go elsewhere, in a sentence; None when it may stay."""
    return f"{node.machine} is being drained" if node.draining else None


def others_by_node(allocations: Iterable[Allocation], ours: Mapping[str, object]) -> dict[str, list[Allocation]]:
    """
    Args:
        ours: By ID of the allocations that the book stands for.
    """
    found: dict[str, list[Allocation]] = {}
    for allocation in allocations:
        if not allocation.is_over and allocation.id not in ours:
            found.setdefault(allocation.node, []).append(allocation)
    return found


def _facts_of(node: Node) -> MachineFacts:
    """What Nomad knows of a machine whose agent has not spoken."""
    cpu, memory = node.resources.cpu, node.resources.memory
    return MachineFacts(
        name=node.machine, address=node.address, cpu_cores=float(cpu.cores), memory_bytes=memory.mb * 2**20
    )


def _less(found: Machine, seen: Sighting) -> Machine:
    """Less what others hold, and what Nomad's client keeps for the machine itself."""
    tasks = [task for allocation in seen.others for task in allocation.resources.tasks.values()]
    reserved = seen.node.reserved
    per_core = shares_per_core(seen.node)
    shares = reserved.cpu.shares + sum(task.cpu.shares for task in tasks)
    megabytes = reserved.memory.mb + sum(task.memory.mb for task in tasks)
    taken = {gpu for task in tasks for device in task.devices for gpu in device.ids}
    held = {gpu.index for gpu in found.facts.gpus if gpu.uuid in taken}
    return replace(
        found,
        free_cpu_cores=round(found.free_cpu_cores - (shares / per_core if per_core else 0.0), 6),
        free_memory_bytes=found.free_memory_bytes - megabytes * 2**20,
        free_gpus=tuple(gpu for gpu in found.free_gpus if gpu not in held),
    )
