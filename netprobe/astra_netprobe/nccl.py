"""
What NCCL's log (`NCCL_DEBUG=INFO`) says about the way that it took. Read line by line, whatever stands before `NCCL`.

A line about a channel tells what carried the bytes; one about a network what was chosen; one that lists devices only
what was found. The first that is there decides, in this order.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

_LINE = re.compile(r"(?:^|\s)NCCL (?:INFO|WARN) (?P<said>.*)$")
_CHANNEL = re.compile(r"^Channel \d+(?:/\d+)? ?: .*\bvia (?P<via>\S.*?)\s*$")
_USING_NETWORK = re.compile(r"^Using network (?P<name>\S.*?)\s*$")
_FOUND = re.compile(r"^NET/(?P<name>[\w ]+?) ?: Using (?P<devices>\[0\].*?)\s*$")
_DEVICE = re.compile(r"\[\d+\](?P<device>[^\s\[;]+)")
_REASON = re.compile(
    r"^(?:NET/IB ?: (?P<none>No device found)|(?P<disabled>NCCL_(?:IB_DISABLE|NET) set by environment to \S+?))\.?\s*$"
)
_VERSION = re.compile(r"\bNCCL version (?P<version>\d[\w.+-]*)")
SOCKET = "Socket"


@dataclass(frozen=True, slots=True)
class NcclLog:
    """
    Attributes:
        version: Of the library; empty when the log does not say.
        network: What crosses between machines: `IB` (RoCE, too), `Socket`, a plugin's name; empty when unknown.
        channels: How many channels went which way: `NET/IB/GDRDMA`, `NET/Socket`, `P2P/CUMEM`, `SHM`, …
        devices: Those of *network*: `mlx5_0:1/RoCE`, `eth0:10.0.0.1<0>`.
        reason: Why the network is no better one, in NCCL's words; empty when it says nothing.
    """

    version: str
    network: str
    channels: dict[str, int]
    devices: tuple[str, ...]
    reason: str


def read(text: str) -> NcclLog:
    """Of one worker, all of its processes. What is no line of NCCL's is passed over."""
    version = network = reason = ""
    channels: Counter[str] = Counter()
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        if (told := _VERSION.search(line)) is not None:
            version = told["version"]
        if (match := _LINE.search(line)) is None:
            continue
        said = match["said"]
        if (channel := _CHANNEL.match(said)) is not None:
            channels[_way(channel["via"])] += 1
        elif (listed := _FOUND.match(said)) is not None:
            devices = found.setdefault(listed["name"], [])
            devices += [word for word in _DEVICE.findall(listed["devices"]) if word not in devices]
        elif (using := _USING_NETWORK.match(said)) is not None:
            network = using["name"]
        elif (why := _REASON.match(said)) is not None:
            reason = reason or why["none"] or why["disabled"]
    network = _carried(channels) or network or next(iter(found), "")
    return NcclLog(version, network, dict(channels), tuple(found.get(network, ())), reason)


def _way(via: str) -> str:
    """`NET/IB/0/GDRDMA` is `NET/IB/GDRDMA`: a number is only which of the devices."""
    return "/".join(part for part in via.split("/") if not part.isdigit())


def _carried(channels: Counter[str]) -> str:
    """Sockets where a single channel took them: it is as slow as its slowest."""
    networks = [way.split("/")[1] for way in channels if way.startswith("NET/")]
    return SOCKET if SOCKET in networks else next(iter(networks), "")
