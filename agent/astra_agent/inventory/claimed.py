"""
The inventory of a simulated machine whose GPUs and ports are only claimed: nothing of them is there.

Its device nodes have numbers that no driver answers to, so that a worker gets, opens and is checked for the same as on
a real machine, and can do nothing with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from astra_agent.inventory.model import (
    ACTIVE,
    ETHERNET,
    INFINIBAND,
    CharDevice,
    Driver,
    Evidence,
    Gpu,
    Imex,
    Inventory,
    Netdev,
    NvlinkDomain,
    Overrides,
    Port,
    RdmaDevice,
    Tier,
    Transport,
)

_NOBODYS = 60
"""A major number that Linux keeps for local experiments: opening such a node answers ENXIO."""
_VERBS_FIRST = 1 << 16
"""Minor numbers of the rest: IMEX channels have those below, each its own number."""
_CONNECTION_MANAGER = _VERBS_FIRST - 1
_GPUS_FIRST = 1 << 17
_GPU_NODES = (("/dev/nvidiactl", _GPUS_FIRST - 1), ("/dev/nvidia-uvm", _GPUS_FIRST - 2))
_DOWN = 1
_LINK_UP, _POLLING = 5, 2
_CHANNELS = 2048
_TIERS: tuple[Tier, ...] = ("nvlink", "infiniband", "rdma", "ethernet")
_WHY = "claimed by the facts file"


@dataclass(frozen=True, slots=True)
class ClaimedGpu:
    index: int
    uuid: str
    memory_bytes: int
    model: str = ""
    pci: str = ""
    numa_node: int | None = None


@dataclass(frozen=True, slots=True)
class ClaimedPort:
    """*tier* is `infiniband`, `rdma` or `ethernet`."""

    name: str
    tier: str
    gbps: float
    up: bool


def claimed(
    machine: str, gpus: Sequence[ClaimedGpu], ports: Sequence[ClaimedPort], domains: Mapping[str, str]
) -> Inventory:
    """A domain that is claimed without a port of its kind has one, of a speed that is not known."""
    kinds = {port.tier for port in ports} | set(domains)
    transport: Transport = "infiniband" if "infiniband" in kinds else "roce" if "rdma" in kinds else "ethernet"
    wanted = "infiniband" if transport == "infiniband" else "rdma"
    chosen = [port for port in ports if port.tier == wanted]
    if not chosen and transport != "ethernet":
        chosen = [ClaimedPort("mlx5_0", wanted, 0.0, up=True)]
    devices = tuple(_device(number, port) for number, port in enumerate(chosen))
    names = tuple(device.name for device in devices)
    nvlink = domains.get("nvlink")
    return Inventory(
        machine=machine,
        transport=transport,
        driver=Driver(None, None, None),
        gpus=tuple(_gpu(gpu) for gpu in gpus),
        lost=(),
        out_of_use=None,
        gpu_nodes=tuple(CharDevice(path, _NOBODYS, minor) for path, minor in _GPU_NODES) if gpus else (),
        rdma=devices,
        rdma_cm=CharDevice("/dev/infiniband/rdma_cm", _NOBODYS, _CONNECTION_MANAGER) if devices else None,
        netdevs=tuple(_netdev(port) for port in ports if port.tier == "ethernet"),
        default_route=tuple(port.name for port in ports if port.tier == "ethernet"),
        training=tuple(port.name for device in devices for port in device.ports),
        excluded=(),
        near=tuple((gpu.index, names) for gpu in gpus),
        sees_bridges=False,
        groups=(),
        nvlink=NvlinkDomain(nvlink, None if nvlink else "none is claimed"),
        rack_scale=False,
        imex=Imex(_NOBODYS, _CHANNELS, (), None, None, None) if nvlink else None,
        numa=(),
        cdi=(),
        overrides=Overrides(),
        tiers=tuple(Evidence(tier, domains[tier], _WHY) for tier in _TIERS if tier in domains),
        findings=(),
    )


def _gpu(gpu: ClaimedGpu) -> Gpu:
    return Gpu(
        index=gpu.index,
        uuid=gpu.uuid,
        name=gpu.model or "simulated",
        node=CharDevice(f"/dev/nvidia{gpu.index}", _NOBODYS, _GPUS_FIRST + gpu.index),
        memory_bytes=gpu.memory_bytes or None,
        pci=gpu.pci,
        path="",
        numa_node=gpu.numa_node,
        cpus=frozenset(),
        memory_node=None,
        mig=False,
        mig_devices=(),
        fabric=None,
    )


def _netdev(port: ClaimedPort) -> Netdev:
    return Netdev(port.name, None, port.up, port.gbps if port.up else None, (), is_bond=False)


def _device(number: int, port: ClaimedPort) -> RdmaDevice:
    name, _, port_number = port.name.partition(":")
    return RdmaDevice(
        name=name,
        driver="",
        node_type="1: CA",
        model="",
        pci=None,
        path="",
        numa_node=None,
        is_virtual_function=False,
        netdevs=(),
        verbs=CharDevice(f"/dev/infiniband/uverbs{number}", _NOBODYS, _VERBS_FIRST + number),
        ports=(
            Port(
                device=name,
                number=int(port_number) if port_number.isdecimal() else 1,
                state=ACTIVE if port.up else _DOWN,
                physical_state=_LINK_UP if port.up else _POLLING,
                rate_gbps=port.gbps or None,
                gbps=port.gbps or None,
                link_layer=INFINIBAND if port.tier == "infiniband" else ETHERNET,
                lid=0,
                sm_lid=0,
                gids=(),
                gid=None,
                management_nodes=(),
                link_downed=None,
            ),
        ),
    )
