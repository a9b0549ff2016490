"""Requests and WebSockets on a unix socket: against aiohttp's server, and against one that keeps to nothing."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import aiohttp
import pytest
import wsproto
from aiohttp import web
from wsproto.events import AcceptConnection, BytesMessage, TextMessage
from wsproto.events import Request as Upgrade

from astra_driver import unix_http

SOON_S = 0.05
BOUND_S = 30.0
LONG = 300_000


@contextlib.asynccontextmanager
async def serving(folder: Path, *routes: web.RouteDef) -> AsyncIterator[str]:
    application = web.Application(client_max_size=2 * LONG)
    application.add_routes(routes)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.UnixSite(runner, str(folder / "s.sock")).start()
        yield str(folder / "s.sock")
    finally:
        await runner.cleanup()


@contextlib.asynccontextmanager
async def saying(folder: Path, *pieces: bytes, then_silent: bool = False) -> AsyncIterator[str]:
    """A server that says the same to everybody, whatever they ask."""
    over = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            await reader.readuntil(b"\r\n\r\n")
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
            if then_silent:
                await over.wait()
        writer.close()

    async with _raw(folder, serve) as path:
        try:
            yield path
        finally:
            over.set()


@contextlib.asynccontextmanager
async def _raw(
    folder: Path, serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
) -> AsyncIterator[str]:
    server = await asyncio.start_unix_server(serve, str(folder / "s.sock"))
    try:
        yield str(folder / "s.sock")
    finally:
        server.close()


async def ask(path: str, body: str | None = None, silence_s: float = BOUND_S) -> tuple[int, str]:
    async with unix_http.request(path, "PUT", "/it?a=1", body, silence_s) as answer:
        return answer.status, await answer.text()


async def lines(path: str, max_bytes: int = 1000, silence_s: float = BOUND_S) -> list[bytes]:
    async with unix_http.request(path, "GET", "/it", None, silence_s) as answer:
        return [line async for line in answer.lines(max_bytes)]


def test_a_plugin_loads_no_http_framework() -> None:
    """It would be a fifth of the memory of each of the two."""
    program = "import sys, astra_driver.main, astra_driver.task_plugin, astra_driver.device_plugin; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert {"grpc", "h11", "astra_driver.execs"} <= set(loaded)
    assert not {"aiohttp", "requests", "http.client", "rich", "click", "numpy", "yaml"} & set(loaded)


# Requests ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 3, LONG])
async def test_what_is_sent_comes_and_comes_back(tmp_path: Path, size: int) -> None:
    async def echo(request: web.Request) -> web.Response:
        return web.Response(status=201, text=f"{request.query['a']}{await request.text()}")

    async with serving(tmp_path, web.put("/it", echo)) as path:
        assert await ask(path, "é" * size) == (201, "1" + "é" * size)


async def test_an_answer_in_pieces_is_read_in_lines(tmp_path: Path) -> None:
    async def watch(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for piece in (b"on", b"e\n\ntwo\nthr", b"ee\n"):
            await response.write(piece)
        return response

    async with serving(tmp_path, web.get("/it", watch)) as path:
        assert await lines(path) == [b"one", b"", b"two", b"three"]


async def test_nobody_there_is_told_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        await ask(str(tmp_path / "s.sock"))


CUT = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf"


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"HTTP/1.1 20",
        b"SSH-2.0-OpenSSH\r\n\r\n",
        CUT,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab",
    ],
    ids=["nothing", "half a head", "another protocol", "half a body", "half a chunk"],
)
async def test_what_is_no_whole_answer_is_an_error(tmp_path: Path, said: bytes) -> None:
    async with saying(tmp_path, said) as path:
        with pytest.raises(ConnectionError):
            await ask(path)


@pytest.mark.parametrize("said", [b"", b"HTTP/1.1 20", CUT], ids=["nothing", "half a head", "half a body"])
async def test_silence_has_a_bound(tmp_path: Path, said: bytes) -> None:
    async with saying(tmp_path, said, then_silent=True) as path:
        with pytest.raises(TimeoutError):
            await ask(path, silence_s=SOON_S)


async def test_a_line_has_a_bound(tmp_path: Path) -> None:
    head = f"HTTP/1.1 200 OK\r\nContent-Length: {LONG}\r\n\r\n".encode()
    async with saying(tmp_path, head, b"x" * LONG) as path:
        with pytest.raises(ConnectionError, match="more than 1000 bytes"):
            await lines(path, max_bytes=1000)


# WebSockets --------------------------------------------------------------------------------------------------------


async def test_messages_go_both_ways_and_a_ping_is_answered(tmp_path: Path) -> None:
    ended: list[int | None] = []

    async def echo(request: web.Request) -> web.WebSocketResponse:
        connection = web.WebSocketResponse(autoping=False)
        await connection.prepare(request)
        await connection.ping(b"there?")
        async for message in connection:
            if message.type is aiohttp.WSMsgType.PONG:
                await connection.send_bytes(b"pong " + bytes(message.data))
            elif message.type is aiohttp.WSMsgType.TEXT:
                await connection.send_str(message.data)
            else:
                await connection.send_bytes(message.data)
        ended.append(connection.close_code)
        return connection

    async with serving(tmp_path, web.get("/it", echo)) as path:
        async with unix_http.websocket(path, "/it", 2 * LONG, BOUND_S) as connection:
            heard = aiter(connection)
            assert await anext(heard) == b"pong there?"
            for message in ("text é", b"", b"\x01data", b"y" * LONG, "z" * LONG):
                await connection.send(message)
                assert await anext(heard) == message
        async with asyncio.timeout(BOUND_S):
            while not ended:  # noqa: ASYNC110 -- the server's own task says it
                await asyncio.sleep(0.01)
    assert ended == [1000]


async def test_the_other_sides_end_ends_it(tmp_path: Path) -> None:
    async def brief(request: web.Request) -> web.WebSocketResponse:
        connection = web.WebSocketResponse()
        await connection.prepare(request)
        await connection.send_str("bye")
        await connection.close()
        return connection

    async with serving(tmp_path, web.get("/it", brief)) as path:
        async with unix_http.websocket(path, "/it", LONG, BOUND_S) as connection:
            assert [message async for message in connection] == ["bye"]
            with pytest.raises(ConnectionError):
                await connection.send("too late")


async def test_a_message_in_fragments_is_one_and_has_a_bound(tmp_path: Path) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = wsproto.WSConnection(wsproto.ConnectionType.SERVER)
        link.receive_data(await reader.readuntil(b"\r\n\r\n"))
        assert isinstance(next(link.events()), Upgrade)
        writer.write(link.send(AcceptConnection()))
        for data, last in ((b"one ", False), (b"two", True)):
            writer.write(link.send(BytesMessage(data, message_finished=last)))
        for text, last in (("x" * 600, False), ("x" * 600, False), ("", True)):
            writer.write(link.send(TextMessage(text, message_finished=last)))
        await writer.drain()
        writer.close()

    async with _raw(tmp_path, serve) as path:
        async with unix_http.websocket(path, "/it", 1000, BOUND_S) as connection:
            heard = aiter(connection)
            assert await anext(heard) == b"one two"
            with pytest.raises(ConnectionError, match="more than 1000 bytes"):
                await anext(heard)


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 101 Switching\r\n\r\n",
        b"SSH-2.0\r\n\r\n",
    ],
    ids=["nothing", "refused", "no upgrade", "another protocol"],
)
async def test_what_takes_no_websocket_is_an_error(tmp_path: Path, said: bytes) -> None:
    async with saying(tmp_path, said) as path:
        with pytest.raises(ConnectionError):
            async with unix_http.websocket(path, "/it", LONG, BOUND_S):
                pass


async def test_a_handshake_has_a_bound(tmp_path: Path) -> None:
    async with saying(tmp_path, b"HTTP/1.1 101 ", then_silent=True) as path:
        with pytest.raises(TimeoutError):
            async with unix_http.websocket(path, "/it", LONG, SOON_S):
                pass
