"""A machine that is lost in the middle of a probe and says nothing of it: real members, one of which is stopped."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from astra_netprobe import channel
from astra_netprobe.channel import Endpoint, ProcessChannel
from astra_netprobe.conductor import Conductor
from astra_netprobe.readings import Evidence
from astra_netprobe.settings import KIB, MIB, Settings
from astra_netprobe.verdict import judge

LOSS_S = 10
NAMES = ("m-0", "m-1", "m-2")
QUICK = Settings(
    small_sizes=(8, KIB), large_sizes=(MIB, 4 * MIB), small_iterations=20, budget_s=20, pair_s=0.1, trips=20
)


@asynccontextmanager
async def members() -> AsyncIterator[list[ProcessChannel]]:
    """They end with the block, whatever state they are in."""
    channels = [await channel.start() for _ in NAMES]
    try:
        yield channels
    finally:
        await asyncio.gather(*(made.close() for made in channels))


@pytest.mark.parametrize(("after", "lost"), [("sizes", "m-0"), ("rings", "m-2"), ("trips", "m-1")])
async def test_a_machine_that_stands_still_ends_the_probe_within_ten_seconds_and_is_named(
    after: str, lost: str
) -> None:
    stopped_at: list[float] = []
    async with members() as channels:
        endpoints = [Endpoint(name, f"127.0.0.{i + 1}", channels[i]) for i, name in enumerate(NAMES)]
        process = channels[NAMES.index(lost)]._process

        def watch(evidence: Evidence) -> None:
            if not stopped_at and getattr(evidence, after):
                os.kill(process.pid, signal.SIGSTOP)
                stopped_at.append(time.monotonic())

        found = judge(await Conductor(endpoints, QUICK, watch).run())
    assert stopped_at and time.monotonic() - stopped_at[0] < LOSS_S
    assert found.exit in (1, 3) and found.blamed == (lost,) and found.sentence.startswith(f"{lost} ")
    assert process.returncode == -signal.SIGKILL
