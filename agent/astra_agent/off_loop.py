"""
Blocking work off the event loop, with a bound on the wait. What hangs in the kernel can't be ended: its thread is left
to itself, and no second one is started beside it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from astra_agent.errors import DeadlineExceeded

Result = TypeVar("Result")


class OneThread:
    """
    Does one thing after the other. Its thread does not keep the process alive.

    Args:
        name: What is asked, for sentences: `NVML`.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._asking = asyncio.Lock()
        self._hanging: Future[Any] | None = None

    async def call(self, work: Callable[[], Result], timeout_s: float) -> Result:
        """
        What *work* returns, after what others have asked before.

        Raises: DeadlineExceeded when it does not within *timeout_s*, or an earlier one still hangs; whatever *work*
            raises.
        """
        async with self._asking:
            return await self._call(work, timeout_s)

    async def _call(self, work: Callable[[], Result], timeout_s: float) -> Result:
        if self._hanging is not None and not self._hanging.done():
            raise DeadlineExceeded(f"{self._name} has not answered an earlier question yet")
        done: Future[Result] = Future()
        self._hanging = done

        def run() -> None:
            try:
                done.set_result(work())
            except BaseException as error:  # noqa: BLE001 -- carried over to the caller
                done.set_exception(error)

        threading.Thread(target=run, name=self._name, daemon=True).start()
        try:
            async with asyncio.timeout(timeout_s):
                return await asyncio.shield(asyncio.wrap_future(done))
        except TimeoutError as error:
            raise DeadlineExceeded(f"{self._name} does not answer within {timeout_s:g} s") from error
