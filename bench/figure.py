"""A figure: what was measured, against what, and whether it is as good as it has to be."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

RESULTS = Path(__file__).parents[1] / "build" / "bench"


@dataclass(frozen=True, slots=True)
class Figure:
    """
    Attributes:
        name: Of its file in build/bench.
        figure: What was measured, in words.
        ours: The median of *samples*, in *unit*.
        peer: The same for what it is compared with; None when it is held against the goal alone.
        ratio: ours to peer, pair by pair, of which this is the median; without a peer, ours to the goal.
        goal: What *ratio* (with a peer) or *ours* (without) may be at most.
        samples: What *ours* was made from.
    """

    name: str
    figure: str
    unit: str
    ours: float
    peer: float | None
    ratio: float
    goal: float
    samples: tuple[float, ...]

    @property
    def met(self) -> bool:
        return (self.ours if self.peer is None else self.ratio) <= self.goal


def against_peer(
    name: str, figure: str, unit: str, ours: Sequence[float], peer: Sequence[float], goal: float
) -> Figure:
    """Both were measured in turn: the ratio is that of each pair, so that a machine that slows down does not count."""
    ratios = [one / other for one, other in zip(ours, peer, strict=True)]
    return Figure(name, figure, unit, median(ours), median(peer), median(ratios), goal, tuple(ours))


def against_goal(name: str, figure: str, unit: str, ours: Sequence[float], goal: float) -> Figure:
    return Figure(
        name, figure, unit, median(ours), None, median(ours) / goal if goal else median(ours), goal, tuple(ours)
    )


def record(figure: Figure) -> None:
    """Write build/bench/NAME.json."""
    document = {
        "figure": figure.figure, "unit": figure.unit, "ours": round(figure.ours, 3),
        "peer": None if figure.peer is None else round(figure.peer, 3),
        "ratio": round(figure.ratio, 3), "goal": figure.goal, "met": figure.met,
        "samples": [round(sample, 3) for sample in figure.samples],
        "machine": {"cores": os.cpu_count(), "kernel": platform.release(), "load": round(os.getloadavg()[0], 2)},
    }  # fmt: skip
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / f"{figure.name}.json").write_text(json.dumps(document, indent=2) + "\n")


def table(figures: Iterable[Figure]) -> str:
    """Plain text, one line for each figure."""
    rows = [("FIGURE", "OURS", "PEER", "RATIO", "GOAL", "MET"), *(_row(item) for item in figures)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)


def _row(item: Figure) -> tuple[str, ...]:
    peer = "-" if item.peer is None else f"{item.peer:.4g} {item.unit}"
    goal = f"≤ {item.goal:g}" if item.peer is not None else f"≤ {item.goal:g} {item.unit}"
    return item.figure, f"{item.ours:.4g} {item.unit}", peer, f"{item.ratio:.2f}", goal, "yes" if item.met else "no"
