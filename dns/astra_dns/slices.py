"""Long work beside a loop that must answer: a slice of it at a time, measured by the clock, since machines differ."""

from __future__ import annotations

import time
from collections.abc import Iterator

SLICE_S = 0.0005
"""What an answer may have to wait for one slice."""


def until_due(steps: Iterator[None]) -> bool:
    """Go on with *steps* for one slice; each is to be short. Returns whether all are done."""
    due_s = time.perf_counter() + SLICE_S
    return all(time.perf_counter() < due_s for _ in steps)
