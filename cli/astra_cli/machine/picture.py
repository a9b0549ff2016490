"""A machine as a picture in the terminal: which GPU is where, which port is near it, what is wrong. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from astra_agent.inventory.model import Gpu, Inventory, Port
from astra_agent.inventory.order import format_list
from astra_cli.render import Cell, clean

_LEVELS = {"fault": "bold red", "warning": "yellow", "note": "dim"}
_LAYERS = {"InfiniBand": "IB", "Ethernet": "RoCE"}


def picture(inventory: Inventory) -> tuple[Cell, ...]:
    """Lines, in order from the machine to its parts to what is wrong with them."""
    return (*_head(inventory), *_nodes(inventory), *_others(inventory), *_tiers(inventory), *_findings(inventory))


def _head(inventory: Inventory) -> Iterator[Cell]:
    facts = [inventory.transport, f"{len(inventory.gpus)} GPUs"]
    if inventory.lost:
        facts.append(f"{len(inventory.lost)} lost")
    if inventory.driver.loaded:
        facts.append(f"driver {inventory.driver.loaded}")
    yield Cell(f"{clean(inventory.machine)}: {' · '.join(facts)}", "bold")
    if inventory.out_of_use:
        yield Cell(f"takes no work with GPUs: {inventory.out_of_use}", "bold red")


def _nodes(inventory: Inventory) -> Iterator[Cell]:
    for node in inventory.numa:
        yield Cell(f"NUMA node {node.number}  processors {format_list(node.cpus) or '?'}", "cyan")
        gpus = [gpu for gpu in inventory.gpus if gpu.numa_node == node.number]
        for gpu in gpus:
            yield from _gpu(inventory, gpu)
        drawn = {name for index, names in inventory.near if index in {gpu.index for gpu in gpus} for name in names}
        for port in inventory.ports():
            device = inventory.device_of(port.name)
            if port.name in inventory.training and device.numa_node == node.number and device.name not in drawn:
                yield _port("  ", port)
    for gpu in inventory.gpus:
        if gpu.numa_node is None:
            yield from _gpu(inventory, gpu)
    for lost in inventory.lost:
        yield Cell(f"  GPU at {lost.address or 'an unknown address'}: {lost.reason}", "bold red")


def _gpu(inventory: Inventory, gpu: Gpu) -> Iterator[Cell]:
    memory = f"  {gpu.memory_bytes / 1e9:.0f} GB" if gpu.memory_bytes else ""
    yield Cell(f"  GPU {gpu.index}  {clean(gpu.name)}{memory}  {gpu.pci}")
    nearest = dict(inventory.near).get(gpu.index, ())
    ports = [port for port in inventory.ports() if port.device in nearest and port.name in inventory.training]
    if not inventory.sees_bridges and len(ports) > 1:
        yield Cell(f"    any of {', '.join(port.name for port in ports)}: no bridge in common is visible", "dim")
        return
    for at, port in enumerate(ports):
        yield _port("    └─ " if at == len(ports) - 1 else "    ├─ ", port)


def _port(lead: str, port: Port) -> Cell:
    rate = f"{port.gbps:g} Gb/s" if port.gbps is not None else "rate unknown"
    state = "up" if port.is_active else "DOWN"
    layer = _LAYERS.get(port.link_layer, port.link_layer)
    return Cell(
        f"{lead}{port.name}  {layer}  {rate if port.is_active else '-'}  {state}", "green" if port.is_active else "red"
    )


def _others(inventory: Inventory) -> Iterator[Cell]:
    if inventory.excluded:
        yield Cell("not for training", "cyan")
    for name, reason in inventory.excluded:
        yield Cell(f"  {name}  {clean(reason)}", "dim")


def _tiers(inventory: Inventory) -> Iterator[Cell]:
    yield Cell("networks", "cyan")
    for evidence in inventory.tiers:
        yield Cell(f"  {evidence.tier}  {evidence.domain or 'in no domain'}  {clean(evidence.why)}")
    if inventory.imex is not None:
        imex = inventory.imex
        service = f", service {imex.service}" if imex.service else ""
        yield Cell(f"  IMEX  {imex.channels if imex.channels is not None else '?'} channels{service}")


def _findings(inventory: Inventory) -> Iterator[Cell]:
    if not inventory.findings:
        yield Cell("nothing is wrong", "green")
        return
    yield Cell("what is wrong", "cyan")
    order = list(_LEVELS)
    for finding in sorted(inventory.findings, key=lambda finding: order.index(finding.level)):
        yield Cell(f"  {finding.level:<8}{finding.subject}: {clean(finding.sentence)}", _LEVELS[finding.level])
        if finding.fix:
            yield Cell(f"          fix: {clean(finding.fix)}", "cyan")
