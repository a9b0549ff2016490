"""
One upstream server: sockets to it with random ports, questions under way on them, and whether it answers at all.

A socket is connected, so the kernel drops whatever comes from another address, and reports at once that nobody listens.
Port and ID are random: whoever wants to lie without seeing the question has to guess about 30 bits.
"""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import Callable
from typing import Protocol

from astra_dns.counters import Counters
from astra_dns.query import MalformedError
from astra_dns.upstream_answer import UpstreamAnswer, is_answer, read

PORTS = 16
QUESTIONS_PER_PORT = 500
PORT_AGE_S = 30.0
"""A port is used for so many questions, or so long; then another one takes its place."""
LIES_PER_PORT = 64
"""So many wrong answers on one port are somebody guessing: the port is given up."""
SICK_AFTER = 3
TCP_TIMEOUT_S = 1.2

_RANDOM = random.SystemRandom()


class Asker(Protocol):
    """A question under way. What comes after it is done is ignored by it."""

    question: bytes
    """Name, type and class."""

    def answered(self, upstream: Upstream, answer: UpstreamAnswer) -> None: ...

    def refused(self, upstream: Upstream) -> None:
        """Nobody listens there now."""
        ...


class _Port:
    def __init__(self, upstream: Upstream, loop: asyncio.AbstractEventLoop) -> None:
        self._upstream = upstream
        self._loop = loop
        self._askers: dict[int, Asker] = {}
        self._lies = 0
        self._used = 0
        self._socket = socket.socket(upstream.family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            self._socket.connect(upstream.address)
        except OSError:
            self._socket.close()
            raise
        self._retire_at = loop.time() + PORT_AGE_S
        loop.add_reader(self._socket, self._readable)

    @property
    def is_spent(self) -> bool:
        return self._used >= QUESTIONS_PER_PORT or self._loop.time() > self._retire_at or self._lies >= LIES_PER_PORT

    def send(self, tail: bytes, asker: Asker) -> int:
        """Returns the ID. Raises: OSError."""
        number = _RANDOM.getrandbits(16)
        while number in self._askers:
            number = (number + 1) & 0xFFFF
        self._askers[number] = asker
        self._used += 1
        try:
            self._socket.send(number.to_bytes(2, "big") + tail)
        except OSError:
            del self._askers[number]
            raise
        return number

    def forget(self, number: int) -> None:
        self._askers.pop(number, None)
        if self.is_spent:
            self.close_when_idle()

    def close_when_idle(self) -> None:
        if not self._askers:
            self.close()

    def close(self) -> None:
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket)
            self._socket.close()

    def _readable(self) -> None:
        for _ in range(32):
            if self._socket.fileno() < 0:
                return
            try:
                packet = self._socket.recv(65535)
            except BlockingIOError:
                return
            except OSError:
                for asker in list(self._askers.values()):
                    asker.refused(self._upstream)
                return
            self._take(packet)

    def _take(self, packet: bytes) -> None:
        asker = self._askers.get(int.from_bytes(packet[:2], "big")) if len(packet) >= 12 else None
        if asker is None or not is_answer(packet, asker.question):
            self._lie()
            return
        try:
            answer = read(packet, asker.question)
        except MalformedError:
            self._lie()
            return
        asker.answered(self._upstream, answer)

    def _lie(self) -> None:
        self._lies += 1
        self._upstream.counters.lies[self._upstream.name] += 1
        if self._lies == LIES_PER_PORT:
            for asker in list(self._askers.values()):
                asker.refused(self._upstream)


class Upstream:
    """
    Args:
        name: An IP address, with a zone where it needs one.
        port: 53, but for tests.
    Attributes:
        failures: Questions in a row that got no answer.
        loops: What was sent there came back to us.
    Raises:
        OSError: *name* is no address.
    """

    def __init__(self, name: str, port: int, counters: Counters) -> None:
        (found, *_) = socket.getaddrinfo(name, port, type=socket.SOCK_DGRAM, flags=socket.AI_NUMERICHOST)
        self.name = name
        self.port = port
        self.family, self.address = found[0], found[4]
        self.counters = counters
        self.failures = 0
        self.loops = False
        self._ports: list[_Port] = []

    @property
    def is_healthy(self) -> bool:
        return self.failures < SICK_AFTER and not self.loops

    def send(self, tail: bytes, asker: Asker) -> Callable[[], None]:
        """Ask; returns what ends the wait. Raises: OSError when it can't even be sent."""
        self.counters.tries[self.name] += 1
        port = self._port()
        number = port.send(tail, asker)
        return lambda: port.forget(number)

    def _port(self) -> _Port:
        for port in [port for port in self._ports if port.is_spent]:
            self._ports.remove(port)
            port.close_when_idle()
        if len(self._ports) < PORTS:
            self._ports.append(_Port(self, asyncio.get_running_loop()))
            return self._ports[-1]
        return _RANDOM.choice(self._ports)

    def close(self) -> None:
        for port in self._ports:
            port.close()
        self._ports = []

    async def ask_tcp(self, tail: bytes, question: bytes) -> UpstreamAnswer | None:
        """One question on a connection of its own; None when no good answer comes in time."""
        number = _RANDOM.getrandbits(16).to_bytes(2, "big")
        try:
            async with asyncio.timeout(TCP_TIMEOUT_S):
                reader, writer = await asyncio.open_connection(self.name, self.port, family=self.family)
                try:
                    packet = number + tail
                    writer.write(len(packet).to_bytes(2, "big") + packet)
                    size = int.from_bytes(await reader.readexactly(2), "big")
                    said = await reader.readexactly(size)
                finally:
                    writer.close()
            if said[:2] != number or not is_answer(said, question):
                self.counters.lies[self.name] += 1
                return None
            return read(said, question)
        except (OSError, TimeoutError, asyncio.IncompleteReadError, MalformedError):
            return None
