"""Ways to the machines of a probe: through the coordinator to their agents, or straight to a responder."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from astra_agent.errors import AstraError, InvalidRequest
from astra_cli.client import Client
from astra_netprobe import responder, ways
from astra_netprobe.channel import Channel, Endpoint, Silent
from astra_netprobe.ways import SocketChannel, Way


@dataclass(frozen=True, slots=True)
class Named:
    """A machine that has an agent, or a slot there: *address* is what its peers reach it at."""

    name: str
    address: str
    slot: str = ""


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


@asynccontextmanager
async def opened(client: Client | None, places: Sequence[Place], token: str) -> AsyncIterator[list[Endpoint]]:
    """Ways to all of *places*; closed at the end of the block. One that can't be opened answers nothing."""
    async with ways.opened([Way(place.name, place.address, _open(client, place, token)) for place in places]) as found:
        yield found


@asynccontextmanager
async def _open(client: Client | None, place: Place, token: str) -> AsyncIterator[Channel]:
    if isinstance(place, Standing):
        made = await responder.call(place.host, place.port, token)
        try:
            yield made
        finally:
            await made.close()
        return
    if client is None:
        raise Silent("is known to no coordinator")
    try:
        async with client.probe(place.name, place.slot) as socket:
            yield SocketChannel(socket)
    except AstraError as error:
        raise Silent(f"takes no part: {error}") from error
