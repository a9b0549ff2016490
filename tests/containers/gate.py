"""A real registry behind a gate, for tests that do not run in an event loop: it has a thread with one of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.containers.images import Image, push
from tests.containers.registry import DebianRegistry, Gate

BOUND_S = 60.0


@dataclass
class GatedRegistry:
    loop: asyncio.AbstractEventLoop
    registry: DebianRegistry
    gate: Gate

    def push(self, image: Image, tag: str) -> str:
        """Past the gate. Returns: the reference by which it is pulled through it."""
        self._do(push(image, self.registry.url, "gang", tag))
        return f"{self.gate.host}/gang:{tag}"

    @contextmanager
    def closed_after(self, size_bytes: int) -> Iterator[None]:
        """Once that much more has come through, nothing does, until the end of the block."""
        self.loop.call_soon_threadsafe(self.gate.stop_after, size_bytes)
        try:
            yield
        finally:
            self.loop.call_soon_threadsafe(self.gate.open)

    def wait_closed(self) -> None:
        self._do(self.gate.stopped.wait())

    def _do(self, work: Coroutine[Any, Any, Any]) -> None:
        asyncio.run_coroutine_threadsafe(work, self.loop).result(BOUND_S)


@contextmanager
def gated_registry(folder: Path) -> Iterator[GatedRegistry]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="gated registry")
    thread.start()
    stack = AsyncExitStack()

    async def open_all() -> GatedRegistry:
        registry = await stack.enter_async_context(DebianRegistry(folder).running())
        return GatedRegistry(loop, registry, await stack.enter_async_context(Gate(registry.host).serving()))

    try:
        yield asyncio.run_coroutine_threadsafe(open_all(), loop).result(BOUND_S)
    finally:
        asyncio.run_coroutine_threadsafe(stack.aclose(), loop).result(BOUND_S)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(BOUND_S)
        loop.close()
