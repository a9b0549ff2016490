"""How much of a process's time went to its processor: what it used, and what it waited for others to let it."""

from __future__ import annotations

import time
from pathlib import Path

_WAITED = Path("/proc/self/schedstat")


class Processor:
    """Counts from when it is made."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._used = time.process_time()
        self._waited = _waited_s()

    def share(self) -> float:
        """0 to 1; near 1 the processor was the limit, whatever was measured beside it."""
        elapsed = time.monotonic() - self._began
        if elapsed <= 0:
            return 0.0
        busy = time.process_time() - self._used + _waited_s() - self._waited
        return max(0.0, min(1.0, busy / elapsed))


def _waited_s() -> float:
    """Seconds in which the main thread could have run and did not; 0 where the kernel does not count."""
    try:
        return int(_WAITED.read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0
