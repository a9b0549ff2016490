"""Work in a thread of its own: a bound on the wait, one at a time."""

from __future__ import annotations

import asyncio
import threading

import pytest

from astra_agent.errors import DeadlineExceeded
from astra_agent.off_loop import OneThread


async def test_callers_wait_for_each_other() -> None:
    thread, running = OneThread("NVML"), []

    def work() -> int:
        running.append(1)
        assert len(running) == 1
        running.pop()
        return 7

    assert await asyncio.gather(*(thread.call(work, 5) for _ in range(20))) == [7] * 20


async def test_what_hangs_is_told_and_nothing_is_started_beside_it() -> None:
    thread, release = OneThread("NVML"), threading.Event()
    with pytest.raises(DeadlineExceeded, match=r"NVML does not answer within 0\.01 s"):
        await thread.call(lambda: release.wait(10), 0.01)
    with pytest.raises(DeadlineExceeded, match="NVML has not answered an earlier question yet"):
        await thread.call(lambda: True, 5)
    release.set()
    async with asyncio.timeout(5):
        while True:
            try:
                assert await thread.call(lambda: True, 5)
                return
            except DeadlineExceeded:
                await asyncio.sleep(0.001)


async def test_an_error_is_the_callers() -> None:
    def work() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await OneThread("NVML").call(work, 5)
