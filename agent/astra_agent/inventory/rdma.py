"""RDMA devices and their ports, from sysfs. A missing class is "no RDMA", not a fault."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from astra_agent.inventory import gids as gid_tables
from astra_agent.inventory import rates
from astra_agent.inventory.model import (
    ETHERNET,
    CharDevice,
    Netdev,
    Overrides,
    PciFunction,
    Port,
    RdmaDevice,
)
from astra_agent.inventory.order import natural
from astra_agent.inventory.tree import Reader

_CLASS = "/sys/class/infiniband"
_NODES = "/dev/infiniband"
_UNKNOWN_RATE = ("EINVAL",)
"""What reading the rate of an Ethernet port answers whose mode the kernel has no name for."""
_NAMES_MODEL = ("mlx5_core", "mlx4_core")
"""Drivers that always say which card it is."""
_NO_NODE_TYPE = ("efa",)
"""Drivers whose devices are of no type that the verbs know."""


@dataclass(frozen=True, slots=True)
class Around:
    """What RDMA devices are read together with."""

    functions: Mapping[str, PciFunction]
    netdevs: Mapping[str, Netdev]
    masters: Mapping[str, str]
    overrides: Overrides


@dataclass(frozen=True, slots=True)
class _Kind:
    """What a port's files are read by, of its device."""

    model: str
    is_iwarp: bool


def read_devices(reader: Reader, around: Around) -> tuple[RdmaDevice, ...]:
    """In number-aware order of name."""
    verbs = _verbs_nodes(reader)
    management = _management_nodes(reader)
    devices = tuple(
        _read_device(reader, name, around, verbs.get(name), management) for name in reader.root.names(_CLASS)
    )
    for name in sorted(verbs.keys() - {device.name for device in devices}, key=natural):
        reader.found("fault", name, f"{verbs[name].path} belongs to {name}, which {_CLASS} does not have")
    return devices


def read_rdma_cm(reader: Reader) -> CharDevice | None:
    return reader.root.device(f"{_NODES}/rdma_cm")


def _read_device(
    reader: Reader,
    name: str,
    around: Around,
    verbs: CharDevice | None,
    management: Mapping[tuple[str, int], tuple[CharDevice, ...]],
) -> RdmaDevice:
    path = reader.root.resolve(f"{_CLASS}/{name}")
    function = _function(reader, path, around.functions)
    driver = function.driver if function else ""
    node_type = reader.may(f"{path}/node_type", name, "its type")
    if node_type is None and driver not in _NO_NODE_TYPE:
        reader.need(f"{path}/node_type", name, "its type")
    read_model = reader.need if driver in _NAMES_MODEL else reader.may
    model = (read_model(f"{path}/hca_type", name, "its model") or "").strip()
    device = RdmaDevice(
        name=name,
        driver=driver,
        node_type=node_type or "",
        model=model,
        pci=function.address if function else None,
        path=function.path if function else path,
        numa_node=function.numa_node if function else None,
        is_virtual_function=function.is_virtual_function if function else False,
        netdevs=(),
        verbs=verbs,
        ports=tuple(
            _read_port(reader, path, name, int(number), _Kind(model, (node_type or "").startswith("4:")), management)
            for number in reader.root.names(f"{path}/ports")
            if re.fullmatch(r"[0-9]{1,3}", number)
        ),
    )
    if verbs is None:
        reader.found(
            "fault", name, f"it has no node {_NODES}/uverbs…: no worker can open it", "modprobe ib_uverbs"
        )  # fmt: skip
    if not device.ports:
        reader.found("fault", name, f"it shows no port: {path}/ports is empty or not there")
    device = replace(device, netdevs=_netdevs(reader, path, device, around))
    return replace(device, ports=tuple(_with_gbps(reader, port, device, around) for port in device.ports))


def _function(reader: Reader, path: str, functions: Mapping[str, PciFunction]) -> PciFunction | None:
    """The PCI function that `device` links back to; virtual devices have no such link."""
    if reader.root.link(f"{path}/device") is None:
        return None
    place = reader.root.resolve(f"{path}/device")
    return functions.get(place.rpartition("/")[2])


def _read_port(
    reader: Reader,
    device: str,
    name: str,
    number: int,
    kind: _Kind,
    management: Mapping[tuple[str, int], tuple[CharDevice, ...]],
) -> Port:
    path, subject = f"{device}/ports/{number}", f"{name}:{number}"
    link_layer = (reader.need(f"{path}/link_layer", subject, "its link layer") or "").strip()
    state = reader.parsed(f"{path}/state", subject, "its state", _leading) or 0
    gids = gid_tables.read_gids(reader, path, subject, is_roce=link_layer == ETHERNET and not kind.is_iwarp)
    downed = reader.may(f"{path}/counters/link_downed", subject, "how often its link went down")
    return Port(
        device=name,
        number=number,
        state=state,
        physical_state=reader.parsed(f"{path}/phys_state", subject, "its physical state", _leading) or 0,
        rate_gbps=_rate(reader, path, subject, kind.model, is_active=state == 4),
        gbps=None,
        link_layer=link_layer,
        lid=reader.parsed(f"{path}/lid", subject, "its LID", _number) or 0,
        sm_lid=reader.parsed(f"{path}/sm_lid", subject, "its subnet manager's LID", _number) or 0,
        gids=gids,
        gid=gid_tables.routable(gids) if link_layer == ETHERNET else None,
        management_nodes=management.get((name, number), ()),
        link_downed=_number(downed) if downed is not None else None,
    )


