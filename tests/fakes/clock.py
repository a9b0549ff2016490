"""A clock that only the test turns."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

from astra_gang.clock import Reading

EPOCH = datetime(2025, 1, 1, tzinfo=UTC).timestamp()


class FakeClock:
    def __init__(self, now: float = 1000.0) -> None:
        self._now = now
        self._sleepers: list[tuple[float, asyncio.Future[None]]] = []

    def now(self) -> float:
        return self._now

    def wall(self, at: float) -> datetime:
        return datetime.fromtimestamp(EPOCH + at, UTC)

    def reading(self) -> Reading:
        return Reading("boot-of-the-test", self._now, self._now, EPOCH + self._now)

    async def sleep_until(self, at: float) -> None:
        if at <= self._now:
            return
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (at, woken)
        self._sleepers.append(entry)
        try:
            await woken
        finally:
            self._sleepers.remove(entry)

    def advance(self, seconds: float) -> None:
        """Who sleeps until a moment that has now come wakes up at the event loop's next turn."""
        self._now += seconds
        for at, woken in self._sleepers:
            if at <= self._now and not woken.done():
                woken.set_result(None)
