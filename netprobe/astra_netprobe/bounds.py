"""
Machines that send no faster in a probe than their own setting lets them: no fault of their network, and never read as
one. Pure.

A pair that carries all that its sender may send says nothing of what it could carry beyond, so it is compared with
nothing; one that carries less is measured by that bound. All others are judged as ever, so a bound on one machine hides
no fault of another.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TypeAlias

from astra_netprobe import stats
from astra_netprobe.readings import Evidence, Flow, Hop

Pair: TypeAlias = tuple[str, str]
"""Sender and receiver."""

AT_BOUND = 0.80
"""Of the bound, which counts headers, too; what is below this share of its peers is slow in every other place."""
BUSY_MIN = 0.30
"""A hop that had less to do than this sent its bytes in bursts, which say nothing of a bound."""


def levelled(evidence: Evidence) -> Evidence:
    """
    As if no machine had a bound: what to compare, and what to plan by. What carries all of a bound is as fast as the
    others, and what carries half of it half as fast. Idempotent.
    """
    if not evidence.bounds:
        return evidence
    return replace(
        evidence,
        bounds={},
        rings=tuple(_hops(hops, evidence.bounds) for hops in evidence.rings),
        rounds=tuple(_flows(evidence)),
    )


def silent(evidence: Evidence) -> frozenset[Pair]:
    """Pairs that carry all that their sender may send, and less than others do: of the receiver they say nothing."""
    best, reference = _best(evidence)
    return frozenset(
        pair
        for pair, rate in best.items()
        if (bound := evidence.bounds.get(pair[0])) is not None and AT_BOUND * bound <= rate and bound < reference
    )


def reached(evidence: Evidence) -> dict[str, float]:
    """Bounds, bits per second, that were the limit of what was measured somewhere."""
    rates = [(flow.sender, flow.rate) for flow in evidence.flows if not flow.broken]
    rates += [(hop.sender, hop.rate) for hops in evidence.rings for hop in hops if hop.busy >= BUSY_MIN]
    limited = {name for name, rate in rates if name in evidence.bounds and rate >= AT_BOUND * evidence.bounds[name]}
    return {name: bound for name, bound in evidence.bounds.items() if name in limited}


def _hops(hops: Iterable[Hop], bounds: dict[str, float]) -> tuple[Hop, ...]:
    known = tuple(hops)
    free = [hop.rate for hop in known if not hop.broken and hop.sender not in bounds]
    reference = stats.quantile(free or [hop.rate for hop in known if not hop.broken], 0.9)
    return tuple(replace(hop, rate=_level(hop.rate, bounds.get(hop.sender), reference)) for hop in known)


def _flows(evidence: Evidence) -> Iterator[tuple[Flow, ...]]:
    _, reference = _best(evidence)
    for flows in evidence.rounds:
        yield tuple(
            replace(flow, rate=_level(flow.rate, evidence.bounds.get(flow.sender), reference)) for flow in flows
        )


def _level(rate: float, bound: float | None, reference: float) -> float:
    if bound is None or bound >= reference:
        return rate
    return reference if rate >= AT_BOUND * bound else rate * reference / bound


def _best(evidence: Evidence) -> tuple[dict[Pair, float], float]:
    """Of each pair the best measurement, and what those reach whose sender has no bound: all, where all have one."""
    best: dict[Pair, float] = {}
    for flow in evidence.flows:
        if not flow.broken:
            best[flow.sender, flow.receiver] = max(flow.rate, best.get((flow.sender, flow.receiver), 0.0))
    free = [rate for (sender, _), rate in best.items() if sender not in evidence.bounds]
    return best, stats.quantile(free or list(best.values()), 0.75)
