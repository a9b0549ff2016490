"""
The sentences that a user reads while an image is brought: at most a few a second, and none twice.
"""

from __future__ import annotations

import time
from collections.abc import Callable

_SHORTEST_PAUSE_S = 0.4


def size_words(size_bytes: int, form: str = ".1f") -> str:
    """`512 B`, `2.1 MB`, `14.0 GB`: powers of ten, as registries' pages show them. *form*: of the number."""
    size, unit = float(size_bytes), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if size < 999.95:
            break
        size, unit = size / 1000, larger
    return f"{size:.0f} {unit}" if unit == "B" else f"{size:{form}} {unit}"


class Progress:
    """
    Of one image. *verb* is `Pulling` or `Reading`; *clock* is in seconds and never goes back.
    """

    def __init__(
        self, image: str, verb: str, tell: Callable[[str], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._image = image
        self._verb = verb
        self._tell = tell
        self._clock = clock
        self._total = 0
        self._received = 0
        self._told = ""
        self._told_at = float("-inf")

    def asks(self) -> None:
        self._say(f"{self._verb} {self._image}", at_once=True)

    def expect(self, total_bytes: int) -> None:
        self._total = total_bytes
        self._pulled(at_once=True)

    def receive(self, size_bytes: int) -> None:
        """So many more bytes are here. Negative: so many have to come again."""
        self._received += size_bytes
        self._pulled()

    def waits(self, why: str) -> None:
        self._say(f"{self._verb} {self._image}: {why}", at_once=True)

    def unpacks(self, layer: int, layers: int) -> None:
        """Once nothing is left to receive; before that, the download is the news."""
        if self._received >= self._total:
            of = f": layer {layer} of {layers}" if layers > 1 else ""
            self._say(f"Unpacking {self._image}{of}", at_once=True)

    def _pulled(self, at_once: bool = False) -> None:
        if self._received < self._total:
            percent = 100 * self._received // self._total
            # With so many digits that a slow registry's next sentence is another one.
            here = size_words(self._received, ".4g")
            self._say(f"{self._verb} {self._image}: {percent} % of {size_words(self._total)} ({here})", at_once)

    def _say(self, sentence: str, at_once: bool = False) -> None:
        now = self._clock()
        if sentence == self._told or (not at_once and now - self._told_at < _SHORTEST_PAUSE_S):
            return
        self._told, self._told_at = sentence, now
        self._tell(sentence)
