"""
The lease: how long this machine may go on without the coordinator (rule 6).

It is counted from when the last answered message was *sent*, on a clock that never jumps, so that it is over here
before the coordinator, who counts from when it arrived, gives the machine up. It is remembered in a file, so that an
agent that was killed meanwhile does not grant itself a second one.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

_LOOK_S = 10.0
"""A timer of the event loop stands still while the machine sleeps, this clock does not: look this often."""


def now() -> float:
    """Seconds since boot, sleep included; the same for every process of this boot."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(frozen=True, slots=True)
class Lease:
    """
    Attributes:
        sent_s: When the last message that the coordinator has answered was sent.
        limit_s: The coordinator's disconnect limit.
    """

    boot: str
    sent_s: float
    limit_s: float

    @property
    def ends_s(self) -> float:
        return self.sent_s + self.limit_s


class LeaseKeeper:
    """Remembers the lease, and says when it is over: once for each time."""

    def __init__(self, path: Path, boot: str, clock: Callable[[], float] = now) -> None:
        self._path = path
        self._boot = boot
        self._clock = clock
        self._renewed = asyncio.Event()
        self.lease = self._read()

    def renew(self, sent_s: float, limit_s: float) -> None:
        """The coordinator has answered what was sent at *sent_s*. An older answer than the newest changes nothing."""
        if self.lease is not None and sent_s < self.lease.sent_s:
            return
        self.lease = Lease(self._boot, sent_s, limit_s)
        self._write(self.lease)
        self._renewed.set()

    async def run(self, over: Callable[[Lease], None]) -> None:
        """Call *over* whenever the lease ends; for ever."""
        while True:
            self._renewed.clear()
            if self.lease is None:
                await self._renewed.wait()
                continue
            left = self.lease.ends_s - self._clock()
            if left <= 0:
                over(self.lease)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(left, _LOOK_S) if left > 0 else None):
                    await self._renewed.wait()

    def _read(self) -> Lease | None:
        """An unreadable file is none: only a crash of the machine itself can cut it, and that ended all workers."""
        try:
            lease = Lease(**json.loads(self._path.read_bytes()))
        except (OSError, ValueError, TypeError):
            return None
        return lease if lease.boot == self._boot else None

    def _write(self, lease: Lease) -> None:
        """Not synced: it need outlive the agent only, not the machine. A full disk makes it shorter, never longer."""
        beside = self._path.with_suffix(".new")
        with contextlib.suppress(OSError):
            beside.write_text(json.dumps({"boot": lease.boot, "sent_s": lease.sent_s, "limit_s": lease.limit_s}))
            beside.replace(self._path)
