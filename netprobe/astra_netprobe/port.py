"""
The network port that an address is on: name, driver, MTU, speed, duplex, errors; asked of the kernel by ioctl and
netlink.

Not by /sys, which shows the network namespace of whoever mounted it.
"""

from __future__ import annotations

import ctypes
import fcntl
import socket
import struct
from dataclasses import dataclass
from typing import Literal

_ADDRESS, _MTU, _ETHTOOL = 0x8915, 0x8921, 0x8946
"""SIOCGIFADDR, SIOCGIFMTU, SIOCETHTOOL."""
_GET_SETTINGS, _GET_DRIVER = 0x1, 0x3
_NAME_BYTES = 16
_GET_LINK, _REQUEST, _STATISTICS = 18, 1, 23
"""RTM_GETLINK, NLM_F_REQUEST and IFLA_STATS64 of linux/rtnetlink.h, linux/netlink.h, linux/if_link.h."""
_HEADER, _LINK, _ATTRIBUTE = struct.Struct("=IHHII"), struct.Struct("=BxHiII"), struct.Struct("=HH")
_COUNTERS = struct.Struct("=16Q")
_RX_ERRORS, _TX_ERRORS, _TX_DROPPED, _RX_MISSED = 4, 5, 7, 15
_DUPLEX: dict[int, Literal["half", "full"]] = {0: "half", 1: "full"}
_SPEED_UNKNOWN = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class PortFacts:
    """*mtu* in bytes, *speed_bps* in bits per second; 0 and "" for what the port does not tell."""

    device: str = ""
    driver: str = ""
    mtu: int = 0
    speed_bps: float = 0.0
    duplex: Literal["", "half", "full"] = ""


def of_address(address: str) -> PortFacts:
    """Facts of the port with *address* in this process's network namespace; empty when none has it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            if _address(asking, name) == address:
                speed, duplex = _speed(asking, name)
                return PortFacts(name, _driver(asking, name), _mtu(asking, name), speed, duplex)
    return PortFacts()


def address_of(device: str) -> str:
    """The IPv4 address of a port; empty when it has none, or is not there."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        return _address(asking, device)


def with_addresses() -> tuple[str, ...]:
    """Names of the ports that have an IPv4 address."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        return tuple(name for _, name in socket.if_nameindex() if _address(asking, name))


def errors(device: str) -> int:
    """
    What a port has got wrong, could not take or could not send since it came up; 0 for one that is not there.

    Without what it received and nobody wanted, which the kernel counts as dropped as well.
    """
    try:
        index = socket.if_nametoindex(device)
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as asking:
            asking.settimeout(1.0)
            link = _LINK.pack(socket.AF_UNSPEC, 0, index, 0, 0)
            asking.send(_HEADER.pack(_HEADER.size + len(link), _GET_LINK, _REQUEST, 1, 0) + link)
            answer = asking.recv(1 << 16)
    except OSError:
        return 0
    return errors_told(answer)


def errors_told(answer: bytes) -> int:
    """By the answer to RTM_GETLINK; 0 where it says nothing of them."""
    at = _HEADER.size + _LINK.size
    while at + _ATTRIBUTE.size <= len(answer):
        length, kind = _ATTRIBUTE.unpack_from(answer, at)
        content = answer[at + _ATTRIBUTE.size : at + length]
        if kind == _STATISTICS and len(content) >= _COUNTERS.size:
            counted = _COUNTERS.unpack_from(content)
            return int(sum(counted[each] for each in (_RX_ERRORS, _TX_ERRORS, _TX_DROPPED, _RX_MISSED)))
        at += max(_ATTRIBUTE.size, (length + 3) & ~3)
    return 0


def _address(asking: socket.socket, name: str) -> str:
    answer = _ask(asking, _ADDRESS, name, b"")
    return socket.inet_ntoa(answer[20:24]) if answer else ""


def _mtu(asking: socket.socket, name: str) -> int:
    answer = _ask(asking, _MTU, name, b"")
    return int(struct.unpack_from("=i", answer, _NAME_BYTES)[0]) if answer else 0


def _speed(asking: socket.socket, name: str) -> tuple[float, Literal["", "half", "full"]]:
    answer = _ethtool(asking, name, _GET_SETTINGS, 44)
    if answer is None:
        return 0.0, ""
    low, duplex = struct.unpack_from("=HB", answer, 12)
    high = struct.unpack_from("=H", answer, 28)[0]
    megabits = high << 16 | low
    return (0.0 if megabits in (0, _SPEED_UNKNOWN) else megabits * 1e6), _DUPLEX.get(duplex, "")


def _driver(asking: socket.socket, name: str) -> str:
    answer = _ethtool(asking, name, _GET_DRIVER, 196)
    return answer[4:36].split(b"\0")[0].decode(errors="replace") if answer else ""


def _ethtool(asking: socket.socket, name: str, command: int, size: int) -> bytes | None:
    """The kernel writes its answer where the request's pointer leads."""
    room = ctypes.create_string_buffer(struct.pack("=I", command).ljust(size, b"\0"), size)
    if _ask(asking, _ETHTOOL, name, struct.pack("P", ctypes.addressof(room))) is None:
        return None
    return room.raw


def _ask(asking: socket.socket, request: int, name: str, argument: bytes) -> bytes | None:
    content = name.encode().ljust(_NAME_BYTES, b"\0") + argument.ljust(24, b"\0")
    try:
        return fcntl.ioctl(asking.fileno(), request, content)
    except OSError:
        return None
