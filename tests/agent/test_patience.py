"""Since when the runtime is away, and who is told."""

from __future__ import annotations

import asyncio

from astra_agent.errors import DeadlineExceeded
from astra_agent.patience import Patience

BOUND_S = 30.0


async def test_one_that_hangs_has_been_away_since_it_was_first_asked() -> None:
    told, asked = asyncio.Event(), 0
    patience = Patience("gpu-1", told.set)

    async def hang() -> None:
        nonlocal asked
        asked += 1
        await asyncio.sleep(2.1)
        raise DeadlineExceeded("no answer within 2.1 s")

    asking = asyncio.create_task(patience.call(hang))
    try:
        async with asyncio.timeout(BOUND_S):
            await told.wait()
        assert asked == 1
        assert (patience.sentence() or "").startswith("containerd on gpu-1 does not answer since ")
    finally:
        asking.cancel()
        await asyncio.wait([asking])
