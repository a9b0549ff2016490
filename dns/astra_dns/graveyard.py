"""
Letting go of large mappings a little at a time: a hundred thousand values freed at once keep a query waiting for longer
than many seconds' worth of answers take.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

AT_ONCE = 500
"""Values freed in one go: about 0.2 ms."""
_PAUSE_S = 0.001


class Graveyard:
    """Empties what is buried, by and by, on the running loop."""

    def __init__(self) -> None:
        self._left: deque[dict[bytes, Any]] = deque()
        self._loop = asyncio.get_running_loop()
        self._digging = False

    def bury(self, mapping: dict[bytes, Any]) -> None:
        """Nobody looks into *mapping* any more."""
        if len(mapping) <= AT_ONCE:
            return
        self._left.append(mapping)
        if not self._digging:
            self._digging = True
            self._loop.call_soon(self._dig)

    def _dig(self) -> None:
        mapping = self._left[0]
        for _ in range(min(AT_ONCE, len(mapping))):
            mapping.popitem()
        if not mapping:
            self._left.popleft()
        self._digging = bool(self._left)
        if self._digging:
            self._loop.call_later(_PAUSE_S, self._dig)