def _rate(reader: Reader, path: str, subject: str, model: str, *, is_active: bool) -> float | None:
    text = reader.may(f"{path}/rate", subject, "its rate", often=_UNKNOWN_RATE)
    if text is None and not reader.root.exists(f"{path}/rate"):
        reader.need(f"{path}/rate", subject, "its rate")
    if text is None:
        return None
    rate_gbps = rates.parse_rate(text)
    if rate_gbps is None:
        reader.found("fault", subject, f"its rate is not known: {path}/rate says {text[:40]!r}")
    elif is_active and rates.is_kernels_guess(text, model):
        return None
    return rate_gbps


def _with_gbps(reader: Reader, port: Port, device: RdmaDevice, around: Around) -> Port:
    """
    What the port carries. The operator's word comes first; a bond's port shows the rate of one member, its network
    device that of the whole; an Ethernet port whose mode the kernel has no name for has its network device's speed.
    """
    written = dict(around.overrides.gbps)
    stated = written.get(port.name, written.get(port.device))
    if stated is not None:
        return replace(port, gbps=stated)
    names = {gid.netdev for gid in port.gids} | ({*device.netdevs} if len(device.ports) == 1 else set())
    netdevs = [around.netdevs[name] for name in names if name in around.netdevs and port.link_layer == ETHERNET]
    bonds = [netdev.speed_gbps for netdev in netdevs if netdev.is_bond and netdev.speed_gbps]
    if port.rate_gbps is not None:
        return replace(port, gbps=max([port.rate_gbps, *bonds]))
    speeds = [netdev.speed_gbps for netdev in netdevs if netdev.speed_gbps]
    if not speeds and port.is_active:
        reader.found(
            "warning", port.name, "it is active at a rate that this kernel does not know: no min_gbps is met by it",
            "write its rate into the operator's file, [gbps]",
        )  # fmt: skip
    return replace(port, gbps=max(speeds, default=None))


def _netdevs(reader: Reader, path: str, device: RdmaDevice, around: Around) -> tuple[str, ...]:
    """
    Network devices of the same function and those that the GIDs name. A virtual device names what it sits on in
    `parent`, or only by its address, which its GUID or its GID holds (soft-iWARP).
    """
    names = {netdev.name for netdev in around.netdevs.values() if device.pci and netdev.pci == device.pci}
    names |= {gid.netdev for port in device.ports for gid in port.gids if gid.netdev}
    if device.pci is None:
        parent = reader.may(f"{path}/parent", device.name, "what it sits on")
        names |= {parent.strip()} if parent and parent.strip() else set()
        if not names:
            guid = reader.may(f"{path}/node_guid", device.name, "its GUID") or ""
            hints = {_mac_of_guid(guid), *(_mac_of_gid(gid.value) for port in device.ports for gid in port.gids)}
            names |= {name for name in around.netdevs if _address(reader, name) in hints - {""}}
        if not names:
            reader.found("fault", device.name, "which network device it sits on is not known")
    return tuple(sorted(names, key=natural))


def _address(reader: Reader, netdev: str) -> str:
    return (reader.may(f"/sys/class/net/{netdev}/address", netdev, "its hardware address") or "").strip()


def _mac_of_guid(guid: str) -> str:
    """The hardware address in an EUI-64, whose first byte has one bit flipped and whose middle is `ff:fe`."""
    digits = guid.strip().replace(":", "")
    if not re.fullmatch(r"[0-9a-f]{6}fffe[0-9a-f]{6}", digits):
        return ""
    return _colons(f"{int(digits[:2], 16) ^ 2:02x}{digits[2:6]}{digits[10:]}")


def _mac_of_gid(gid: str) -> str:
    return _colons(gid.replace(":", "")[:12])


def _colons(digits: str) -> str:
    return ":".join(digits[at : at + 2] for at in range(0, len(digits), 2))


def _verbs_nodes(reader: Reader) -> dict[str, CharDevice]:
    """By device: `ibdev` is the only right map, since the nodes are numbered in order of probing."""
    nodes: dict[str, CharDevice] = {}
    for entry in reader.root.names("/sys/class/infiniband_verbs"):
        if not entry.startswith("uverbs"):
            continue
        folder = reader.root.resolve(f"/sys/class/infiniband_verbs/{entry}")
        name = reader.need(f"{folder}/ibdev", entry, "the device that it belongs to")
        node = reader.root.device(f"{_NODES}/{entry}")
        if node is None:
            reader.found(
                "fault", entry, f"{_NODES}/{entry} is not there: no worker can open its device", "udevadm trigger"
            )
        elif name is not None:
            nodes[name.strip()] = node
    return nodes


def _management_nodes(reader: Reader) -> dict[tuple[str, int], tuple[CharDevice, ...]]:
    nodes: dict[tuple[str, int], tuple[CharDevice, ...]] = {}
    for entry in reader.root.names("/sys/class/infiniband_mad"):
        node = reader.root.device(f"{_NODES}/{entry}")
        folder = reader.root.resolve(f"/sys/class/infiniband_mad/{entry}")
        if node is None:
            continue
        name = reader.need(f"{folder}/ibdev", entry, "the device that it belongs to")
        number = reader.parsed(f"{folder}/port", entry, "the port that it belongs to", _number)
        if name is not None and number is not None:
            nodes[name.strip(), number] = (*nodes.get((name.strip(), number), ()), node)
    return nodes


def _leading(text: str) -> int | None:
    """The number of `4: ACTIVE`; the word behind it may be wrong (some kernels mix up two tables)."""
    match = re.match(r"([0-9]{1,2}):", text.strip())
    return int(match[1]) if match else None


def _number(text: str) -> int | None:
    return int(text, 0) if re.fullmatch(r"0x[0-9a-f]{1,8}|0|[1-9][0-9]{0,19}", text.strip()) else None
