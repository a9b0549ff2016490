"""What `ib_write_bw` between neighbours says of machines' RDMA ports: who is slow, in which direction. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from astra_netprobe import stats
from astra_netprobe.localise import names_text
from astra_netprobe.readings import RdmaFlow

SHARE_MIN = 0.90
"""Of a port's line rate, which vendors' own checks ask for."""
PEERS_MIN = 0.80
"""Of the median of all."""
TOGETHER_MIN = 0.80
"""Of what a port reaches by itself: less, with all at once, is a limit that ports share."""
AGREE_MIN = 2
"""Neighbours that agree on a machine's one direction; fewer tell only of the way."""

Finding = tuple[str, tuple[str, ...]]
"""A sentence, and whom it blames."""


def findings(flows: Sequence[RdmaFlow]) -> list[Finding]:
    """Of each line of ports by itself: failed ways first, then what is slower than its peers."""
    lines = _by_line(judged(flows))
    slow = _slow(lines)
    found: list[Finding] = []
    for number, line in lines.items():
        if number in slow and not line[0].together:  # else it may be the load of the others
            found.append((_slow_line(line, slow[number]), ()))
        found += _of_line(line, _rate(line))
    return found


def judged(flows: Sequence[RdmaFlow]) -> list[RdmaFlow]:
    """Of each line what was measured by itself, where all of its ways were; else what was measured with the others."""
    chosen = []
    for line in _by_line(flows).values():
        alone = [flow for flow in line if not flow.together]
        together = [flow for flow in line if flow.together]
        chosen += alone if len(alone) >= len(together) else together
    return chosen


def doubts(flows: Sequence[RdmaFlow]) -> list[int]:
    """Lines that have to be measured by themselves: those that blame somebody first, then those below their rate."""
    lines = _by_line(flows)
    slow = _slow(lines)
    sick = [number for number, line in lines.items() if _of_line(line, _rate(line))]
    return sick + [
        number for number, line in lines.items() if number not in sick and (number in slow or _share(line) < SHARE_MIN)
    ]


def rate(flows: Sequence[RdmaFlow]) -> float:
    """Bits per second from one port to another, of the slowest line of ports; 0.0 where none was measured."""
    rates = [_rate(line) for line in _by_line(judged(flows)).values()]
    return min((found for found in rates if found), default=0.0)


def below(flows: Sequence[RdmaFlow]) -> str | None:
    """All are alike, and below their ports' line rate; not what only the load of other ports may have slowed."""
    for line in _by_line(judged(flows)).values():
        if line[0].together or _share(line) >= SHARE_MIN:
            continue
        whole = len({flow.line for flow in flows}) == 1
        over = "RDMA" if whole else f"RDMA over {_devices(line)}"
        return (
            f"{over} reaches {_rate(line) / 1e9:.1f} of the ports' {_line_bps(line) / 1e9:.0f} Gbit/s on all machines "
            "alike: look at the MTU, PCIe, and flow control"
        )
    return None


def told(flows: Sequence[RdmaFlow], missing: Mapping[str, str], left: Mapping[str, str] | None = None) -> str:
    """The line that says over what was measured; *left* is the evidence's `rdma_left`."""
    if flows:
        said = ["measured over TCP, and over RDMA by ib_write_bw", *_at_once(flows), *(left or {}).values()]
        return "; ".join(said)
    by_reason: dict[str, list[str]] = {}
    for name, reason in missing.items():
        by_reason.setdefault(reason, []).append(name)
    whys = [f"{reason} on {names_text(names)}" for reason, names in by_reason.items()]
    return "measured over TCP only" + (f": {'; '.join(whys)}" if whys else "")


def table(flows: Sequence[RdmaFlow]) -> str:
    """First what was measured with all ports of a machine at once, where it has several."""
    lines = []
    for together in (True, False):
        found = sorted((flow for flow in flows if flow.together == together), key=lambda flow: flow.line)
        if found:
            lines.append(f"RDMA, ib_write_bw, {'all ports at once, ' if together else ''}Gbit/s")
        for flow in found:
            way = f"{flow.sender} {flow.sending_device} → {flow.receiver} {flow.receiving_device}"
            lines.append(f"  {way:<40} {flow.reason or f'{flow.rate / 1e9:.2f}'}")
    return "\n".join(lines)


# One line of ports ---------------------------------------------------------------------------------------------------


