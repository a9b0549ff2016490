"""
Connections to the doors of other machines, and what it means when one can't be made.

Many are made at once, so that a mesh of a thousand machines is looked at in the time of its slowest answer.
"""

from __future__ import annotations

import errno
import math
import os
import select
import socket
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from astra_netprobe import greeting
from astra_netprobe.greeting import ANSWER_BYTES, Greeting, Purpose
from astra_netprobe.messages import Peer
from astra_netprobe.readings import Outcome

AT_ONCE = 256
_PACING = 47
"""SO_MAX_PACING_RATE of asm-generic/socket.h, in bytes per second."""
_NEIGHBOUR_S = 0.5
"""A router or a firewall says no at once; the kernel gives up on an address that nobody has after about 3 seconds."""
_TRY_AGAIN = frozenset({errno.EINPROGRESS, errno.EAGAIN})
_MTU_DISCOVER, _PROBE = 10, 3
"""IP_MTU_DISCOVER and IP_PMTUDISC_PROBE of linux/in.h: set DF, and send what the port takes whatever was learnt."""
_PACKET_HEADERS = 28
_SMALL_PACKET = 200
_PACKET_TRIES = 3


def reach_s(peers: int, limit_s: float) -> float:
    """How long `Caller.reach` takes at most, when each of so many peers may be silent for *limit_s*."""
    return math.ceil(peers / AT_ONCE) * limit_s


class Unreached(Exception):
    def __init__(self, rank: int, outcome: Outcome) -> None:
        super().__init__(outcome)
        self.rank = rank
        self.outcome = outcome


@dataclass(frozen=True, slots=True)
class Caller:
    """
    One machine's way to call others: from its own address, so that bytes go where the run's will.

    *max_bps* is for all connections to one peer together, 0 for as much as goes: a machine sends to one at a time.
    """

    rank: int
    address: str
    secret: bytes
    max_bps: float = 0.0

    def call(self, peer: Peer, purpose: Purpose, *, tag: int, streams: int, limit_s: float) -> list[socket.socket]:
        """
        Connections to *peer*'s door, greeted and answered, blocking.

        Raises:
            Unreached: With how it ended.
        """
        made = []
        try:
            for stream in range(streams):
                attempt = _Call(
                    self, peer, Greeting(purpose, self.rank, peer.rank, stream, tag, os.urandom(8)), streams
                )
                _finish([attempt], time.monotonic() + limit_s)
                if attempt.outcome != "reached":
                    attempt.close()
                    raise Unreached(peer.rank, attempt.outcome)
                made.append(attempt.take())
        except BaseException:
            for connection in made:
                connection.close()
            raise
        return made

    def reach(self, peers: Sequence[Peer], limit_s: float) -> dict[int, Outcome]:
        """How a connection to each peer's door ends; closes all of them."""
        outcomes: dict[int, Outcome] = {}
        for begin in range(0, len(peers), AT_ONCE):
            calls = [
                _Call(self, peer, Greeting(Purpose.REACH, self.rank, peer.rank, 0, 0, os.urandom(8)))
                for peer in peers[begin : begin + AT_ONCE]
            ]
            _finish(calls, time.monotonic() + limit_s)
            for call in calls:
                outcomes[call.peer.rank] = call.outcome
                call.close()
        return outcomes

    def packets(self, peers: Sequence[Peer], mtu: int, limit_s: float) -> tuple[set[int], set[int]]:
        """
        Ranks where a small packet arrived, and where one of the whole MTU did; what gets lost is sent again.
        """
        small: set[int] = set()
        large: set[int] = set()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sending:
            sending.setsockopt(socket.IPPROTO_IP, _MTU_DISCOVER, _PROBE)
            sending.bind((self.address, 0))
            for _ in range(_PACKET_TRIES):
                for peer in peers:
                    for number, size, arrived in ((1, _SMALL_PACKET, small), (2, mtu - _PACKET_HEADERS, large)):
                        if peer.rank not in arrived:
                            self._send_packet(sending, peer, number, size)
                self._hear_packets(sending, peers, (small, large), time.monotonic() + limit_s / _PACKET_TRIES)
                if len(small) == len(large) == len(peers):
                    break
        return small, large

    def _send_packet(self, sending: socket.socket, peer: Peer, number: int, size: int) -> None:
        content = greeting.packet(number, peer.rank, size, self.secret)
        try:
            sending.sendto(content, (peer.address, peer.packet_port))
        except OSError as error:
            if error.errno not in (errno.EMSGSIZE, errno.EPERM, errno.EHOSTUNREACH, errno.ECONNREFUSED):
                raise

    def _hear_packets(
        self, sending: socket.socket, peers: Sequence[Peer], arrived: tuple[set[int], set[int]], until: float
    ) -> None:
        ranks = {(peer.address, peer.packet_port): peer.rank for peer in peers}
        while len(arrived[0]) + len(arrived[1]) < 2 * len(peers) and (left := until - time.monotonic()) > 0:
            readable, _, _ = select.select([sending], [], [], left)
            if not readable:
                return
            try:
                raw, sender = sending.recvfrom(greeting.PACKET_BYTES)
            except OSError:
                continue  # an answer to an earlier packet that was refused
            rank = ranks.get(sender)
            number = None if rank is None else greeting.packet_number(raw, rank, self.secret)
            if rank is not None and number in (1, 2):
                arrived[number - 1].add(rank)


