"""Ways to the machines of a probe: through the coordinator to their agents, or straight to a responder."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import aiohttp

from astra_agent.errors import AstraError, InvalidRequest
from astra_cli.client import Client
from astra_netprobe import responder
from astra_netprobe.channel import Channel, Endpoint, Silent, parse
from astra_netprobe.messages import Answer, Question


@dataclass(frozen=True, slots=True)
class Named:
    """A machine that has an agent: *address* is what its peers reach it at."""

    name: str
    address: str


@dataclass(frozen=True, slots=True)
class Standing:
    """A machine with a responder; named by its address and port."""

    host: str
    port: int

    @property
    def name(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def address(self) -> str:
        return self.host


Place = Named | Standing


def standing(text: str) -> Standing | None:
    """`HOST:PORT`; None for what is a machine's name."""
    host, colon, port = text.rpartition(":")
    if not colon:
        return None
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise InvalidRequest(f"{text} is neither a machine's name nor HOST:PORT of a responder")
    return Standing(host, int(port))


class SocketChannel:
    """Over the coordinator's WebSocket; one question at a time."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
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


class _Absent:
    """Of a machine that could not be asked: every question is silence with the reason."""

    def __init__(self, reason: str) -> None:
        self._reason = reason

    async def ask(self, question: Question, limit_s: float) -> Answer:
        raise Silent(self._reason)

    async def close(self) -> None:
        pass


@asynccontextmanager
async def opened(client: Client | None, places: Sequence[Place], token: str) -> AsyncIterator[list[Endpoint]]:
    """Ways to all of *places*; closed at the end of the block. One that can't be opened answers nothing."""
    async with AsyncExitStack() as stack:
        channels = await asyncio.gather(*(_open(stack, client, place, token) for place in places))
        yield [Endpoint(place.name, place.address, made) for place, made in zip(places, channels, strict=True)]


async def _open(stack: AsyncExitStack, client: Client | None, place: Place, token: str) -> Channel:
    try:
        if isinstance(place, Standing):
            made: Channel = await responder.call(place.host, place.port, token)
            stack.push_async_callback(made.close)
            return made
        if client is None:
            return _Absent("is known to no coordinator")
        return SocketChannel(await stack.enter_async_context(client.probe(place.name)))
    except Silent as error:
        return _Absent(str(error))
    except AstraError as error:
        return _Absent(f"takes no part: {error}")
