"""
Letting go of large values a little at a time: a hundred thousand of them freed at once keep a query waiting for longer
than many seconds' worth of answers take.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from typing import Any

from astra_dns.records import View
from astra_dns.slices import until_due

_PAUSE_S = 0.001


class Graveyard:
    """Empties what is buried, by and by, on the running loop."""

    def __init__(self) -> None:
        self._left: deque[Iterator[None]] = deque()
        self._loop = asyncio.get_running_loop()
        self._digging = False

    def bury(self, mapping: dict[bytes, Any]) -> None:
        """Nobody looks into *mapping* any more."""
        self._bury(_emptied(mapping))

    def bury_view(self, old: View, new: View) -> None:
        """Nobody looks into *old* any more; the runs that *new* has as well go on being looked into."""
        self._bury(_taken_apart(old, new))

    def _bury(self, digging: Iterator[None]) -> None:
        self._left.append(digging)
        if not self._digging:
            self._digging = True
            self._loop.call_soon(self._dig)

    def _dig(self) -> None:
        if until_due(self._left[0]):
            self._left.popleft()
        self._digging = bool(self._left)
        if self._digging:
            self._loop.call_later(_PAUSE_S, self._dig)


def _emptied(mapping: dict[bytes, Any]) -> Iterator[None]:
    while mapping:
        mapping.popitem()
        yield


def _taken_apart(old: View, new: View) -> Iterator[None]:
    names, runs = list(old.runs), list(old.runs.values())
    del old
    yield
    while names:
        name, run = names.pop(), runs.pop()
        if new.runs.get(name) is not run:
            yield from _emptied(run.workers)
            yield from _emptied(run.reverse)
        yield
