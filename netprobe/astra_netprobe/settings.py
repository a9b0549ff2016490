"""What a probe measures, and how long it may take for that."""

from __future__ import annotations

from dataclasses import dataclass

from astra_netprobe import plan

KIB, MIB = 1 << 10, 1 << 20


@dataclass(frozen=True, slots=True)
class Settings:
    """
    Attributes:
        budget_s: For everything after the machines were found; large sizes and pairs are cut to fit.
        ring_share: Of the budget, for all-reduces around the first ring.
        iterations: Of each size, when there is time; at least two in any case.
        pair_s: How long each direction of a pair is loaded.
        reach_s: The kernel needs three to find out that nobody has an address.
        stall_s: Without a byte for so long, something is broken.
        max_bps: What each machine may send to a peer; 0: as much as goes.
        device: The network port that is measured; empty: that of the machine's address.
        rail: The number of that port among those that are measured at the same time.
    """

    small_sizes: tuple[int, ...] = (8, KIB, 64 * KIB)
    large_sizes: tuple[int, ...] = (MIB, 4 * MIB, 16 * MIB, 64 * MIB, 256 * MIB)
    budget_s: float = 20.0
    ring_share: float = 0.4
    iterations: int = 10
    small_iterations: int = 100
    pair_s: float = 0.5
    trips: int = 200
    streams: int = 1
    reach_s: float = 4.0
    packet_s: float = 1.5
    stall_s: float = 3.0
    max_bps: float = 0.0
    device: str = ""
    rail: int = 0
    matrix_max: int = plan.MATRIX_MAX


def within(limit_s: float, machines: int) -> Settings:
    """
    For a probe of so many machines that has to be over in *limit_s*, doubts included, and is no benchmark: sizes that
    a link of 1 Mbit/s carries in time come first, and the rounds of pairs are as short as all of them need.
    """
    budget_s = max(1.0, (limit_s - _FIND_S) / 1.5)
    rounds = 3 * (min(machines, plan.MATRIX_MAX) - 1)
    pair_s = _PAIRS_SHARE * budget_s / max(1, rounds) - _ROUND_S
    return Settings(
        budget_s=budget_s,
        ring_share=_RING_SHARE,
        small_sizes=(8, KIB),
        small_iterations=20,
        large_sizes=(64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB),
        pair_s=min(0.5, max(0.1, pair_s)),
        trips=20,
    )


_FIND_S = 4.0
"""For machines to take part and find each other; 0.3 s where all is well."""
_RING_SHARE, _PAIRS_SHARE = 0.25, 0.7
_ROUND_S = 0.15
"""Of a round of pairs, on top of its transfers."""
