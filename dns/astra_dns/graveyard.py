"""
Letting go of large mappings a little at a time: a hundred thousand values freed at once keep a query waiting for longer
than many seconds' worth of answers take.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping

AT_ONCE = 2000
"""Values freed in one go: about 0.2 ms."""


class Graveyard:
    """Holds keys and values of what was buried, and frees them by and by on the running loop."""

    def __init__(self) -> None:
        self._left: deque[list[object]] = deque()
        self._loop = asyncio.get_running_loop()
        self._digging = False

    def bury(self, mapping: Mapping[bytes, object]) -> None:
        """The caller lets go of *mapping* after this."""
        if len(mapping) <= AT_ONCE:
            return
        self._left.append(list(mapping))
        self._left.append(list(mapping.values()))
        if not self._digging:
            self._digging = True
            self._loop.call_soon(self._dig)

    def _dig(self) -> None:
        if self._left:
            del self._left[0][-AT_ONCE:]
            if not self._left[0]:
                self._left.popleft()
        self._digging = bool(self._left)
        if self._digging:
            self._loop.call_later(0.001, self._dig)
