"""Two machines and the way between them: bytes in one or both directions, and round trips of a small message."""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from astra_netprobe import pattern
from astra_netprobe.ring import CHUNK, Broken

_RST_ON_CLOSE = struct.pack("ii", 1, 0)
_CHUNK_BYTES = CHUNK * pattern.ELEMENT
_PING = b"\1" * 8


@dataclass(slots=True)
class Received:
    """What came in: *seconds* from the first byte to the last."""

    total_bytes: int = 0
    seconds: float = 0.0
    wrong: int = 0

    @property
    def rate(self) -> float:
        return 8 * self.total_bytes / self.seconds if self.seconds > 0 else 0.0


class _Sink:
    """One incoming connection: whole chunks are checked against the pattern that the other side repeats."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._buffer = np.empty(CHUNK, np.float32)
        self._bytes = self._buffer.data.cast("B")
        self._expected = pattern.block([0])
        self._fill = 0

    def receive(self, into: Received) -> int:
        """Bytes that came; -1 at the end."""
        try:
            got = self.connection.recv_into(self._bytes[self._fill :])
        except BlockingIOError:
            return 0
        except OSError:
            return -1  # the sender ends by a reset, so that nobody waits for what is still queued
        if got == 0:
            return -1
        self._fill += got
        if self._fill == _CHUNK_BYTES:
            into.wrong += pattern.check(self._buffer, self._expected)
            self._fill = 0
        return got


class _Source:
    def __init__(self, connection: socket.socket, chunk: memoryview) -> None:
        self.connection = connection
        self._chunk = chunk
        self._at = 0

    def send(self) -> int:
        try:
            went = self.connection.send(self._chunk[self._at :])
        except BlockingIOError:
            return 0
        except OSError as error:
            raise Broken(f"the connection broke: {error.strerror}", towards=True) from error
        self._at = (self._at + went) % _CHUNK_BYTES
        return went


class Flow:
    """Bytes on several connections at once; all without blocking. It closes none of them."""

    def __init__(self, outgoing: Sequence[socket.socket], incoming: Sequence[socket.socket]) -> None:
        chunk = np.tile(pattern.block([0]), CHUNK // pattern.BLOCK).data.cast("B")
        self.received = Received()
        self._sources = [_Source(connection, chunk) for connection in outgoing]
        self._sinks = [_Sink(connection) for connection in incoming]
        self._first = 0.0

    def send(self, *, seconds: float, stall_s: float) -> None:
        """
        Send for *seconds*, receiving what comes meanwhile. Returns at once when there is nobody to send to.

        Raises:
            Broken: A connection that we send on broke, or nothing moved for *stall_s*.
        """
        until = time.monotonic() + seconds
        while self._sources and (left := until - time.monotonic()) > 0:
            moved = sum(source.send() for source in self._sources) + self._receive()
            if not moved and not self._something_moves(min(left, stall_s)) and left > stall_s:
                raise Broken("nothing moves any more", towards=True)

    def drain(self, *, stall_s: float, deadline: float) -> None:
        """
        Receive until the other side is done.

        Raises:
            Broken: Nothing came for *stall_s*, or the *deadline* (monotonic) is over.
        """
        self._sources = []
        while self._sinks:
            left = min(stall_s, deadline - time.monotonic())
            if not self._receive() and not self._something_moves(left):
                raise Broken("nothing comes any more", towards=False)

    def _receive(self) -> int:
        """Whether anything came, or ended. Counts from the first byte on: what is timed is what came after it."""
        moved = 0
        for sink in list(self._sinks):
            got = sink.receive(self.received)
            moved += abs(got)
            if got < 0:
                self._sinks.remove(sink)
            elif got > 0 and self._first == 0.0:
                self._first = time.monotonic()
            elif got > 0:
                self.received.total_bytes += got
                self.received.seconds = time.monotonic() - self._first
        return moved

    def _something_moves(self, seconds: float) -> bool:
        incoming = [sink.connection for sink in self._sinks]
        outgoing = [source.connection for source in self._sources]
        readable, writable, _ = select.select(incoming, outgoing, [], max(0.0, seconds))
        return bool(readable or writable)


def ping(connection: socket.socket, *, count: int, seconds: float) -> tuple[float, ...]:
    """Round trips of eight bytes, in seconds each: *count* of them, or as many as the time allows. Raises: Broken."""
    times: list[float] = []
    until = time.monotonic() + seconds
    try:
        while len(times) < count and (sent := time.monotonic()) < until:
            connection.sendall(_PING)
            _read_ping(connection)
            times.append(time.monotonic() - sent)
        connection.shutdown(socket.SHUT_WR)
    except OSError as error:
        raise Broken(f"a round trip did not end: {error.strerror or error}", towards=True) from error
    return tuple(times)


def pong(connection: socket.socket) -> None:
    """Answer pings until the other side is done. Raises: Broken."""
    try:
        while _read_ping(connection):
            connection.sendall(_PING)
    except OSError as error:
        raise Broken(f"no ping comes: {error.strerror or error}", towards=False) from error


def _read_ping(connection: socket.socket) -> bool:
    left = len(_PING)
    while left:
        got = connection.recv(left)
        if not got:
            if left == len(_PING):
                return False
            raise ConnectionResetError("closed in the middle of a message")
        left -= len(got)
    return True


def abandon(connection: socket.socket) -> None:
    """Close at once: what is still queued is dropped, and the other side hears of it. Idempotent."""
    if connection.fileno() != -1:
        with contextlib.suppress(OSError):  # it may have ended by itself
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RST_ON_CLOSE)
        connection.close()
