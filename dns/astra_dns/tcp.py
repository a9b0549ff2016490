"""
DNS over TCP (RFC 7766): many questions on one connection, answered in whatever order they are done.

Bounds on everything that a client may hold: connections, questions under way, time without a question, time to read.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

from astra_dns.counters import Counters

MAX_CONNECTIONS = 256
"""At one socket, which is one workspace's."""
MAX_PIPELINED = 64
IDLE_S = 10.0
READ_S = 5.0
"""From a question's first byte to its last, and for a client to take its answers."""
_UNSENT_BYTES = 256 << 10

Take = Callable[[bytes, Callable[[bytes | None], None]], None]
"""Answers a packet, now or later, by calling its second argument."""


class TcpListener:
    """Owns the listening socket and its connections until `close`."""

    def __init__(self, sock: socket.socket, take: Take, counters: Counters) -> None:
        self._socket = sock
        self._take = take
        self._counters = counters
        self._loop = asyncio.get_running_loop()
        self._connections: set[asyncio.Task[None]] = set()
        self._loop.add_reader(sock, self._accept)

    def close(self) -> None:
        self._loop.remove_reader(self._socket)
        self._socket.close()
        for connection in self._connections:
            connection.cancel()

    def _accept(self) -> None:
        for _ in range(8):
            try:
                made, _ = self._socket.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                self._counters.ignored[f"accept: {error.strerror}"] += 1
                return
            if len(self._connections) >= MAX_CONNECTIONS:
                self._counters.ignored["too many connections"] += 1
                made.close()
                continue
            made.setblocking(False)
            task = self._loop.create_task(_Connection(made, self._take, self._counters).serve())
            self._connections.add(task)
            task.add_done_callback(self._connections.discard)


class _Connection:
    def __init__(self, sock: socket.socket, take: Take, counters: Counters) -> None:
        self._socket = sock
        self._take = take
        self._counters = counters
        self._under_way = 0
        self._moved = asyncio.Event()
        """Set whenever an answer was given."""

    async def serve(self) -> None:
        """Until the client goes, or holds on to something for too long."""
        try:
            reader, writer = await asyncio.open_connection(sock=self._socket)
        except OSError:
            self._socket.close()
            return
        writer.transport.set_write_buffer_limits(high=_UNSENT_BYTES)
        try:
            while (packet := await self._read(reader)) is not None:
                self._counters.tcp_requests += 1
                self._under_way += 1
                self._take(packet, lambda said: self._answer(writer, said))
                async with asyncio.timeout(READ_S):
                    await writer.drain()
                    await self._until_fewer_than(MAX_PIPELINED)
            async with asyncio.timeout(READ_S):
                await self._until_fewer_than(1)
                await writer.drain()
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _read(self, reader: asyncio.StreamReader) -> bytes | None:
        """The next question; None when the client has no more."""
        try:
            async with asyncio.timeout(IDLE_S):
                first = await reader.readexactly(1)
        except asyncio.IncompleteReadError:
            return None
        async with asyncio.timeout(READ_S):
            size = first + await reader.readexactly(1)
            return await reader.readexactly(int.from_bytes(size, "big"))

    def _answer(self, writer: asyncio.StreamWriter, said: bytes | None) -> None:
        self._under_way -= 1
        self._moved.set()
        if said is not None and not writer.is_closing():
            writer.write(len(said).to_bytes(2, "big") + said)

    async def _until_fewer_than(self, count: int) -> None:
        while self._under_way >= count:
            self._moved.clear()
            await self._moved.wait()
