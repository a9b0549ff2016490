"""
Which ports are for training, and why each other one is not.

Decided by what is present, never by what happens to be up or fast: a machine whose InfiniBand is dead is an InfiniBand
machine with a fault, not an Ethernet one, and its storage ports do not take over. State and rate come in last, in
`usable`, for one worker's wish.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from astra_agent.inventory.model import ETHERNET, INFINIBAND, Overrides, Port, RdmaDevice, Transport

_EFA = "efa"
_INFINIBAND_DRIVERS = ("mlx5_core", "mlx4_core")
_CHANNEL_ADAPTER = "1:"
_BLUEFIELD_3 = "MT41692"
_IWARP = (
    "iWARP (node_type 4: RNIC): queue pairs connect only through rdma_cm and there are no RoCE GIDs, which NCCL's IB "
    "transport needs"
)


@dataclass(frozen=True, slots=True)
class Split:
    """
    Attributes:
        training: Names of ports, in order.
        excluded: Name and reason, in order.
        sees_bridges: Whether some training device shares a bridge with a GPU.
    """

    transport: Transport
    training: tuple[str, ...]
    excluded: tuple[tuple[str, str], ...]
    sees_bridges: bool


def split(
    devices: Sequence[RdmaDevice], default_route: Sequence[str], bridges: Mapping[str, int], overrides: Overrides
) -> Split:
    """
    Sort every port of *devices*.

    Args:
        default_route: Network devices that the machine's default route leaves by.
        bridges: By device, bridges that it shares with the GPU it is nearest to.
    """
    route = {device.name for device in devices if set(device.netdevs) & set(default_route)}
    everything = [(device, port) for device in devices for port in device.ports]
    reasons = _operators_choice(everything, overrides)
    left = [(device, port) for device, port in everything if port.name not in reasons]
    if overrides.use:
        route = set()  # who names a port knows what else it carries
    transport = _transport(left, route)
    for device, port in everything:
        reason = _of_no_use(device, port, transport) or _management(device, port, route)
        if reason is not None:
            reasons.setdefault(port.name, reason)
    left = [(device, port) for device, port in left if port.name not in reasons]
    if not overrides.use and transport != _EFA:
        left = _near_gpus(left, reasons, bridges)
        left = _largest_group(left, reasons)
    order = [port.name for _, port in everything]
    training = {port.name for _, port in left}
    return Split(
        transport=transport,
        training=tuple(name for name in order if name in training),
        excluded=tuple((name, reasons[name]) for name in order if name not in training),
        sees_bridges=any(bridges.get(device.name) for device, _ in left),
    )


def usable(ports: Sequence[Port], training: Sequence[str], min_gbps: float) -> tuple[Port, ...]:
    """Training ports that are active and carry *min_gbps* each. An unknown rate meets only a bound of 0."""
    return tuple(
        port
        for port in ports
        if port.name in training and port.is_active and (min_gbps <= 0 or (port.gbps or 0) >= min_gbps)
    )


def kind_of(device: RdmaDevice, port: Port) -> Transport | None:
    """What a port would be used as by itself; None for one that NCCL can't use."""
    if device.driver == _EFA:
        return "efa"
    if port.link_layer == INFINIBAND:
        return "infiniband"
    if port.link_layer == ETHERNET and device.node_type.startswith(_CHANNEL_ADAPTER):
        return "roce"
    return None


def _transport(ports: Sequence[tuple[RdmaDevice, Port]], route: set[str]) -> Transport:
    """The one kind of network that training uses: kinds are never mixed."""
    if any(device.driver == _EFA for device, _ in ports):
        return "efa"
    if any(_is_infiniband(device, port) for device, port in ports):
        return "infiniband"
    if any(kind_of(device, port) == "roce" for device, port in ports if device.name not in route):
        return "roce"
    return "ethernet"


def _is_infiniband(device: RdmaDevice, port: Port) -> bool:
    return port.link_layer == INFINIBAND and device.driver in _INFINIBAND_DRIVERS


def _of_no_use(device: RdmaDevice, port: Port, transport: Transport) -> str | None:
    """Why training can't use the port, whatever the operator says."""
    if device.is_iwarp:
        return _IWARP
    driver = device.driver or "unknown"
    if port.link_layer == INFINIBAND and device.driver not in _INFINIBAND_DRIVERS:
        name = "Omni-Path" if driver.startswith("hfi") else f"driver {driver}"
        return f"{name}: link_layer reads InfiniBand but it is a different fabric (driver {driver})"
    kind = kind_of(device, port)
    if kind is None:
        return f"link layer {port.link_layer or 'unknown'} of driver {driver}: NCCL can't use it"
    if transport == "efa" and kind != "efa":
        return f"{port.link_layer} port (driver {driver}) on an EFA host: one node too many breaks libfabric's choice"
    if transport == "infiniband" and kind == "roce":
        card = "BlueField-3 Ethernet port" if device.model == _BLUEFIELD_3 else "Ethernet port"
        return f"{card} on an InfiniBand host; never mixed into NCCL_IB_HCA"
    return None


def _management(device: RdmaDevice, port: Port, route: set[str]) -> str | None:
    return f"{port.link_layer} port, carries the default route: management" if device.name in route else None


def _operators_choice(ports: Sequence[tuple[RdmaDevice, Port]], overrides: Overrides) -> dict[str, str]:
    """Reasons for the ports that the operator does not want."""
    reasons = {}
    for _, port in ports:
        if _named(overrides.leave, port):
            reasons[port.name] = "left out by the operator's file (ports.leave)"
        elif overrides.use and not _named(overrides.use, port):
            reasons[port.name] = "not among the ports of the operator's file (ports.use)"
    return reasons


def _named(names: Sequence[str], port: Port) -> bool:
    return port.device in names or port.name in names


def _near_gpus(
    left: list[tuple[RdmaDevice, Port]], reasons: dict[str, str], bridges: Mapping[str, int]
) -> list[tuple[RdmaDevice, Port]]:
    """Storage and front-end cards hang on a processor, training cards on a GPU's switch; where that can be seen."""
    if not any(bridges.get(device.name) for device, _ in left):
        return left
    groups = _groups(left)
    most = max(groups.values(), default=0)
    for device, port in left:
        if not bridges.get(device.name):
            subnet = port.subnet
            other = ", and another subnet manager's port" if subnet and groups[subnet] < most else ""
            reasons[port.name] = f"not below any GPU's PCIe switch: storage or front end{other}"
    return [(device, port) for device, port in left if bridges.get(device.name)]


def _largest_group(left: list[tuple[RdmaDevice, Port]], reasons: dict[str, str]) -> list[tuple[RdmaDevice, Port]]:
    """
    Only when one group is strictly the largest: groups of one size are planes or rails that have a subnet manager each.
    Ports that no subnet manager has taken yet belong to no group, and stay.
    """
    sizes = _groups(left).most_common()
    if len(sizes) < 2 or sizes[0][1] == sizes[1][1]:
        return left
    largest = sizes[0][0]
    kept = []
    for device, port in left:
        if port.subnet in (None, largest):
            kept.append((device, port))
        else:
            prefix, sm_lid = port.subnet or ("", 0)
            reasons[port.name] = (
                f"on a smaller InfiniBand fabric (subnet {prefix}, subnet manager {sm_lid:#x}) than most ports"
            )
    return kept


def _groups(left: Sequence[tuple[RdmaDevice, Port]]) -> Counter[tuple[str, int]]:
    return Counter(port.subnet for _, port in left if port.subnet is not None)
