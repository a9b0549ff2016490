"""
Who is slow: from pair readings to findings about machines, directions, ways and halves.

Noise only ever slows a measurement down, so the best of its repeats counts, and what counts is how far it is from the
sound ones: by ratio *and* by their own spread. A machine whose processor was the limit is not blamed on its network.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from astra_netprobe import bounds, halves, plan, stats
from astra_netprobe.plan import Directed
from astra_netprobe.readings import Evidence

SICK_RATIO = 0.80
DOUBTFUL_RATIO = 0.90
WAY_RATIO = 0.70
"""A way has no others that agree with it, and there are as many as pairs: chance finds some below 0.8."""
Z_MIN = -3.0
_AGREE = 0.8
"""Of the flows inside two halves so many must be sound, and of those between them slow."""

Kind = Literal["sends", "receives", "both_ways", "way", "one_direction", "halves"]


@dataclass(frozen=True, slots=True)
class Slow:
    """
    Attributes:
        machines: One machine; sender and receiver of a way; or all machines of the smaller half.
        ratio: Of what sound peers reach, 0 to 1; of *sends* and *receives* the worse one.
        sick: Else it is only doubtful: told, and nobody is blamed.
    """

    kind: Kind
    machines: tuple[str, ...]
    ratio: float
    sick: bool
    sentence: str


@dataclass(frozen=True, slots=True)
class Sound:
    """What sound pairs reach: the median and the spread around it, in bits per second."""

    middle: float
    sigma: float

    def ratio(self, rates: Sequence[float]) -> float:
        return stats.median(rates) / self.middle if self.middle > 0 else 1.0

    def is_below(self, rates: Sequence[float], share: float) -> bool:
        """All of *rates* are below, and not by chance."""
        return (
            bool(rates) and max(rates) < share * self.middle and stats.median(rates) < self.middle + Z_MIN * self.sigma
        )


def slow(evidence: Evidence) -> tuple[Slow, ...]:
    """Everything that is slower than its peers. Empty when all are alike, however slow."""
    silent, evidence = bounds.silent(evidence), bounds.levelled(evidence)
    best = best_rates(evidence)
    of_receivers = {pair: rate for pair, rate in best.items() if pair not in silent}
    if len(evidence.machines) == 2:
        return _of_two(of_receivers, evidence.cpu_bound)
    sound = _sound(best)
    if sound is None:
        return ()
    if (split := _split(evidence, of_receivers, sound)) is not None:
        return (_between(split, of_receivers, sound),)
    sent, received = _by_end(best, 0), _by_end(of_receivers, 1)
    found = [
        finding
        for name in evidence.machines
        if name not in evidence.cpu_bound
        and (finding := _of_machine(name, sent.get(name, ()), received.get(name, ()), sound)) is not None
    ]
    blamed = {name for finding in found if finding.sick for name in finding.machines}
    slow_ways = [
        pair
        for pair in _confirmed(evidence, best)
        if blamed.isdisjoint(pair)
        and set(evidence.cpu_bound).isdisjoint(pair)
        and sound.is_below([best[pair]], WAY_RATIO)
    ]
    found += (lone := _of_lone_machines(slow_ways, best, silent, sound))
    blamed = {name for finding in lone for name in finding.machines}
    ways = [_way(pair, best[pair], sound) for pair in slow_ways if blamed.isdisjoint(pair)]
    return tuple(sorted((*found, *ways), key=lambda finding: (not finding.sick, finding.ratio)))


def is_certain(evidence: Evidence) -> bool:
    """Whether what looks slow was measured often enough: a probe may run out of time before."""
    evidence = bounds.levelled(evidence)
    taking_part = {name for flow in evidence.flows for name in (flow.sender, flow.receiver)}
    names = [name for name in evidence.machines if name in taking_part]
    return plan.again(names, evidence.flows) is None


def best_rates(evidence: Evidence) -> dict[Directed, float]:
    """The best measurement of every directed pair: what was reached once, the way can carry."""
    best: dict[Directed, float] = {}
    for flow in evidence.flows:
        if not flow.broken:
            pair = (flow.sender, flow.receiver)
            best[pair] = max(flow.rate, best.get(pair, 0.0))
    return best


def _sound(best: Mapping[Directed, float]) -> Sound | None:
    reference = stats.quantile(list(best.values()), 0.75)
    rates = tuple(rate for rate in best.values() if rate >= SICK_RATIO * reference)
    return Sound(stats.median(rates), stats.sigma(rates)) if rates and reference > 0 else None


def _confirmed(evidence: Evidence, best: Mapping[Directed, float]) -> tuple[Directed, ...]:
    """Pairs that were measured again since they looked slow."""
    times = Counter((flow.sender, flow.receiver) for flow in evidence.flows)
    return tuple(pair for pair in best if times[pair] > plan.REPEATS)


def _of_two(best: Mapping[Directed, float], cpu_bound: Sequence[str]) -> tuple[Slow, ...]:
    """Two machines have no peers but each other: one direction is judged by the other."""
    if len(best) < 2 or cpu_bound:
        return ()
    (pair, rate), (_, other) = sorted(best.items(), key=lambda item: item[1])
    ratio = rate / other if other > 0 else 1.0
    if ratio >= WAY_RATIO:
        return ()
    sentence = (
        f"{pair[0]} to {pair[1]} is at {ratio:.2f} of the other direction; "
        f"the link of {pair[0]} or {pair[1]} is slow in one direction"
    )
    return (Slow("one_direction", pair, ratio, True, sentence),)


def _by_end(best: Mapping[Directed, float], end: int) -> dict[str, list[float]]:
    """Rates by sender (0) or by receiver (1)."""
    rates: dict[str, list[float]] = {}
    for pair, rate in best.items():
        rates.setdefault(pair[end], []).append(rate)
    return rates


def _of_machine(name: str, sent: Sequence[float], received: Sequence[float], sound: Sound) -> Slow | None:
    for share in (SICK_RATIO, DOUBTFUL_RATIO):
        sends = len(sent) >= plan.PARTNERS and sound.is_below(sent, share)
        receives = len(received) >= plan.PARTNERS and sound.is_below(received, share)
        if sends or receives:
            return _machine(
                name, sound.ratio(sent) if sends else None, sound.ratio(received) if receives else None,
                sick=share == SICK_RATIO,
            )  # fmt: skip
    return None


def _machine(name: str, sends: float | None, receives: float | None, *, sick: bool) -> Slow:
    low = "is slow" if sick else "may be slow"
    if sends is not None and receives is not None:
        what = f"sends at {sends:.2f} and receives at {receives:.2f} of the others' median"
        sentence = f"{name} {what}; the link of {name} {low} in both directions"
        return Slow("both_ways", (name,), min(sends, receives), sick, sentence)
    kind: Kind = "sends" if sends is not None else "receives"
    ratio = sends if sends is not None else receives or 0.0
    sentence = f"{name} {kind} at {ratio:.2f} of the others' median; the link of {name} {low} in one direction"
    return Slow(kind, (name,), ratio, sick, sentence)


def _of_lone_machines(
    slow_ways: Sequence[Directed], best: Mapping[Directed, float], silent: Collection[Directed], sound: Sound
) -> list[Slow]:
    """Machines that were measured with too few partners, and were slow with each, while these are fine with others."""
    fine = [pair for pair, rate in best.items() if rate >= SICK_RATIO * sound.middle]
    senders, receivers = {pair[0] for pair in fine}, {pair[1] for pair in fine if pair not in silent}
    sends = {pair[0]: best[pair] for pair in slow_ways if pair[0] not in senders and pair[1] in receivers}
    receives = {pair[1]: best[pair] for pair in slow_ways if pair[1] not in receivers and pair[0] in senders}
    return [
        _machine(
            name,
            sound.ratio([sends[name]]) if name in sends else None,
            sound.ratio([receives[name]]) if name in receives else None,
            sick=True,
        )
        for name in dict.fromkeys((*sends, *receives))
    ]


def _way(pair: Directed, rate: float, sound: Sound) -> Slow:
    ratio = sound.ratio([rate])
    sentence = (
        f"{pair[0]} to {pair[1]} is at {ratio:.2f} of the others' median, while both are fine with others; "
        f"the way from {pair[0]} to {pair[1]} is slow"
    )
    return Slow("way", pair, ratio, True, sentence)


# Halves --------------------------------------------------------------------------------------------------------------


def _split(
    evidence: Evidence, best: Mapping[Directed, float], sound: Sound
) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    names = evidence.machines
    if len(names) <= plan.MATRIX_MAX:
        return halves.split_pairs(names, {pair: rate < SICK_RATIO * sound.middle for pair, rate in best.items()})
    suspects = [hop for hops in evidence.rings for hop in plan.suspect_hops(hops)]
    split = halves.split(names, evidence.rings, suspects) if suspects else None
    if split is None:
        return None
    one, other = map(frozenset, split)
    fine = {pair: rate >= SICK_RATIO * sound.middle for pair, rate in best.items()}
    inside = [[is_fine for pair, is_fine in fine.items() if side.issuperset(pair)] for side in (one, other)]
    between = [not is_fine for pair, is_fine in fine.items() if one.isdisjoint(pair[:1]) != one.isdisjoint(pair[1:])]
    agree = all(rows and sum(rows) >= _AGREE * len(rows) for rows in (*inside, between))
    return split if agree else None


def _between(split: tuple[tuple[str, ...], tuple[str, ...]], best: Mapping[Directed, float], sound: Sound) -> Slow:
    one, other = split
    first = frozenset(one)
    ratio = sound.ratio([rate for (a, b), rate in best.items() if (a in first) != (b in first)])
    sentence = (
        f"between {names_text(one)} and {names_text(other)} pairs reach {ratio:.2f} of what they reach inside each "
        "half; the uplink between the halves is oversubscribed"
    )
    return Slow("halves", min(one, other, key=len), ratio, True, sentence)


def names_text(names: Sequence[str]) -> str:
    """All of a few names, the first and last of many."""
    if len(names) <= 4:
        return ", ".join(names)
    return f"{names[0]} … {names[-1]} ({len(names)} machines)"
