"""
A coordinator of a page: a real HTTP server on loopback that speaks the agent's link. A test says what it answers, and
when it does not.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TypeVar

from aiohttp import WSMsgType, web
from pydantic import TypeAdapter

from astra_agent import namespaces
from astra_agent.wire import (
    Directive,
    DirectiveMessage,
    Hello,
    Lease,
    LeaseAck,
    OpenStream,
    Report,
    ReportAck,
    SlotStatus,
    StreamRequest,
    ToAgent,
    ToCoordinator,
    Welcome,
)

TOKEN = "a-token"
_MESSAGE: TypeAdapter[ToCoordinator] = TypeAdapter(ToCoordinator)
Message = TypeVar("Message")


class FakeCoordinator:
    """
    Attributes:
        hellos, messages: Everything that was said, in order.
        slots: The newest status of each slot.
        acknowledges, answers_leases: Whether it does.
        welcome: What its welcome says besides, or otherwise.
    """

    def __init__(
        self, *, term: int = 1, disconnect_limit_s: float = 60.0, address: str = "127.0.0.1", netns: Path | None = None
    ) -> None:
        self.term = term
        self.disconnect_limit_s = disconnect_limit_s
        self.hellos: list[Hello] = []
        self.messages: list[ToCoordinator] = []
        self.slots: dict[str, SlotStatus] = {}
        self.acknowledges = True
        self.answers_leases = True
        self.welcome: dict[str, object] = {}
        self._address = address
        self._netns = netns
        self._port = 0
        self._runner: web.AppRunner | None = None
        self._link: web.WebSocketResponse | None = None
        self._streams: dict[str, asyncio.Future[web.WebSocketResponse]] = {}
        self._stream_ends: dict[str, asyncio.Event] = {}

    @property
    def url(self) -> str:
        return f"http://{self._address}:{self._port}"

    async def start(self) -> None:
        application = web.Application()
        application.add_routes(
            [web.get("/v1/agents/link", self._serve_link), web.get("/v1/agents/streams/{stream}", self._serve_stream)]
        )
        self._runner = web.AppRunner(application, shutdown_timeout=0.1)
        await self._runner.setup()
        listener = namespaces.inside(self._netns, self._listen)
        self._port = listener.getsockname()[1]
        await web.SockSite(self._runner, listener).start()

    def _listen(self) -> socket.socket:
        """The port of the first start stays the same."""
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((self._address, self._port))
        return listener

    async def stop(self) -> None:
        """It is gone; nothing is said any more, and every connection ends."""
        for end in self._stream_ends.values():
            end.set()
        if self._link is not None:
            await self._link.close()
        if self._runner is not None:
            await self._runner.cleanup()

    async def drop_link(self) -> None:
        if self._link is not None:
            await self._link.close()

    @property
    def connected(self) -> bool:
        return self._link is not None and not self._link.closed

    async def tell(self, directive: Directive) -> None:
        await self.send(DirectiveMessage(directive=directive))

    async def send(self, message: ToAgent) -> None:
        assert self._link is not None
        await self._link.send_str(message.model_dump_json())

    def said(self, kind: type[Message]) -> list[Message]:
        return [message for message in self.messages if isinstance(message, kind)]

    async def open_stream(self, stream: str, request: StreamRequest) -> web.WebSocketResponse:
        """The agent's connection for it."""
        self._streams[stream] = asyncio.get_running_loop().create_future()
        self._stream_ends[stream] = asyncio.Event()
        await self.send(OpenStream(stream=stream, request=request))
        async with asyncio.timeout(10):
            return await self._streams[stream]

    def end_stream(self, stream: str) -> None:
        self._stream_ends[stream].set()

    async def _serve_link(self, request: web.Request) -> web.StreamResponse:
        if request.headers.get("Authorization") != f"Bearer {TOKEN}":
            raise web.HTTPUnauthorized
        link = web.WebSocketResponse()
        await link.prepare(request)
        self._link = link
        async for message in link:
            if message.type is WSMsgType.TEXT:
                await self._take(link, _MESSAGE.validate_json(message.data))
        return link

    async def _take(self, link: web.WebSocketResponse, message: ToCoordinator) -> None:
        self.messages.append(message)
        answer: ToAgent | None = None
        match message:
            case Hello():
                self.hellos.append(message)
                self.slots.update({status.slot: status for status in message.slots})
                welcome = Welcome(term=self.term, disconnect_limit_s=self.disconnect_limit_s).model_dump()
                await link.send_json(welcome | self.welcome)
            case Report(seq=seq, status=status):
                self.slots[status.slot] = status
                answer = ReportAck(seq=seq) if self.acknowledges else None
            case Lease(n=n):
                answer = LeaseAck(n=n) if self.answers_leases else None
        if answer is not None and not link.closed:
            await link.send_str(answer.model_dump_json())

    async def _serve_stream(self, request: web.Request) -> web.StreamResponse:
        stream = request.match_info["stream"]
        connection = web.WebSocketResponse()
        await connection.prepare(request)
        self._streams[stream].set_result(connection)
        await self._stream_ends[stream].wait()
        await connection.close()
        return connection


@contextlib.asynccontextmanager
async def a_coordinator(
    *, disconnect_limit_s: float = 60.0, address: str = "127.0.0.1", netns: Path | None = None
) -> AsyncIterator[FakeCoordinator]:
    coordinator = FakeCoordinator(disconnect_limit_s=disconnect_limit_s, address=address, netns=netns)
    await coordinator.start()
    try:
        yield coordinator
    finally:
        await coordinator.stop()
