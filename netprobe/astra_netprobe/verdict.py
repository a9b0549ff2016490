"""
The judgement on a probe: one sentence, what it rests on, and the exit status that scripts branch on.

Made from the plateau and the pairs, never from an average over sizes. What could not be measured is never called sound,
and never sick either.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from astra_netprobe import bounds, localise, rdma_verdict, reach, stats, tables
from astra_netprobe.plan import Directed
from astra_netprobe.readings import Evidence, LargePacket, Port, Wrong

TCP_SHARE_MIN = 0.85
"""Of a port's line rate, or of what was asked for: with an MTU of 1500, TCP carries 0.956 at best."""
_VIRTUAL_DRIVERS = frozenset({"veth", "bridge", "tun", "virtio_net", "dummy", "macvlan", "ipvlan", ""})
"""Drivers that name a speed which is none."""
_HEADERS_BYTES = 28
"""Of IPv4 and UDP."""

State = Literal["sound", "below", "sick", "unmeasured"]
EXIT: dict[State, int] = {"sound": 0, "below": 1, "sick": 1, "unmeasured": 3}
"""2 is for bad input, and comes from who asked."""


@dataclass(frozen=True, slots=True)
class Asked:
    """
    What the run needs of one port; 0: nothing was asked.

    Attributes:
        of_rdma: Of an RDMA port, which the machine's address may not be on: what TCP does not reach is no shortage.
    """

    min_bps: float = 0.0
    of_rdma: bool = False

    @classmethod
    def of(cls, min_gbps: float, tier: str) -> Asked:
        """Of a run with such a `min_gbps` that is placed on *tier*."""
        return cls(1e9 * min_gbps, of_rdma=tier in ("infiniband", "rdma"))


@dataclass(frozen=True, slots=True)
class Verdict:
    """
    Attributes:
        sentence: The first thing that a person reads.
        more: Further findings, each a sentence.
        notes: What was seen and blames nobody.
        blamed: Machines that another one should take the place of.
    """

    state: State
    sentence: str
    more: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    blamed: tuple[str, ...] = ()

    @property
    def exit(self) -> int:
        return EXIT[self.state]


@dataclass(frozen=True, slots=True)
class _Finding:
    sentence: str
    blamed: tuple[str, ...]


def judge(evidence: Evidence, asked: Asked | None = None) -> Verdict:
    """What *evidence* says of the network between its machines."""
    slow, certain = localise.slow(evidence), localise.is_certain(evidence)
    slower, slow_ones = _slower_ports(evidence.ports), {name for one in slow if one.sick for name in _blame(one)}
    found = [
        *(_Finding(sentence, blamed) for sentence, blamed in reach.findings(evidence)),
        *_wrong(evidence.wrongs),
        *_black_holes(evidence.packets),
        *_duplex(evidence.ports),
        *(_Finding(finding.sentence, _blame(finding)) for finding in slow if finding.sick and certain),
        *(_Finding(sentence, (name,)) for name, sentence in slower.items() if name in slow_ones and certain),
        *(_Finding(sentence, blamed) for sentence, blamed in rdma_verdict.findings(evidence.rdma)),
    ]
    notes = (
        *(finding.sentence for finding in slow if not finding.sick),
        *(sentence for name, sentence in slower.items() if name not in slow_ones or not certain),
        *(again for finding in slow if (again := _sent_again(finding, evidence)) is not None),
        *_notes(evidence),
    )
    if found:
        blamed = tuple(dict.fromkeys(name for finding in found for name in finding.blamed))
        more = tuple(finding.sentence for finding in found[1:])
        return Verdict("sick", found[0].sentence, more, (*notes, *_bound_notes(evidence)), blamed)
    if evidence.absent:
        sentences = tuple(evidence.absent.values())
        return Verdict("unmeasured", sentences[0], sentences[1:], notes, tuple(evidence.absent))
    if not certain and (sick := [finding for finding in slow if finding.sick]):
        return Verdict("unmeasured", f"{sick[0].sentence}: so it seems, but the time was over before it was sure")
    measured = _rate(evidence)
    if measured is None:
        return Verdict("unmeasured", tables.decides(evidence.sizes), notes=notes)
    reached = _by_network(evidence, measured)
    if (short := _short(evidence, reached, asked or Asked())) is not None:
        return Verdict(*short, notes=(*notes, *_bound_notes(evidence)))
    if (sentence := _below_line(evidence, reached)) is not None:
        return Verdict("below", sentence, notes=(*notes, *_bound_notes(evidence)))
    if (sentence := rdma_verdict.below(evidence.rdma)) is not None:
        return Verdict("below", sentence, notes=notes)
    if (sentence := _beyond_bounds(evidence, asked or Asked())) is not None:
        return Verdict("unmeasured", sentence, notes=notes)
    return Verdict("sound", _sound(evidence), notes=notes)


