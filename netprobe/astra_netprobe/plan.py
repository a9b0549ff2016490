"""
Which round comes next: a pure function of what the earlier ones saw, so that a probe of four machines and a simulation
of 4,096 follow the same plan.

1. One ring in which every hop measures itself. A healthy network is done after it.
2. When some hop is slow: a second ring that has no directed edge in common with the first.
3. Pairs, each machine in one pair at a time: every pair when the machines are few; else the suspects with partners that
   are beyond suspicion, while those that are left over pair among themselves and give the measure under the same load.
4. What looks slow is measured twice more before anybody is blamed.

The number of rounds does not grow with the number of machines while most of them are sound: see the part's README.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from astra_netprobe import bounds, halves, stats
from astra_netprobe.readings import Evidence, Flow, Hop

MATRIX_MAX = 8
"""Up to so many machines every pair is measured: 7 rounds in each direction."""
UNEVEN_RATIO = 0.80
"""A hop below this share of the ring's fastest tenth makes its two machines suspects."""
PARTNERS = 2
REPEATS = 2
"""More measurements of what looked slow; the best of all counts."""
REPEATS_MAX = 5
"""Of what is slow and unsteady."""
STEADY_RATIO = 0.85
"""A link that is bad is bad by the same measure each time: what varies more than this is measured more often."""
AGREE_MIN = 3
"""Partners that agree on a machine need not be asked again."""
AGAIN_PAIRS_MAX = 64
"""So many slow pairs are measured again at the most: more than that is no noise."""

Directed: TypeAlias = tuple[str, str]
"""Sender and receiver."""


@dataclass(frozen=True, slots=True)
class RingRound:
    order: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PairRound:
    """All at once; no machine is in two of them. *both* loads the other directions, too."""

    pairs: tuple[Directed, ...]
    both: bool = False


Step: TypeAlias = RingRound | PairRound


def next_step(evidence: Evidence, *, matrix_max: int = MATRIX_MAX) -> Step | None:
    """What to measure next, among *evidence.machines*; None: enough is known."""
    evidence = bounds.levelled(evidence)
    names = [name for name in evidence.machines if name not in evidence.absent]
    if len(names) < 2:
        return None
    if not evidence.rings:
        return RingRound(tuple(names))
    is_small = len(names) <= matrix_max
    if not is_small and not any(suspect_hops(hops) for hops in evidence.rings):
        return None
    if not is_small and len(evidence.rings) == 1:
        return RingRound(second_ring(names))
    schedule = matrix(names) if is_small else trials(names, evidence.rings)
    if len(evidence.rounds) < len(schedule):
        return schedule[len(evidence.rounds)]
    return again(names, evidence.flows)


# Rings ---------------------------------------------------------------------------------------------------------------


def second_ring(names: Sequence[str]) -> tuple[str, ...]:
    """An order with no directed edge of the first ring in it; from five machines on, with new neighbours for all."""
    count = len(names)
    if count == 6:
        return tuple(names[i] for i in (0, 2, 4, 1, 5, 3))
    if count < 5:
        return tuple(reversed(names))
    stride = _stride(count)
    return tuple(names[i * stride % count] for i in range(count))


def _stride(count: int) -> int:
    """
    The one that visits everybody and is nearest to 0.29 of the ring: neighbours of the first ring come far apart, and
    of two halves that are contiguous in it about as many hops join the halves (0.59) as stay inside.
    """
    best = count * (1 - math.sqrt(0.5))
    fitting = [stride for stride in range(2, count - 1) if math.gcd(stride, count) == 1]
    return min(fitting, key=lambda stride: abs(stride - best))


def suspect_hops(hops: Iterable[Hop]) -> tuple[Hop, ...]:
    """Hops that were slow while they had something to do, or broke."""
    known = tuple(hops)
    reference = stats.quantile([hop.rate for hop in known if not hop.broken], 0.9)
    return tuple(
        hop for hop in known if hop.broken or (hop.busy >= bounds.BUSY_MIN and hop.rate < UNEVEN_RATIO * reference)
    )


# Pairs ---------------------------------------------------------------------------------------------------------------


def tournament(names: Sequence[str]) -> tuple[tuple[Directed, ...], ...]:
    """Every pair once, in rounds in which each takes part at most once: the circle method."""
    seats: list[str | None] = [*names] if len(names) % 2 == 0 else [*names, None]
    rounds = []
    for _ in range(len(seats) - 1):
        half = len(seats) // 2
        meet = zip(seats[:half], reversed(seats[half:]), strict=True)
        rounds.append(tuple((one, other) for one, other in meet if one is not None and other is not None))
        seats = [seats[0], seats[-1], *seats[1:-1]]
    return tuple(rounds)


def matrix(names: Sequence[str]) -> tuple[PairRound, ...]:
    """Every pair in each direction apart, then in both at once."""
    rounds: list[PairRound] = []
    for pairs in tournament(names):
        rounds += [PairRound(pairs), PairRound(_turned(pairs)), PairRound(pairs, both=True)]
    return tuple(rounds)


