"""
Bytes between a caller of the API and an agent: a worker's log, a program in a worker.

The agent may be behind a firewall, so it dials: the link tells it a name that cannot be guessed, and it comes with a
WebSocket of its own under that name. Each side is read only as fast as the other takes it: nothing piles up here.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import AsyncIterator
from typing import Protocol

from aiohttp import WSMessage, WSMsgType, web

from astra_agent import wire
from astra_agent.errors import NotFound, Unavailable
from astra_gang.tokens import Token

_log = logging.getLogger(__name__)

DIAL_S = 15.0
"""From asking an agent to dial until it has, where nobody says otherwise."""
STREAMS_MAX = 1024
MESSAGE_MAX = 2**20
_PING_S = 30.0
"""A peer that vanished without a word is noticed after this and a half."""
_CLOSE_S = 3.0
_OVER = (WSMsgType.CLOSE, WSMsgType.CLOSING, WSMsgType.CLOSED, WSMsgType.ERROR)


class Dialer(Protocol):
    def open_stream(self, machine: str, opened: wire.OpenStream) -> None: ...


class Streams:
    def __init__(self, dialer: Dialer, token: Token) -> None:
        self._dialer = dialer
        self._token = token
        self._awaited: dict[str, asyncio.Future[web.WebSocketResponse]] = {}
        self._over: dict[str, asyncio.Event] = {}

    async def handle(self, request: web.Request) -> web.WebSocketResponse:
        """`GET /v1/agents/streams/<id>`, dialled by an agent; returns when the stream is over."""
        self._token.check(request.headers.get("Authorization"))
        name = request.match_info["stream"]
        awaited, over = self._awaited.get(name), self._over.get(name)
        if awaited is None or over is None or awaited.done():
            raise NotFound("nobody waits for this stream (any more)")
        socket = web.WebSocketResponse(timeout=_CLOSE_S, max_msg_size=MESSAGE_MAX, heartbeat=_PING_S)
        await socket.prepare(request)
        if awaited.done():
            return socket
        awaited.set_result(socket)
        await over.wait()
        return socket

    @contextlib.asynccontextmanager
    async def open(
        self,
        machine: str,
        request: wire.StreamRequest,
        dial_s: float = DIAL_S,
    ) -> AsyncIterator[web.WebSocketResponse]:
        """
        The agent's side of a new stream; closed at the end of the block.

        Raises:
            Unavailable: The machine is not connected, its agent does not dial, or too many streams are open.
        """
        if len(self._over) >= STREAMS_MAX:
            raise Unavailable(f"{STREAMS_MAX} logs and programs are being followed: close some of them")
        name = secrets.token_hex(16)
        awaited: asyncio.Future[web.WebSocketResponse] = asyncio.get_running_loop().create_future()
        over = asyncio.Event()
        self._awaited[name], self._over[name] = awaited, over
        try:
            self._dialer.open_stream(machine, wire.OpenStream(stream=name, request=request))
            socket = await _dialled(awaited, machine, dial_s)
            try:
                yield socket
            finally:
                with contextlib.suppress(ConnectionError):
                    await socket.close()
        finally:
            awaited.cancel()
            over.set()
            del self._awaited[name], self._over[name]


async def join(agent: web.WebSocketResponse, client: web.WebSocketResponse) -> None:
    """Both ways, until either closes. What the agent said last is handed on before this returns."""
    up = asyncio.ensure_future(_copy(client, agent))
    down = asyncio.ensure_future(_copy(agent, client))
    try:
        await asyncio.wait((up, down), return_when=asyncio.FIRST_COMPLETED)
    finally:
        up.cancel()
        down.cancel()
        await asyncio.gather(up, down, return_exceptions=True)


async def _copy(source: web.WebSocketResponse, target: web.WebSocketResponse) -> None:
    with contextlib.suppress(ConnectionError):
        while True:
            message: WSMessage = await source.receive()
            if message.type in _OVER:
                return
            if message.type is WSMsgType.BINARY:
                await target.send_bytes(message.data)
            else:
                await target.send_str(message.data)


async def _dialled(
    awaited: asyncio.Future[web.WebSocketResponse], machine: str, dial_s: float
) -> web.WebSocketResponse:
    try:
        async with asyncio.timeout(dial_s):
            return await awaited
    except TimeoutError as error:
        raise Unavailable(f"the agent of {machine} did not open the stream within {dial_s:g} s") from error
