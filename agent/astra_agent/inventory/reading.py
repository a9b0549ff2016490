"""From a machine's files and its GPU library's answers to its inventory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from astra_agent.inventory import (
    cdi,
    driver,
    fabric,
    gpus,
    imex,
    nccl_topology,
    netdevs,
    numa,
    operator_file,
    pci,
    rdma,
    training,
)
from astra_agent.inventory.kernel_log import Heard
from astra_agent.inventory.library import LibraryReading
from astra_agent.inventory.model import Gpu, Inventory, NumaNode, RdmaDevice
from astra_agent.inventory.order import natural
from astra_agent.inventory.reports import report
from astra_agent.inventory.tree import Reader, Root


@dataclass(frozen=True, slots=True)
class Besides:
    """
    What is known of the machine besides its files.

    Attributes:
        log: What the kernel log has said.
        had_gpus: The most GPUs that it ever had; 0: nobody counted.
        imex_service: What `nvidia-imex-ctl -q` said; None: nobody asked.
    """

    log: Heard = field(default_factory=Heard)
    had_gpus: int = 0
    imex_service: str | None = None


def read(root: Root, library: LibraryReading, besides: Besides = Besides()) -> Inventory:
    """
    Everything that *root* shows. Never raises for what a machine's files say, or do not say: what can't be known is in
    the findings.

    Args:
        library: What NVML answered.
    """
    reader = Reader(root)
    said = operator_file.read_overrides(reader)
    functions = pci.read_functions(reader)
    devices_by_name = netdevs.read_netdevs(reader)
    masters = netdevs.masters(reader, devices_by_name)
    route = netdevs.default_route(reader, devices_by_name, masters)
    nodes = numa.read_nodes(reader)
    online = numa.read_online(reader, nodes)
    nodes = nodes or (NumaNode(0, online, True),)
    found = gpus.read_gpus(reader, library, gpus.Around(functions, nodes, online, besides.log, besides.had_gpus))
    devices = rdma.read_devices(reader, rdma.Around(functions, devices_by_name, masters, said))
    split = training.split(devices, route, _bridges(devices, found.gpus), said)
    ports = [port for device in devices for port in device.ports]
    groups = fabric.subnet_groups(ports)
    rack_scale = fabric.is_rack_scale(library)
    domain = fabric.nvlink_domain(found.gpus, rack_scale=rack_scale)
    loaded = driver.read_driver(reader, library)
    specs = cdi.read_specs(reader)
    used = [device for device in devices if {port.name for port in device.ports} & set(split.training)]
    used_ports = [port for port in ports if port.name in split.training]
    inventory = Inventory(
        machine=reader.need("/proc/sys/kernel/hostname", "machine", "its name") or "",
        transport=split.transport,
        driver=loaded,
        gpus=found.gpus,
        lost=found.lost,
        out_of_use=driver.out_of_use(loaded, library, found.lost) or (cdi.stale(specs, loaded) if found.gpus else None),
        gpu_nodes=gpus.control_nodes(reader, found.gpus),
        rdma=devices,
        rdma_cm=rdma.read_rdma_cm(reader),
        netdevs=tuple(devices_by_name.values()),
        default_route=route,
        training=split.training,
        excluded=split.excluded,
        near=tuple((gpu.index, _near(gpu, used)) for gpu in found.gpus),
        sees_bridges=split.sees_bridges,
        groups=groups,
        nvlink=domain,
        rack_scale=rack_scale,
        imex=imex.read_imex(reader, service=besides.imex_service),
        numa=nodes,
        cdi=specs,
        overrides=said,
        tiers=fabric.tiers(domain, split.transport, used_ports, groups, said),
        findings=(),
        nccl_topology=nccl_topology.read_topology(reader, said.nccl_topology, found.gpus, split.transport),
    )
    return report(reader, inventory)


def _bridges(devices: Sequence[RdmaDevice], found: Sequence[Gpu]) -> dict[str, int]:
    """For each device on the bus, the bridges that it shares with the GPU that it shares most with."""
    return {
        device.name: max((pci.shared_bridges(device.path, gpu.path) for gpu in found if gpu.path), default=0)
        for device in devices
        if device.pci is not None
    }


def _near(gpu: Gpu, devices: Sequence[RdmaDevice]) -> tuple[str, ...]:
    """
    Devices with the longest way down the bus in common; without any in common those of the same memory node; where not
    even that is known, all are as good.
    """
    shared = {
        device.name: pci.shared_bridges(device.path, gpu.path)
        for device in devices
        if device.pci is not None and gpu.path
    }
    most = max(shared.values(), default=0)
    if most:
        return tuple(sorted((name for name, count in shared.items() if count == most), key=natural))
    same = [device.name for device in devices if gpu.numa_node is not None and device.numa_node == gpu.numa_node]
    return tuple(sorted(same or (device.name for device in devices), key=natural))
