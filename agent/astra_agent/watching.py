"""Whoever follows the statuses of all slots: each change once, and only the newest for who is slow."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Iterator

from astra_agent.wire import SlotStatus


class Watch:
    """The changes that one watcher has not taken yet: at most one for each slot."""

    def __init__(self, first: Iterable[SlotStatus]) -> None:
        self._changed = {status.slot: status for status in first}
        self._woken = asyncio.Event()

    def put(self, status: SlotStatus) -> None:
        self._changed[status.slot] = status
        self._woken.set()

    def take(self) -> tuple[SlotStatus, ...]:
        taken = tuple(self._changed.values())
        self._changed.clear()
        self._woken.clear()
        return taken

    async def wait(self, timeout_s: float) -> None:
        """Until there is a change, or the time is over."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._woken.wait()


class Watches:
    def __init__(self) -> None:
        self._open: set[Watch] = set()

    @contextlib.contextmanager
    def open(self, first: Iterable[SlotStatus]) -> Iterator[Watch]:
        watch = Watch(first)
        self._open.add(watch)
        try:
            yield watch
        finally:
            self._open.discard(watch)

    def tell(self, status: SlotStatus) -> None:
        for watch in self._open:
            watch.put(status)
