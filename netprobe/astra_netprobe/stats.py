"""
The arithmetic of bandwidth tests: what nccl-tests calls algorithm and bus bandwidth, medians, tails, the plateau.

Sizes are bytes and binary (1 MiB), rates are decimal (1 GB/s): mixing them is an error of 7 %.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Collective = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce"]

PLATEAU_RATIO = 0.90
"""A size is on the plateau when its bus bandwidth is at least this share of the best one."""
PLATEAU_MIN_BYTES = 1 << 20
"""Below it the time of a message is latency; published plateaus begin between 4 and 256 MiB."""
PLATEAU_GROWTH_MAX = 1.5
"""When the largest size is still this much faster than one of at least half its size, the end of growth is not seen."""
_MAD_TO_SIGMA = 1.4826


def bus_factor(collective: Collective, ranks: int) -> float:
    """What turns algorithm bandwidth into the rate of one rank's link, whatever the number of ranks."""
    if ranks < 1:
        raise ValueError(f"{ranks} ranks")
    match collective:
        case "all_reduce":
            return 2 * (ranks - 1) / ranks
        case "all_gather" | "reduce_scatter" | "all_to_all":
            return (ranks - 1) / ranks
        case "broadcast" | "reduce":
            return 1.0


def algbw(size_bytes: float, seconds: float) -> float:
    """Bytes per second of the whole buffer."""
    return size_bytes / seconds if seconds > 0 else 0.0


def busbw(collective: Collective, size_bytes: float, seconds: float, ranks: int) -> float:
    """Bytes per second, comparable with a link's rate when each rank has one link."""
    return algbw(size_bytes, seconds) * bus_factor(collective, ranks)


def port_rate(bus_bytes_per_s: float, ranks: int, machines: int) -> float:
    """Of *busbw* of a collective that reduces inside each machine first, what crossed one rank's network port."""
    return bus_bytes_per_s * (machines - 1) / (ranks - 1) if ranks > 1 else 0.0


def median(values: Sequence[float]) -> float:
    """0.0 of nothing."""
    return quantile(values, 0.5)


def quantile(values: Sequence[float], share: float) -> float:
    """Between the two nearest values, linearly; 0.0 of nothing."""
    if not values:
        return 0.0
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def sigma(values: Sequence[float]) -> float:
    """The standard deviation by the median of absolute deviations, which outliers do not move."""
    middle = median(values)
    return _MAD_TO_SIGMA * median([abs(value - middle) for value in values])


@dataclass(frozen=True, slots=True)
class Spread:
    """Of the iterations of one size. With fewer than 100 samples p99 is as good as the maximum."""

    min_s: float
    median_s: float
    p99_s: float
    max_s: float
    spikes: int
    """Iterations slower than one and a half medians."""


def spread(times_s: Sequence[float]) -> Spread:
    if not times_s:
        return Spread(0.0, 0.0, 0.0, 0.0, 0)
    middle = median(times_s)
    return Spread(
        min_s=min(times_s),
        median_s=middle,
        p99_s=quantile(times_s, 0.99),
        max_s=max(times_s),
        spikes=sum(time > 1.5 * middle for time in times_s),
    )


@dataclass(frozen=True, slots=True)
class Plateau:
    """Where bandwidth no longer grows with the size: *size_bytes* is the largest size on it."""

    size_bytes: int
    bus_bytes_per_s: float


def plateau(points: Sequence[tuple[int, float]]) -> Plateau | None:
    """
    The plateau of (size in bytes, bus bandwidth) points, in any order; repeated sizes count with their best.

    Returns:
        The best bandwidth of the plateau with the size that had it; None when the sizes are too small to judge, or too
        few to know that it has been reached: no number is better than a wrong one.
    """
    best: dict[int, float] = {}
    for size, rate in points:
        best[size] = max(rate, best.get(size, 0.0))
    large = {size: rate for size, rate in best.items() if size >= PLATEAU_MIN_BYTES}
    if len(large) < 2 or max(large.values()) <= 0:
        return None
    size, rate = max(large.items(), key=lambda point: (point[1], point[0]))
    before = [other for smaller, other in large.items() if smaller < size]
    if before and rate > PLATEAU_GROWTH_MAX * max(before):
        return None
    return Plateau(size, rate)
