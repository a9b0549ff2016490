"""Who reaches whom at which rate: a matrix of the evidence, and as text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from astra_netprobe.readings import Evidence

SHADES = "█▇▆▅▄▃▂▁"
"""From all of the best rate to none of it."""
TEXT_MAX = 24
"""Machines up to which numbers are shown; beyond it a character each."""


@dataclass(frozen=True, slots=True)
class Matrix:
    """*rates* by row (sender) and column (receiver), bits per second; None where nothing was measured."""

    names: tuple[str, ...]
    rates: tuple[tuple[float | None, ...], ...]
    trips_s: tuple[tuple[float | None, ...], ...]

    @property
    def best(self) -> float:
        return max((rate for row in self.rates for rate in row if rate is not None), default=0.0)


def of(evidence: Evidence) -> Matrix:
    """The best of each pair's measurements; of hops of rings where no pair was measured, while they were busy."""
    rates: dict[tuple[str, str], float] = {}
    for hops in evidence.rings:
        for hop in hops:
            if not hop.broken and hop.busy >= 0.9:
                rates[hop.sender, hop.receiver] = hop.rate
    measured: dict[tuple[str, str], float] = {}
    for flow in evidence.flows:
        pair = (flow.sender, flow.receiver)
        measured[pair] = max(min(flow.reached, flow.rate) if flow.reached else flow.rate, measured.get(pair, 0.0))
    rates |= measured
    trips = {(trip.one, trip.other): trip.p50_s for trip in evidence.trips}
    trips |= {(other, one): seconds for (one, other), seconds in trips.items()}
    names = evidence.machines
    return Matrix(
        names=names,
        rates=tuple(tuple(rates.get((one, other)) for other in names) for one in names),
        trips_s=tuple(tuple(trips.get((one, other)) for other in names) for one in names),
    )


def render(matrix: Matrix) -> str:
    """Text: Gbit/s from row to column and, below, round trips in microseconds."""
    if len(matrix.names) > TEXT_MAX:
        return _shades(matrix)
    parts = [_numbers("Gbit/s, from row to column", matrix.names, matrix.rates, 1e-9, 2)]
    if any(seconds is not None for row in matrix.trips_s for seconds in row):
        parts.append(_numbers("round trip, median, µs", matrix.names, matrix.trips_s, 1e6, 0))
    return "\n".join(parts)


def _numbers(
    title: str, names: Sequence[str], values: Sequence[Sequence[float | None]], scale: float, digits: int
) -> str:
    width = max(7, *(len(name) for name in names)) + 1
    lines = [title, " " * width + "".join(f"{name:>{width}}" for name in names)]
    for name, row in zip(names, values, strict=True):
        cells = (f"{value * scale:.{digits}f}" if value is not None else "·" for value in row)
        lines.append(f"{name:>{width}}" + "".join(f"{cell:>{width}}" for cell in cells))
    return "\n".join(lines) + "\n"


def _shades(matrix: Matrix) -> str:
    best = matrix.best or 1.0
    lines = [f"from row to column: {SHADES[0]} {best * 1e-9:.2f} Gbit/s … {SHADES[-1]} none, · not measured"]
    for name, row in zip(matrix.names, matrix.rates, strict=True):
        lines.append("".join("·" if rate is None else _shade(rate / best) for rate in row) + f"  {name}")
    return "\n".join(lines) + "\n"


def _shade(share: float) -> str:
    return SHADES[min(len(SHADES) - 1, int((1 - min(1.0, share)) * len(SHADES)))]
