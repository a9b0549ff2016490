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
AGREE_MIN = 2
"""Neighbours that agree on a machine's one direction; fewer tell only of the way."""

Finding = tuple[str, tuple[str, ...]]
"""A sentence, and whom it blames."""


def findings(flows: Sequence[RdmaFlow]) -> list[Finding]:
    """Failed ways first, then what is slower than its peers."""
    middle = stats.median([flow.rate for flow in flows if not flow.reason])
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


def rate(flows: Sequence[RdmaFlow]) -> float:
    """Bits per second from one port to another, in the middle; 0.0 where none was measured."""
    return stats.median([flow.rate for flow in flows if not flow.reason])


def below(flows: Sequence[RdmaFlow]) -> str | None:
    """All are alike, and below their ports' line rate."""
    measured = [flow for flow in flows if not flow.reason and flow.line_bps]
    if not measured:
        return None
    shares = stats.median([flow.rate / flow.line_bps for flow in measured])
    if shares >= SHARE_MIN:
        return None
    rate, line = stats.median([flow.rate for flow in measured]), measured[0].line_bps
    return (
        f"RDMA reaches {rate / 1e9:.1f} of the ports' {line / 1e9:.0f} Gbit/s on all machines alike: look at the MTU, "
        "PCIe, and flow control"
    )


def told(flows: Sequence[RdmaFlow], missing: Mapping[str, str]) -> str:
    """The line that says over what was measured."""
    if flows:
        return "measured over TCP, and over RDMA by ib_write_bw"
    by_reason: dict[str, list[str]] = {}
    for name, reason in missing.items():
        by_reason.setdefault(reason, []).append(name)
    whys = [f"{reason} on {names_text(names)}" for reason, names in by_reason.items()]
    return "measured over TCP only" + (f": {'; '.join(whys)}" if whys else "")


def table(flows: Sequence[RdmaFlow]) -> str:
    lines = ["RDMA, ib_write_bw, Gbit/s"]
    for flow in flows:
        way = f"{flow.sender} {flow.sending_device} → {flow.receiver} {flow.receiving_device}"
        lines.append(f"  {way:<40} {flow.reason or f'{flow.rate / 1e9:.2f}'}")
    return "\n".join(lines)


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
