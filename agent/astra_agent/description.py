"""What a machine offers, for those who place runs: from its inventory to `MachineFacts`. Values in, values out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from astra_agent.attach.gpu import chosen, gpu
from astra_agent.errors import AstraError
from astra_agent.inventory.fabric import ANY_ETHERNET
from astra_agent.inventory.imex import why_not
from astra_agent.inventory.model import Inventory
from astra_agent.wire import FindingFacts, GpuFacts, MachineFacts, PortFacts


def describe(machine: MachineFacts, inventory: Inventory) -> MachineFacts:
    """
    *machine* with what *inventory* shows.

    A GPU that no worker could be given is not offered, and neither is a domain that no worker could use: its findings
    say why.
    """
    return machine.model_copy(
        update={
            "gpus": tuple(_gpus(inventory)),
            "ports": tuple(_ports(inventory)),
            "domains": dict(_domains(inventory)),
            "out_of_use": inventory.out_of_use,
            "imex_channels": _own_channels(inventory),
            "findings": tuple(
                FindingFacts(level=found.level, subject=found.subject, sentence=found.sentence, fix=found.fix)
                for found in inventory.findings
            ),
        }
    )


def _gpus(inventory: Inventory) -> Iterator[GpuFacts]:
    in_use = replace(inventory, out_of_use=None)
    for one in inventory.gpus:
        try:
            gpu(in_use, chosen(in_use, (one.index,)))
        except AstraError:
            continue
        yield GpuFacts(
            index=one.index,
            uuid=one.uuid,
            memory_bytes=one.memory_bytes or 0,
            model=one.name,
            pci_bus_id=one.pci,
            numa_node=one.numa_node,
        )


def _ports(inventory: Inventory) -> Iterator[PortFacts]:
    for port in inventory.ports():
        if port.name in inventory.training:
            tier = "infiniband" if inventory.transport == "infiniband" else "rdma"
            yield PortFacts(name=port.name, tier=tier, gbps=port.gbps or 0.0, up=port.is_active)
    for netdev in inventory.netdevs:
        if netdev.name in inventory.default_route and netdev.speed_gbps is not None:
            yield PortFacts(name=netdev.name, tier="ethernet", gbps=netdev.speed_gbps, up=netdev.up)


def _domains(inventory: Inventory) -> Iterator[tuple[str, str]]:
    for evidence in inventory.tiers:
        unusable = evidence.tier == "nvlink" and why_not(inventory.imex, inventory.nvlink) is not None
        if evidence.domain is not None and evidence.domain != ANY_ETHERNET and not unusable:
            yield evidence.tier, evidence.domain


def _own_channels(inventory: Inventory) -> int:
    if inventory.imex is None or not inventory.overrides.exclusive_channels:
        return 0
    return inventory.imex.channels or 0
