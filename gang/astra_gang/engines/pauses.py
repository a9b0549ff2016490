"""How long to wait between two questions to the same peer."""

from __future__ import annotations

from collections.abc import Iterator

_LONGEST_S = 2.0


def pauses(first_s: float) -> Iterator[float]:
    """Seconds: short at first, doubling to 2 s, without end."""
    pause_s = first_s
    while True:
        yield pause_s
        pause_s = min(pause_s * 2, _LONGEST_S)