def _of_line(flows: Sequence[RdmaFlow], middle: float) -> list[Finding]:
    """*middle*: the median of what works."""
    found = [_failed(flow, flows) for flow in flows if flow.reason]
    bad = [flow for flow in flows if not flow.reason and flow.rate < PEERS_MIN * middle]
    told: set[str] = set()
    for name in dict.fromkeys(name for flow in bad for name in (flow.sender, flow.receiver)):
        sends, receives = _all(name, "sender", bad, flows), _all(name, "receiver", bad, flows)
        if sends or receives:
            found.append((_port(name, bad, middle, sends=sends, receives=receives), (name,)))
            told.add(name)
    for flow in bad:
        if told.isdisjoint((flow.sender, flow.receiver)):
            found.append(
                (
                    f"RDMA from {flow.sender} ({flow.sending_device}) to {flow.receiver} ({flow.receiving_device}) is "
                    f"at {flow.rate / middle:.2f} of the others' median",
                    (flow.receiver,),
                )
            )
    return found


def _by_line(flows: Sequence[RdmaFlow]) -> dict[int, list[RdmaFlow]]:
    found: dict[int, list[RdmaFlow]] = {}
    for flow in flows:
        found.setdefault(flow.line, []).append(flow)
    return dict(sorted(found.items()))


def _rate(flows: Sequence[RdmaFlow]) -> float:
    return stats.median([flow.rate for flow in flows if not flow.reason])


def _share(flows: Sequence[RdmaFlow]) -> float:
    """Of the line rate; 1.0 where none of those that work tells it."""
    shares = [flow.rate / flow.line_bps for flow in flows if not flow.reason and flow.line_bps]
    return stats.median(shares) if shares else 1.0


def _slow(lines: Mapping[int, Sequence[RdmaFlow]]) -> dict[int, float]:
    """Lines that are slower than those of the same line rate, with their share of the median."""
    shares = {}
    for number, line in lines.items():
        peers = [_rate(peer) for peer in lines.values() if _line_bps(peer) == _line_bps(line) and _rate(peer)]
        if 0 < _rate(line) < PEERS_MIN * stats.median(peers):
            shares[number] = _rate(line) / stats.median(peers)
    return shares


def _line_bps(flows: Sequence[RdmaFlow]) -> float:
    return next((flow.line_bps for flow in flows if not flow.reason and flow.line_bps), 0.0)


def _devices(flows: Sequence[RdmaFlow]) -> str:
    return ", ".join(dict.fromkeys(name for flow in flows for name in (flow.sending_device, flow.receiving_device)))


def _slow_line(flows: Sequence[RdmaFlow], share: float) -> str:
    machines = list(dict.fromkeys(name for flow in flows for name in (flow.sender, flow.receiver)))
    return (
        f"RDMA over {_devices(flows)} is at {share:.2f} of the other ports' median, alike between "
        f"{names_text(machines)}"
    )


def _at_once(flows: Sequence[RdmaFlow]) -> list[str]:
    """Of several ports: how many, and whether they share a limit."""
    lines = _by_line([flow for flow in flows if flow.together])
    if not lines:
        return []
    said = [f"{len(lines)} ports of each machine at once"]
    alone = _by_line([flow for flow in flows if not flow.together])
    if shared := [number for number, line in alone.items() if 0 < _rate(lines[number]) < TOGETHER_MIN * _rate(line)]:
        share = stats.median([_rate(lines[number]) / _rate(alone[number]) for number in shared])
        devices = ", ".join(_devices(lines[number]) for number in shared)
        said.append(f"{devices} reach {share:.2f} of what they reach by themselves: they share a limit")
    return said


def _all(name: str, role: str, bad: Sequence[RdmaFlow], flows: Sequence[RdmaFlow]) -> bool:
    """Whether every one of at least two measurements in which *name* has this role is bad."""
    of_name = [flow for flow in flows if getattr(flow, role) == name and not flow.reason]
    return len(of_name) >= AGREE_MIN and all(flow in bad for flow in of_name)


def _port(name: str, bad: Sequence[RdmaFlow], middle: float, *, sends: bool, receives: bool) -> str:
    own = [flow for flow in bad if (sends and flow.sender == name) or (receives and flow.receiver == name)]
    device = own[0].sending_device if own[0].sender == name else own[0].receiving_device
    verb = "sends and receives" if sends and receives else "sends" if sends else "receives"
    best = max(flow.rate for flow in own)
    return f"{name}'s RDMA port {device} {verb} at {best / middle:.2f} of the others' median"


def _failed(flow: RdmaFlow, flows: Sequence[RdmaFlow]) -> Finding:
    """Blames the end that several failed ways share, when others work."""
    failed = [other for other in flows if other.reason]
    shared = [
        name
        for name in (flow.sender, flow.receiver)
        if sum(name in (other.sender, other.receiver) for other in failed) >= AGREE_MIN
        and not any(name in (other.sender, other.receiver) for other in flows if not other.reason)
    ]
    sentence = (
        f"RDMA from {flow.sender} ({flow.sending_device}) to {flow.receiver} ({flow.receiving_device}) does not work: "
        f"{flow.reason}"
    )
    return sentence, tuple(shared[:1]) if len(failed) < len(flows) else ()