def trials(names: Sequence[str], rings: Sequence[Sequence[Hop]]) -> tuple[PairRound, ...]:
    """
    The pair rounds that tell which of the suspects is to blame, and in which direction.

    Suspects that two rings share out into two halves with a slow way between them are tried as halves; suspects in the
    minority get partners beyond suspicion; when there are too few of those, everybody meets some others.
    """
    slow = [hop for hops in rings for hop in suspect_hops(hops)]
    suspects = tuple(dict.fromkeys(name for hop in slow for name in (hop.sender, hop.receiver)))
    good = [name for name in names if name not in set(suspects)]
    if (split := halves.split(names, rings, slow)) is not None:
        return _across(*split)
    if len(good) >= max(PARTNERS, len(suspects) // 4):
        return (*_alone(slow), *_with_partners(suspects, good))
    return _sample(names)


def _alone(slow: Sequence[Hop]) -> tuple[PairRound, ...]:
    """The slow hops themselves, without the rest of their ring."""
    return tuple(PairRound(pairs) for pairs in disjoint((hop.sender, hop.receiver) for hop in slow))


def _with_partners(suspects: Sequence[str], good: Sequence[str]) -> tuple[PairRound, ...]:
    rounds: list[PairRound] = []
    for begin in range(0, len(suspects), len(good)):
        tried = suspects[begin : begin + len(good)]
        for turn in range(PARTNERS):
            partners = [good[(i + turn) % len(good)] for i in range(len(tried))]
            idle = [name for name in good if name not in set(partners)]
            pairs = tuple(zip(tried, partners, strict=True)) + _neighbours(idle)
            rounds += [PairRound(pairs), PairRound(_turned(pairs))]
    return tuple(rounds)


def _across(one: Sequence[str], other: Sequence[str]) -> tuple[PairRound, ...]:
    """Inside the halves, then between them: all at once, since it is load that shows a thin way."""
    inside = _neighbours(one) + _neighbours(other)
    between = tuple(zip(one, other, strict=False))
    turned = tuple(zip(one, [*other[1:], other[0]], strict=False))
    return tuple(PairRound(pairs) for pairs in (inside, between, _turned(between), _turned(inside), turned))


def _sample(names: Sequence[str]) -> tuple[PairRound, ...]:
    """For each machine about two partners for each doubling of their number."""
    rounds = tournament(names)
    count = min(len(rounds), 2 * math.ceil(math.log2(len(names))))
    chosen = [rounds[i * len(rounds) // count] for i in range(count)]
    return tuple(PairRound(pairs) for round_ in chosen for pairs in (round_, _turned(round_)))


def again(names: Sequence[str], flows: Sequence[Flow]) -> PairRound | None:
    """Pairs that look slow and were not measured often enough to be sure."""
    measured: dict[Directed, list[float]] = {}
    for flow in flows:
        measured.setdefault((flow.sender, flow.receiver), []).append(flow.rate)
    best = {pair: max(rates) for pair, rates in measured.items()}
    reference = stats.quantile(list(best.values()), 0.75)
    slow = {pair: rate < UNEVEN_RATIO * reference for pair, rate in best.items()}
    if sum(slow.values()) > AGAIN_PAIRS_MAX or halves.split_pairs(names, slow):
        return None
    sent, received = _agreed(best, slow, 0), _agreed(best, slow, 1)
    due = [
        pair
        for pair, rates in measured.items()
        if slow[pair] and pair[0] not in sent and pair[1] not in received and not _is_sure(rates)
    ]
    return PairRound(disjoint(due)[0]) if due else None


def _is_sure(rates: Sequence[float]) -> bool:
    return len(rates) > REPEATS_MAX or (len(rates) > REPEATS and min(rates) >= STEADY_RATIO * max(rates))


def _agreed(best: Mapping[Directed, float], slow: Mapping[Directed, bool], end: int) -> set[str]:
    """Machines that are steadily slow with all of at least three partners: those have repeated one another."""
    rates: dict[str, list[float]] = {}
    for pair, rate in best.items():
        rates.setdefault(pair[end], []).append(rate)
    with_some_sound = {pair[end] for pair, is_slow in slow.items() if not is_slow}
    return {
        name
        for name, found in rates.items()
        if name not in with_some_sound and len(found) >= AGREE_MIN and min(found) >= STEADY_RATIO * max(found)
    }


def disjoint(pairs: Iterable[Directed]) -> tuple[tuple[Directed, ...], ...]:
    """Share pairs out into rounds in which each machine takes part at most once; greedy, in the given order."""
    rounds: list[tuple[list[Directed], set[str]]] = []
    for pair in dict.fromkeys(pairs):
        for chosen, taken in rounds:
            if taken.isdisjoint(pair):
                chosen.append(pair)
                taken.update(pair)
                break
        else:
            rounds.append(([pair], set(pair)))
    return tuple(tuple(chosen) for chosen, _ in rounds)


def _neighbours(names: Sequence[str]) -> tuple[Directed, ...]:
    return tuple(zip(names[0::2], names[1::2], strict=False))


def _turned(pairs: Iterable[Directed]) -> tuple[Directed, ...]:
    return tuple((receiver, sender) for sender, receiver in pairs)
