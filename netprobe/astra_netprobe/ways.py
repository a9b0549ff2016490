"""Ways to the machines of a probe that lead through WebSockets, and to those that can't be asked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

import aiohttp

from astra_netprobe.channel import Channel, Endpoint, Silent, parse
from astra_netprobe.messages import Answer, Question


class Socket(Protocol):
    """Of a server or of a client."""

    async def send_str(self, data: str) -> None: ...

    async def receive(self) -> aiohttp.WSMessage: ...

    async def close(self) -> bool: ...


class SocketChannel:
    """One question at a time."""

    def __init__(self, socket: Socket) -> None:
        self._socket = socket

    async def ask(self, question: Question, limit_s: float) -> Answer:
        try:
            async with asyncio.timeout(limit_s):
                await self._socket.send_str(question.model_dump_json())
                message = await self._socket.receive()
        except TimeoutError as error:
            raise Silent(f"does not answer within {limit_s:.0f} s") from error
        except (OSError, aiohttp.ClientError) as error:
            raise Silent(f"is gone: {error}") from error
        if message.type is not aiohttp.WSMsgType.TEXT:
            raise Silent("takes no part any more: its agent or the coordinator closed the way to it")
        return parse(message.data)

    async def close(self) -> None:
        await self._socket.close()


class Absent:
    """Of a machine that could not be asked: every question is silence with the reason."""

    def __init__(self, reason: str) -> None:
        self._reason = reason

    async def ask(self, question: Question, limit_s: float) -> Answer:
        raise Silent(self._reason)

    async def close(self) -> None:
        pass


@dataclass(frozen=True, slots=True)
class Way:
    """*opening* is entered once; it may raise Silent."""

    name: str
    address: str
    opening: AbstractAsyncContextManager[Channel]


@asynccontextmanager
async def opened(ways: Sequence[Way]) -> AsyncIterator[list[Endpoint]]:
    """All of them at once; closed at the end of the block, at once as well. One that can't be opened is absent."""
    stacks = [AsyncExitStack() for _ in ways]
    try:
        channels = await asyncio.gather(*(_open(stack, way) for stack, way in zip(stacks, ways, strict=True)))
        yield [Endpoint(way.name, way.address, channel) for way, channel in zip(ways, channels, strict=True)]
    finally:
        await asyncio.gather(*(stack.aclose() for stack in stacks))


async def _open(stack: AsyncExitStack, way: Way) -> Channel:
    try:
        return await stack.enter_async_context(way.opening)
    except Silent as error:
        return Absent(str(error))
