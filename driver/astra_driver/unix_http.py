"""
HTTP and WebSockets on a unix socket: one connection for each request, ended with it, so that none is ever a stale one.

By h11 and wsproto, protocols without I/O that take 2 MiB. aiohttp's client takes 12, for TLS, cookies, forms and
proxies that are of no use here, in two processes of every machine.

Everything here raises:

    TimeoutError: nothing came for as long as the caller allows.
    OSError: nobody is there, the other side has gone, or it does not speak this protocol.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import h11
import wsproto
from wsproto.events import (
    AcceptConnection,
    BytesMessage,
    CloseConnection,
    Event,
    Ping,
    RejectConnection,
    Request,
    TextMessage,
)
from wsproto.utilities import LocalProtocolError, RemoteProtocolError

_HOST = "agent"
_READ_BYTES = 64 * 1024
_NORMAL_CLOSE = 1000


# HTTP --------------------------------------------------------------------------------------------------------------


class Answer:
    """An answer whose head is there; its body is read once."""

    def __init__(self, status: int, parts: AsyncIterator[bytes]) -> None:
        self.status = status
        self._parts = parts

    async def text(self) -> str:
        return b"".join([part async for part in self._parts]).decode()

    async def lines(self, max_bytes: int) -> AsyncIterator[bytes]:
        """Without their ends. Raises: OSError for one above *max_bytes*."""
        rest = b""
        async for part in self._parts:
            *whole, rest = (rest + part).split(b"\n")
            for line in whole:
                yield line
            if len(rest) > max_bytes:
                raise ConnectionAbortedError(f"a line has more than {max_bytes} bytes")


@contextlib.asynccontextmanager
async def request(path: str, method: str, target: str, body: str | None, silence_s: float) -> AsyncIterator[Answer]:
    """
    Args:
        path: Of the socket.
        silence_s: How long the other side may say nothing, from the connection to the last byte.
    """
    payload = (body or "").encode()
    headers = [("Host", _HOST), ("Connection", "close"), ("Content-Length", str(len(payload)))]
    link = h11.Connection(h11.CLIENT)
    events = (h11.Request(method=method, target=target, headers=headers), h11.Data(payload), h11.EndOfMessage())
    async with _connected(path, silence_s) as (reader, writer):
        async with asyncio.timeout(silence_s):
            await _send(writer, b"".join(link.send(event) or b"" for event in events))
        head = await _next(link, reader, silence_s)
        while isinstance(head, h11.InformationalResponse):
            head = await _next(link, reader, silence_s)
        assert isinstance(head, h11.Response), head  # h11 lets nothing else come first
        yield Answer(head.status_code, _parts(link, reader, silence_s))


async def _parts(link: h11.Connection, reader: asyncio.StreamReader, silence_s: float) -> AsyncIterator[bytes]:
    while isinstance(event := await _next(link, reader, silence_s), h11.Data):
        yield bytes(event.data)


async def _next(link: h11.Connection, reader: asyncio.StreamReader, silence_s: float) -> object:
    """h11's next event."""
    try:
        while (event := link.next_event()) is h11.NEED_DATA:
            async with asyncio.timeout(silence_s):
                link.receive_data(await reader.read(_READ_BYTES))
    except h11.RemoteProtocolError as error:
        raise ConnectionAbortedError(str(error)) from error
    return event


# WebSockets --------------------------------------------------------------------------------------------------------


class WebSocket:
    """
    Iterating over it gives whole messages, until the other side ends it or has gone. It may be silent for as long as it
    likes: a program that says nothing is no fault, and whoever has gone is told by the kernel.
    """

    def __init__(
        self,
        link: wsproto.WSConnection,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        max_bytes: int,
    ) -> None:
        self._link = link
        self._reader = reader
        self._writer = writer
        self._max_bytes = max_bytes

    async def send(self, message: str | bytes) -> None:
        """Waits while the other side takes nothing: that is the backpressure."""
        await self.say(TextMessage(message) if isinstance(message, str) else BytesMessage(message))

    async def __aiter__(self) -> AsyncIterator[str | bytes]:
        text, data = "", bytearray()
        while (event := await self.heard()) is not None:
            match event:
                case TextMessage(data=piece):
                    text += piece
                case BytesMessage(data=piece):
                    data += piece
                case Ping():
                    await self.say(event.response())
                case CloseConnection():
                    return
            if len(text) + len(data) > self._max_bytes:
                raise ConnectionAbortedError(f"a message has more than {self._max_bytes} bytes")
            if isinstance(event, TextMessage | BytesMessage) and event.message_finished:
                yield text if isinstance(event, TextMessage) else bytes(data)
                text, data = "", bytearray()

    async def say(self, event: Event) -> None:
        try:
            data = self._link.send(event)
        except LocalProtocolError as error:
            raise ConnectionResetError("the other side has ended it") from error
        await _send(self._writer, data)

    async def heard(self) -> Event | None:
        """None at the connection's end."""
        try:
            while (event := next(self._link.events(), None)) is None:
                if not (data := await self._reader.read(_READ_BYTES)):
                    return None
                self._link.receive_data(data)
        except RemoteProtocolError as error:
            raise ConnectionAbortedError(str(error)) from error
        return event


@contextlib.asynccontextmanager
async def websocket(path: str, target: str, max_bytes: int, connect_s: float) -> AsyncIterator[WebSocket]:
    """
    Args:
        path: Of the socket.
        max_bytes: Of a message from the other side.
    """
    async with _connected(path, connect_s) as (reader, writer):
        link = wsproto.WSConnection(wsproto.ConnectionType.CLIENT)
        made = WebSocket(link, reader, writer, max_bytes)
        async with asyncio.timeout(connect_s):
            await made.say(Request(host=_HOST, target=target))
            match await made.heard():
                case AcceptConnection():
                    pass
                case RejectConnection(status_code=status):
                    raise ConnectionRefusedError(f"HTTP {status}")
                case _:
                    raise ConnectionResetError("it has ended the connection")
        try:
            yield made
        finally:
            with contextlib.suppress(LocalProtocolError):  # ended by the other side
                writer.write(link.send(CloseConnection(_NORMAL_CLOSE)))


# Both --------------------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def _connected(path: str, connect_s: float) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    async with asyncio.timeout(connect_s):
        reader, writer = await asyncio.open_unix_connection(path)
    try:
        yield reader, writer
    finally:
        # At once: what the other side has not taken by now would keep the connection for as long as it takes nothing.
        writer.transport.abort()


async def _send(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(data)
    await writer.drain()