# One sentence each ---------------------------------------------------------------------------------------------------


def _wrong(wrongs: Sequence[Wrong]) -> list[_Finding]:
    blamed = _to_blame([(wrong.sender, wrong.receiver) for wrong in wrongs], prefer=1)
    return [
        _Finding(
            f"{wrong.elements} {'element' if wrong.elements == 1 else 'elements'} from {wrong.sender} to "
            f"{wrong.receiver} arrived changed; the link between them corrupts data",
            (blamed[wrong.sender, wrong.receiver],),
        )
        for wrong in sorted(wrongs, key=lambda wrong: -wrong.elements)
    ]


def _black_holes(packets: Sequence[LargePacket]) -> list[_Finding]:
    holes = [packet for packet in packets if packet.small_arrived and not packet.large_arrived]
    blamed = _to_blame([(hole.sender, hole.receiver) for hole in holes], prefer=0)
    return [
        _Finding(
            f"packets of {hole.mtu} bytes from {hole.sender} to {hole.receiver} vanish while small ones arrive: "
            f"an MTU black hole on the way from {hole.sender} to {hole.receiver}",
            (blamed[hole.sender, hole.receiver],),
        )
        for hole in holes
    ]


def _to_blame(ways: Sequence[Directed], *, prefer: int) -> dict[Directed, str]:
    """
    For each way that is at fault the machine that most of them have in common: its peers are not at fault themselves.

    Args:
        prefer: The end that has to go where both have equally many: the receiver of what was changed (1), the sender of
            packets that are too large for a way (0).
    """
    blamed: dict[Directed, str] = {}
    left = list(ways)
    while left:
        counts = Counter(name for way in left for name in way)
        ends = [way[end] for way in left for end in (prefer, 1 - prefer)]
        name = max(ends, key=lambda end: counts[end])
        blamed |= {way: name for way in left if name in way}
        left = [way for way in left if name not in way]
    return blamed


def _duplex(ports: Sequence[Port]) -> list[_Finding]:
    return [
        _Finding(
            f"{port.machine}'s port {port.device} is in half duplex: check the cable and the switch", (port.machine,)
        )
        for port in ports
        if port.duplex == "half" and port.driver not in _VIRTUAL_DRIVERS
    ]


def _slower_ports(ports: Sequence[Port]) -> dict[str, str]:
    """By machine: its port negotiated less than its peers' did in the middle."""
    told = [port for port in ports if port.speed_bps and port.driver not in _VIRTUAL_DRIVERS]
    found = {}
    for port in told:
        others = [other.speed_bps for other in told if other is not port]
        if others and port.speed_bps < (usual := stats.median(others)):
            whose = "the other's" if len(others) == 1 else "the others'"
            found[port.machine] = (
                f"{port.machine}'s port {port.device} runs at {port.speed_bps / 1e9:g} Gbit/s, {whose} at "
                f"{usual / 1e9:g}: check the cable and the switch"
            )
    return found


