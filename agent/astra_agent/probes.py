"""
This machine's part in probes of the network: a process of its own for each, in the machine's network or in a slot's.

The agent only hands questions and answers on, so that bytes which are being moved never keep it from its slots. How
many probes there may be, at once and in a minute, is bounded: they are load.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from pathlib import Path

import aiohttp

from astra_agent.dial import first_of
from astra_agent.lease import now
from astra_netprobe import channel
from astra_netprobe.messages import Failed

log = logging.getLogger(__name__)

AT_ONCE = 16
"""One for each port of a machine when all are measured at once."""
PER_MINUTE = 30
_QUESTION_S = 5.0
"""Until the first one is there; it comes when the other machines are found, too."""


class Probes:
    """*max_bps*: what each may send; 0: as much as goes."""

    def __init__(self, max_bps: float = 0.0) -> None:
        self._max_bps = max_bps
        self._running = 0
        self._began: deque[float] = deque()

    async def serve(self, connection: aiohttp.ClientWebSocketResponse, netns: Path | None) -> None:
        """Take part until the other side closes, in *netns*; None: the process's own. Leaves no process, ever."""
        if (reason := self._too_many()) is not None:
            await refuse(connection, reason)
            return
        self._running += 1
        try:
            process = await channel.spawn(netns, self._max_bps)
            log.info("probe_began pid=%d", process.pid)
            try:
                await first_of(_ask(connection, process), _answer(connection, process))
            finally:
                await channel.end(process)
                log.info("probe_ended pid=%d", process.pid)
        finally:
            self._running -= 1

    def _too_many(self) -> str | None:
        while self._began and self._began[0] < now() - 60:
            self._began.popleft()
        if self._running >= AT_ONCE:
            return f"{self._running} probes run on this machine: wait for their end"
        if len(self._began) >= PER_MINUTE:
            return f"{PER_MINUTE} probes began on this machine within a minute: wait"
        self._began.append(now())
        return None


async def refuse(connection: aiohttp.ClientWebSocketResponse, sentence: str) -> None:
    """The answer to the first question: who leads a probe names this machine with *sentence*."""
    log.warning("probe_refused reason=%r", sentence)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_QUESTION_S):
            await connection.receive()
    await connection.send_str(Failed(sentence=sentence).model_dump_json())


async def _ask(connection: aiohttp.ClientWebSocketResponse, process: asyncio.subprocess.Process) -> None:
    if process.stdin is None:
        return
    async for message in connection:
        if message.type is aiohttp.WSMsgType.TEXT:
            process.stdin.write(message.data.replace("\n", " ").encode() + b"\n")
            await process.stdin.drain()


async def _answer(connection: aiohttp.ClientWebSocketResponse, process: asyncio.subprocess.Process) -> None:
    if process.stdout is None:
        return
    while line := await process.stdout.readline():
        await connection.send_str(line.decode().rstrip("\n"))
