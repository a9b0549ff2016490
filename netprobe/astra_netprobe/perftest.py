"""
`ib_write_bw` of perftest: how it is called, and what its output says. Pure.

Its words are taken as versions from 4.5 to 24.10 write them; what is not understood is a sentence, never a number.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

PROGRAM = "ib_write_bw"
QUEUE_PAIRS = 2
"""One does not fill a port of 400 Gbit/s."""
_ROW = re.compile(
    r"^\s*(?P<size>\d+)\s+(?P<count>\d+)\s+(?P<peak>[\d.]+|-?nan)\s+(?P<average>[\d.]+|-?nan)\s+(?P<rate>[\d.]+|-?nan)"
)
_HEAD = re.compile(r"^\s*#bytes\s+#iterations\s+BW peak\s*\[(?P<unit>[\w/]+)\]")
_UNITS = {"Gb/sec": 1e9, "MB/sec": 8.0 * (1 << 20), "MiB/sec": 8.0 * (1 << 20)}
_FACT = re.compile(r"(?P<name>Device|Link type|Mtu|Transport type)\s+:\s+(?P<value>\S+)")
_NOT_YET = re.compile(r"couldn'?t connect to|connection refused|failed to connect", re.IGNORECASE)
_BANNER = re.compile(
    r"^[-*\s]*$|RDMA_Write BW Test|Waiting for client|^\s*#bytes|^\s*\d+\s+\d+\s+[-\d.n]|^[\w\s.*-]+\s:\s"
    r"|PCIe relax order:|address: LID|GID:"
)


@dataclass(frozen=True, slots=True)
class Written:
    """
    What one side measured.

    Attributes:
        rate_bps: On average; 0.0 when there is no result.
        device, link, mtu: What carried it, as the tool calls it.
        reason: Why there is no result, in the tool's words; empty when there is one.
        too_early: The other side did not listen yet.
    """

    rate_bps: float
    device: str = ""
    link: str = ""
    mtu: int = 0
    reason: str = ""
    too_early: bool = False


def command(device: str, port: int, *, gid: int | None, listen: int, seconds: float, to: str = "") -> Sequence[str]:
    """Of the side that is called, or with *to*, an address, of the side that calls and sends."""
    chosen = () if gid is None else ("-x", str(gid))
    words = (
        PROGRAM, "-d", device, "-i", str(port), *chosen, "-F", "--report_gbits", "-q", str(QUEUE_PAIRS),
        "-D", str(max(1, round(seconds))), "-p", str(listen),
    )  # fmt: skip
    return (*words, to) if to else words


def read(text: str) -> Written:
    """What it wrote, on both outputs. Any text is read."""
    facts = {match["name"]: match["value"] for match in _FACT.finditer(text)}
    device, link = facts.get("Device", ""), facts.get("Link type", "")
    mtu = int(found[0]) if (found := re.match(r"\d+", facts.get("Mtu", ""))) else 0
    scale, rate = 0.0, 0.0
    for line in text.splitlines():
        if (head := _HEAD.match(line)) is not None:
            scale = _UNITS.get(head["unit"], 0.0)
        elif scale and (row := _ROW.match(line)) is not None and "nan" not in row["average"]:
            rate = max(rate, float(row["average"]) * scale)
    if rate > 0:
        return Written(rate, device, link, mtu)
    return Written(0.0, device, link, mtu, _reason(text), _NOT_YET.search(text) is not None)


def _reason(text: str) -> str:
    said = [line.strip() for line in text.splitlines() if line.strip() and _BANNER.search(line) is None]
    return said[0] if said else "it wrote no result"