def _sent_again(finding: localise.Slow, evidence: Evidence) -> str | None:
    """What TCP lost where it is slow: a bad cable loses, a link that is only slower need not."""

    def is_of_it(sender: str, receiver: str) -> bool:
        match finding.kind:
            case "sends":
                return sender in finding.machines
            case "receives":
                return receiver in finding.machines
            case "both_ways":
                return sender in finding.machines or receiver in finding.machines
            case "halves":
                return (sender in finding.machines) != (receiver in finding.machines)
            case _:
                return (sender, receiver) == finding.machines

    count = sum(hop.retransmits for hops in evidence.rings for hop in hops if is_of_it(hop.sender, hop.receiver))
    count += sum(flow.retransmits for flow in evidence.flows if is_of_it(flow.sender, flow.receiver))
    if not count:
        return None
    where = {
        "sends": f"what {finding.machines[0]} sent", "receives": f"what was sent to {finding.machines[0]}",
        "both_ways": f"what {finding.machines[0]} sent and was sent", "halves": "what went between the halves",
    }.get(finding.kind, f"what {finding.machines[0]} sent to {finding.machines[-1]}")  # fmt: skip
    return f"of {where} {count} {'packet' if count == 1 else 'packets'} had to be sent again"


def _blame(finding: localise.Slow) -> tuple[str, ...]:
    """One machine where one is to blame; of a way its receiver, since one of the two must go; of halves nobody."""
    return {"halves": (), "way": finding.machines[1:], "one_direction": finding.machines[1:]}.get(
        finding.kind, finding.machines
    )


def _notes(evidence: Evidence) -> list[str]:
    notes = []
    mtus = {port.mtu for port in evidence.ports if port.mtu}
    if len(mtus) > 1:
        usual = stats.median([port.mtu for port in evidence.ports])
        odd = [port for port in evidence.ports if port.mtu != usual]
        listed = ", ".join(f"{port.machine} {port.mtu}" for port in odd[:8])
        notes.append(f"the MTU of ports differs: {listed}, the others {usual:.0f}")
    notes += [
        f"{port.machine}'s port {port.device} counted {port.errors} errors and drops during the probe"
        for port in evidence.ports
        if port.errors
    ]
    if evidence.cpu_bound:
        notes.append(
            f"CPU-bound, the network was not the limit: {localise.names_text(evidence.cpu_bound)}; "
            "nobody is blamed for what such a machine did not reach"
        )
    return notes


def _rate(evidence: Evidence) -> float | None:
    """Bits per second of one machine's link: on the plateau, else in pairs."""
    if (found := tables.plateau(evidence.sizes)) is not None:
        return 8 * found.bus_bytes_per_s
    best = localise.best_rates(evidence)
    return stats.median(list(best.values())) if best else None


def _short(evidence: Evidence, reached: float, asked: Asked) -> tuple[State, str] | None:
    """
    What was asked for and not reached. By RDMA where it was measured, which programs use then; else by TCP, and by
    that only where the processor was not the limit.
    """
    if not asked.min_bps:
        return None
    if rdma := rdma_verdict.rate(evidence.rdma):
        if rdma >= rdma_verdict.SHARE_MIN * asked.min_bps:
            return None
        what = f"RDMA reaches {tables.rate_text(rdma)}"
        return "below", f"{what} of the {tables.rate_text(asked.min_bps)} asked for; {_alike(evidence)} flow control"
    if reached >= TCP_SHARE_MIN * asked.min_bps:
        return None
    what = f"{tables.rate_text(reached)} of the {tables.rate_text(asked.min_bps)} asked for"
    if asked.of_rdma:
        return "unmeasured", f"TCP reaches {what}, which is of RDMA ports, and over these nothing was measured"
    if not evidence.cpu_bound:
        return "below", f"{what}; {_alike(evidence)} processors"
    free = _free_of_processors(evidence)
    if not free:
        return (
            "unmeasured",
            f"TCP reaches {what}, and there the processors are the limit, not the network: whether it carries more "
            "could not be measured",
        )
    if (reached := stats.median(free)) >= TCP_SHARE_MIN * asked.min_bps:
        return None
    what = f"{tables.rate_text(reached)} of the {tables.rate_text(asked.min_bps)} asked for"
    return "below", f"{what} where no processor is the limit: look at the transport and the MTU"


