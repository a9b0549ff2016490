"""A network that is only numbers: ports with rates, ways, an uplink between two halves, and what a probe sees of it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from astra_netprobe.plan import PairRound, RingRound, next_step
from astra_netprobe.readings import Evidence, Flow, Hop

LINE = 1e9


@dataclass
class Network:
    """
    Attributes:
        sends, receives: Rates of single machines, bits per second; all others have *line*.
        ways: Rates of single directed ways.
        half: Names on one side of an uplink that carries *uplink* in each direction.
        bounds: What single machines send at most by their own setting, and say so.
        noise: Every measurement reaches its rate less a random share of up to so much.
    """

    names: tuple[str, ...]
    line: float = LINE
    sends: dict[str, float] = field(default_factory=dict)
    receives: dict[str, float] = field(default_factory=dict)
    ways: dict[tuple[str, str], float] = field(default_factory=dict)
    half: frozenset[str] = frozenset()
    uplink: float = 0.0
    bounds: dict[str, float] = field(default_factory=dict)
    noise: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def rates(self, pairs: Sequence[tuple[str, str]]) -> dict[tuple[str, str], float]:
        """What each pair could reach, all of them loaded at once."""
        crossing = {pair for pair in pairs if (pair[0] in self.half) != (pair[1] in self.half)}
        up = sum(pair[0] in self.half for pair in crossing) or 1
        down = len(crossing) - up or 1
        found = {}
        for pair in pairs:
            rate = min(
                self.sends.get(pair[0], self.line),
                self.receives.get(pair[1], self.line),
                self.ways.get(pair, self.line),
                self.bounds.get(pair[0], self.line),
            )
            if self.half and pair in crossing:
                rate = min(rate, self.uplink / (up if pair[0] in self.half else down))
            found[pair] = rate * (1 - self._random.uniform(0, self.noise))
        return found

    def ring(self, order: Sequence[str]) -> tuple[Hop, ...]:
        """An all-reduce goes at the pace of its slowest hop; the others are idle in between."""
        pairs = list(zip(order, [*order[1:], order[0]], strict=True))
        rates = self.rates(pairs)
        pace = min(rates.values())
        return tuple(Hop(one, other, busy=pace / rates[one, other], rate=rates[one, other]) for one, other in pairs)

    def flows(self, step: PairRound) -> tuple[Flow, ...]:
        pairs = [*step.pairs, *(tuple(reversed(pair)) for pair in step.pairs if step.both)]
        rates = self.rates([(one, other) for one, other in pairs])
        return tuple(Flow(one, other, rate, both=step.both) for (one, other), rate in rates.items())


def machines(count: int) -> tuple[str, ...]:
    return tuple(f"m-{i}" for i in range(count))


def probe(network: Network) -> Evidence:
    """Follow the plan to its end; checks on the way that no machine takes part twice in a round."""
    evidence = Evidence(machines=network.names, bounds=network.bounds)
    while (step := next_step(evidence)) is not None:
        match step:
            case RingRound(order):
                assert sorted(order) == sorted(network.names)
                evidence = replace(evidence, rings=(*evidence.rings, network.ring(order)))
            case PairRound(pairs):
                taking_part = [name for pair in pairs for name in pair]
                assert pairs and len(taking_part) == len(set(taking_part))
                evidence = replace(evidence, rounds=(*evidence.rounds, network.flows(step)))
    return evidence


def round_count(evidence: Evidence) -> int:
    return len(evidence.rings) + len(evidence.rounds)
