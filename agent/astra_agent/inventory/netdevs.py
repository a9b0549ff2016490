"""Network devices, what they are made of, and which of them the machine's default route leaves by."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from astra_agent.inventory.model import Netdev
from astra_agent.inventory.pci import normal_address
from astra_agent.inventory.tree import Reader

_CLASS = "/sys/class/net"
_ROUTE_IS_UP = 0x1
_UP_STATES = ("up", "unknown")
"""Virtual devices that carry traffic may say `unknown`."""
_NO_SPEED = ("EINVAL", "EOPNOTSUPP")
"""What reading the speed of a device answers that is down, or has none."""


def read_netdevs(reader: Reader) -> dict[str, Netdev]:
    """By name. The loopback device is left out."""
    names = [name for name in reader.root.names(_CLASS) if name not in ("lo", "bonding_masters")]
    return {name: _read(reader, name) for name in names}


def _read(reader: Reader, name: str) -> Netdev:
    path = reader.root.resolve(f"{_CLASS}/{name}")
    operstate = reader.need(f"{path}/operstate", name, "whether it is up")
    speed = reader.may(f"{path}/speed", name, "its speed", often=_NO_SPEED)
    if operstate in _UP_STATES and not reader.root.exists(f"{path}/speed"):
        reader.found("note", name, f"its speed is not known: {path}/speed is not there")
    slaves = reader.may(f"{path}/bonding/slaves", name, "the members of the bond")
    entries = reader.root.names(path)
    lower = [entry.removeprefix("lower_") for entry in entries if entry.startswith("lower_")]
    return Netdev(
        name=name,
        pci=_function_above(path),
        up=operstate in _UP_STATES,
        speed_gbps=_speed(speed),
        lower=tuple(dict.fromkeys([*lower, *(slaves or "").split()])),
        is_bond="bonding" in entries,
    )


def _function_above(path: str) -> str | None:
    """The PCI function that a device belongs to; a virtio device lies one folder deeper."""
    addresses = (normal_address(piece) for piece in reversed(path.split("/")))
    return next((address for address in addresses if address), None)


def _speed(text: str | None) -> float | None:
    """From Mbit/s; -1 is the kernel's word for not known."""
    return int(text) / 1000 if text is not None and re.fullmatch(r"[0-9]{1,9}", text.strip()) and int(text) else None


def masters(reader: Reader, netdevs: Mapping[str, Netdev]) -> dict[str, str]:
    """For each member of a bond or bridge, the device that it is a member of."""
    found = {lower: upper.name for upper in netdevs.values() for lower in upper.lower}
    for name in netdevs:
        target = reader.root.link(f"{reader.root.resolve(f'{_CLASS}/{name}')}/master")
        if target is not None:
            found[name] = target.rpartition("/")[2]
    for master in sorted(set(found.values())):
        if master not in netdevs or not netdevs[master].lower:
            reader.found("warning", master, "it has members, and does not list them: its speed can't be trusted")
    return found


def default_route(reader: Reader, netdevs: Mapping[str, Netdev], members: Mapping[str, str]) -> tuple[str, ...]:
    """
    Every device that the machine's default route leaves by: the one of the lowest metric, and all that it is made of.
    The IPv6 route counts where there is no IPv4 one.
    """
    text = reader.need("/proc/net/route", "default route", "which device it leaves by")
    leaves = _ipv4(text) if text is not None else ()
    if not leaves:
        leaves = _ipv6(reader.may("/proc/net/ipv6_route", "default route", "which device it leaves by") or "")
    if text is not None and not leaves:
        reader.found(
            "warning", "default route", "there is none: a management port among the RDMA ports is not known by it",
            "name it in the operator's file, ports.leave",
        )  # fmt: skip
    return _with_parts(leaves, netdevs, members)


def _with_parts(names: Iterable[str], netdevs: Mapping[str, Netdev], members: Mapping[str, str]) -> tuple[str, ...]:
    found: list[str] = []
    ahead = list(names)
    while ahead:
        name = ahead.pop(0)
        if name not in found:
            found.append(name)
            ahead += netdevs[name].lower if name in netdevs else ()
            ahead += [member for member, master in members.items() if master == name]
    return tuple(found)


def _ipv4(text: str) -> tuple[str, ...]:
    routes: list[tuple[int, str]] = []
    for line in text.splitlines()[1:]:
        words = line.split()
        if len(words) < 8 or words[1] != "00000000" or words[7] != "00000000":
            continue
        flags, metric = _number(words[3], 16), _number(words[6], 10)
        if flags is not None and metric is not None and flags & _ROUTE_IS_UP:
            routes.append((metric, words[0]))
    return _cheapest(routes)


def _ipv6(text: str) -> tuple[str, ...]:
    routes: list[tuple[int, str]] = []
    for line in text.splitlines():
        words = line.split()
        if len(words) < 10 or words[0].strip("0") or words[1] != "00" or words[9] == "lo":
            continue
        flags, metric = _number(words[8], 16), _number(words[5], 16)
        if flags is not None and metric is not None and flags & _ROUTE_IS_UP:
            routes.append((metric, words[9]))
    return _cheapest(routes)


def _cheapest(routes: list[tuple[int, str]]) -> tuple[str, ...]:
    lowest = min((metric for metric, _ in routes), default=0)
    return tuple(dict.fromkeys(name for metric, name in routes if metric == lowest))


def _number(text: str, base: int) -> int | None:
    try:
        return int(text, base)
    except ValueError:
        return None