def _below_line(evidence: Evidence, reached: float) -> str | None:
    """Below the line of the ports, and not by a machine's own bound or its processor."""
    if evidence.cpu_bound:
        return None
    lines = [port.speed_bps for port in evidence.ports if port.driver not in _VIRTUAL_DRIVERS]
    if lines and min(lines) > 0 and reached < TCP_SHARE_MIN * min(lines):
        return (
            f"{tables.rate_text(reached)} of the ports' {tables.rate_text(min(lines))}; {_alike(evidence)} processors"
        )
    return None


def _by_network(evidence: Evidence, measured: float) -> float:
    """*measured*, or what pairs reach that no machine's own bound holds back; without limit where none is left."""
    if measured < TCP_SHARE_MIN * min(evidence.bounds.values(), default=math.inf):
        return measured
    free = [rate for (sender, _), rate in localise.best_rates(evidence).items() if sender not in evidence.bounds]
    return stats.median(free) if free else math.inf


def _free_of_processors(evidence: Evidence) -> list[float]:
    """Rates of the pairs that neither a processor nor a bound held back."""
    busy = set(evidence.cpu_bound)
    best = localise.best_rates(evidence)
    return [rate for pair, rate in best.items() if busy.isdisjoint(pair) and pair[0] not in evidence.bounds]


def _alike(evidence: Evidence) -> str:
    count = len(evidence.machines)
    everybody = "both machines are" if count == 2 else f"all {count} machines are"
    return f"{everybody} equally slow, so it is no single machine's link: look at the transport, the MTU, the"


def _beyond_bounds(evidence: Evidence, asked: Asked) -> str | None:
    """Not all machines may send so fast in a probe that they could show what was asked."""
    short = {name: bound for name, bound in evidence.bounds.items() if bound < TCP_SHARE_MIN * asked.min_bps}
    if not short:
        return None
    return (
        f"{_bounded(short)}: whether the {tables.rate_text(asked.min_bps)} asked for can be reached could not be "
        "measured; up to that bound nothing is wrong"
    )


def _bound_notes(evidence: Evidence) -> list[str]:
    """What the numbers of a finding can't say themselves."""
    limited = bounds.reached(evidence)
    return [f"{_bounded(limited)}: rates are compared with that, not with what others reach"] if limited else []


def _bounded(limited: Mapping[str, float]) -> str:
    """Of machines with bounds, bits per second; at least one."""
    names = localise.names_text(tuple(limited))
    low, high = tables.rate_text(min(limited.values())), tables.rate_text(max(limited.values()))
    rates = low if low == high else f"{low} to {high}"
    if len(limited) == 1:
        return f"{names} sends no faster than {rates} in a probe, by its own setting"
    return f"{names} send no faster than {rates} in a probe, by their own settings"


def _sound(evidence: Evidence) -> str:
    count = len(evidence.machines)
    if (found := tables.plateau(evidence.sizes)) is not None:
        rate = f"{tables.rate_text(8 * found.bus_bytes_per_s)} bus bandwidth at {tables.size_text(found.size_bytes)}"
    else:
        rate = f"{tables.rate_text(stats.median(list(localise.best_rates(evidence).values())))} in pairs"
    wrong = "every element right" if evidence.sizes else "no element wrong"
    sentence = f"{count} machines are sound: {rate}, {wrong}, no link slower than its peers"
    if rdma := rdma_verdict.rate(evidence.rdma):
        sentence += f"; RDMA {tables.rate_text(rdma)} from port to port"
    if limited := bounds.reached(evidence):
        # A ring goes at the pace of its slowest hop; in pairs the others are measured without it.
        were = "all were" if not evidence.rounds else "was" if len(limited) == 1 else "were"
        sentence += f"; {_bounded(limited)}, and {were} measured only up to that"
    return sentence