class _Call:
    """One connection on its way: connect, greet, hear the answer."""

    def __init__(self, caller: Caller, peer: Peer, said: Greeting, streams: int = 1) -> None:
        self.peer = peer
        self.outcome: Outcome = "silent"
        self.connection: socket.socket | None = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self.is_over = False
        self.is_connected = False
        self._secret = caller.secret
        self._greeting = greeting.encode(said, caller.secret)
        self._heard = b""
        self._began = time.monotonic()
        self._connect(self.connection, caller, streams)

    def go_on(self) -> None:
        """Something happened to the connection."""
        connection = self.connection
        if connection is None:
            return
        try:
            if not self.is_connected:
                if (code := connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)) != 0:
                    raise OSError(code, os.strerror(code))
                self.is_connected = True
                connection.sendall(self._greeting)
                return
            more = connection.recv(ANSWER_BYTES - len(self._heard))
        except BlockingIOError:
            return
        except OSError as error:
            self._fail(error)
            return
        self._heard += more
        if not more:
            self._end("stranger")
        elif len(self._heard) == ANSWER_BYTES:
            self._end("reached" if greeting.is_answer(self._heard, self._greeting, self._secret) else "stranger")

    def take(self) -> socket.socket:
        if self.connection is None:
            raise RuntimeError("there is no connection to take")
        taken, self.connection = self.connection, None
        taken.settimeout(None)
        return taken

    def close(self) -> None:
        if self.connection is not None:
            self.connection.close()

    def _connect(self, connection: socket.socket, caller: Caller, streams: int) -> None:
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if caller.max_bps:
            each = max(1, min(int(caller.max_bps / 8 / streams), 2**32 - 1))
            connection.setsockopt(socket.SOL_SOCKET, _PACING, each)
        try:
            connection.bind((caller.address, 0))
            code = connection.connect_ex((self.peer.address, self.peer.port))
        except OSError as error:
            self._fail(error)
            return
        if code not in (0, *_TRY_AGAIN):
            self._fail(OSError(code, os.strerror(code)))

    def _fail(self, error: OSError) -> None:
        at_once = time.monotonic() - self._began < _NEIGHBOUR_S
        match error.errno:
            case errno.ECONNREFUSED | errno.ECONNRESET | errno.EPIPE:
                self._end("stranger" if self.is_connected else "refused")
            case errno.EHOSTUNREACH if not at_once:
                self._end("no_neighbour")
            case errno.ETIMEDOUT:
                self._end("silent")
            case _:
                self._end("rejected")

    def _end(self, outcome: Outcome) -> None:
        self.outcome = outcome
        self.is_over = True


def _finish(calls: Iterable[_Call], deadline: float) -> None:
    """Until each is over or the time is: what has said nothing by then was silent."""
    poller = select.poll()
    pending: dict[int, _Call] = {}
    for call in calls:
        if not call.is_over and call.connection is not None:
            pending[call.connection.fileno()] = call
            poller.register(call.connection, select.POLLOUT)
    while pending and (left := deadline - time.monotonic()) > 0:
        for descriptor, _ in poller.poll(left * 1000):
            call = pending[descriptor]
            was_connected = call.is_connected
            call.go_on()
            if call.is_over:
                poller.unregister(descriptor)
                del pending[descriptor]
            elif call.is_connected and not was_connected:
                poller.modify(descriptor, select.POLLIN)
