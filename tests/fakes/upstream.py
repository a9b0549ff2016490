"""A name server to forward to, that answers, lies, cuts short or says nothing, as a test wants."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import cast

import dns.flags
import dns.message
import dns.rcode
import dns.rrset

from astra_agent import namespaces

Answers = Callable[[dns.message.Message], list[bytes]]
"""Packets to send for a query; none: silence."""


def bound_pair(host: str = "127.0.0.1", port: int = 0) -> tuple[socket.socket, socket.socket]:
    """UDP, and TCP that listens, on one free port, or on *port*."""
    while True:
        tcp = socket.create_server((host, port))
        udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            udp.bind(tcp.getsockname())
        except OSError:
            tcp.close()
            udp.close()
            if port:
                raise
        else:
            return udp, tcp


class FakeUpstream:
    """UDP and TCP at *port*. *answers* may be replaced at any time; *asked* counts questions by name."""

    def __init__(self, answers: Answers) -> None:
        self.answers = answers
        self.over_tcp: Answers | None = None
        """None: as over UDP."""
        self.asked: Counter[str] = Counter()
        self.heard: list[tuple[int, int]] = []
        """Port and ID of each question over UDP."""
        self.port = 0

    @contextlib.asynccontextmanager
    async def serve(
        self, host: str = "127.0.0.1", port: int = 0, netns: Path | None = None
    ) -> AsyncIterator[FakeUpstream]:
        """In the network namespace *netns*; None: the process's own."""
        udp, tcp = namespaces.inside(netns, lambda: bound_pair(host, port))
        self.port = udp.getsockname()[1]
        transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(lambda: _Udp(self), sock=udp)
        server = await asyncio.start_server(self._tcp, sock=tcp)
        try:
            yield self
        finally:
            transport.close()
            server.close()
            await server.wait_closed()

    def packets(self, packet: bytes, *, tcp: bool) -> list[bytes]:
        query = dns.message.from_wire(packet)
        self.asked[f"{query.question[0].name}{' tcp' if tcp else ''}"] += 1
        chosen = self.over_tcp if tcp and self.over_tcp is not None else self.answers
        return chosen(query)

    async def _tcp(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, OSError):
            size = int.from_bytes(await reader.readexactly(2), "big")
            for packet in self.packets(await reader.readexactly(size), tcp=True):
                writer.write(len(packet).to_bytes(2, "big") + packet)
            await writer.drain()
        writer.close()


class _Udp(asyncio.DatagramProtocol):
    def __init__(self, owner: FakeUpstream) -> None:
        self._owner = owner

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        self._owner.heard.append((addr[1], int.from_bytes(data[:2], "big")))
        for packet in self._owner.packets(data, tcp=False):
            self._transport.sendto(packet, addr)


def address(text: str, ttl_s: int = 30, count: int = 1) -> Answers:
    """An A record, or *count* of them that begin with it."""

    def answers(query: dns.message.Message) -> list[bytes]:
        response = dns.message.make_response(query, recursion_available=True)
        head, _, last = text.rpartition(".")
        texts = [f"{head}.{int(last) + number}" for number in range(count)]
        response.answer.append(dns.rrset.from_text(query.question[0].name, ttl_s, "IN", "A", *texts))
        return [response.to_wire(max_size=65535)]

    return answers


def code(rcode: dns.rcode.Rcode, *, negative_ttl_s: int | None = None) -> Answers:
    def answers(query: dns.message.Message) -> list[bytes]:
        response = dns.message.make_response(query, recursion_available=True)
        response.set_rcode(rcode)
        if negative_ttl_s is not None:
            soa = f"ns.example. admin.example. 1 60 60 60 {negative_ttl_s}"
            response.authority.append(dns.rrset.from_text("example.", 300, "IN", "SOA", soa))
        return [response.to_wire()]

    return answers


def truncated(query: dns.message.Message) -> list[bytes]:
    response = dns.message.make_response(query, recursion_available=True)
    response.flags |= dns.flags.TC
    return [response.to_wire()]


def silence(_: dns.message.Message) -> list[bytes]:
    return []
