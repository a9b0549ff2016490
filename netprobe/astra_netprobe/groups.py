"""The connections of a ring, or of the exchanges of recursive doubling, which several all-reduces use in turn."""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from collections.abc import Callable, Sequence
from typing import Literal, Protocol, Self

from astra_netprobe import doubling, ring, tcp_info, transfer
from astra_netprobe.calling import Caller, Unreached
from astra_netprobe.door import Door
from astra_netprobe.greeting import Purpose
from astra_netprobe.messages import AllReduce, JoinDoubling, JoinRing, Reduced, Sent
from astra_netprobe.processor import Processor
from astra_netprobe.ring import Broken
from astra_netprobe.tcp_info import TcpInfo

SEND_BUFFER = 512 << 10
"""
Bytes, of which the kernel makes twice as many. It lets a queue grow to 4 MiB by itself, of memory that is cold when it
is used again: a fifth of the processor time of a ring whose machines are near, for nothing. 8 ms of a line of 1 Gbit/s
are left for a process that waits for its core.
"""
NEAR_S = 3e-4
"""A round trip below which that many bytes under way are no bound at the 9 Gbit/s that one process moves."""
_SEND_BUFFER_FORCED = 32
"""SO_SNDBUFFORCE of asm-generic/socket.h: whatever net.core.wmem_max says, for who may."""
STUCK_S = 1.0
"""Data that nobody has acknowledged for so long is on its way to nowhere."""


class Group(Protocol):
    @property
    def algorithm(self) -> Literal["ring", "doubling"]: ...

    def all_reduce(self, question: AllReduce) -> Reduced: ...

    def close(self) -> None: ...


class RingGroup:
    algorithm: Literal["ring"] = "ring"

    def __init__(
        self, question: JoinRing, outgoing: Sequence[socket.socket], incoming: Sequence[socket.socket]
    ) -> None:
        self._question = question
        self._outgoing = outgoing
        self._incoming = incoming
        for connection in (*outgoing, *incoming):
            connection.setblocking(False)
        for connection in outgoing:
            _keep_queue_short(connection)

    @classmethod
    def join(cls, question: JoinRing, door: Door, caller: Caller) -> Self:
        """Raises: Unreached, with the neighbour that did not come."""
        until = time.monotonic() + question.limit_s
        streams = question.streams
        outgoing = caller.call(question.next, Purpose.RING, tag=question.tag, streams=streams, limit_s=question.limit_s)
        try:
            keys = [(Purpose.RING, question.previous, stream, question.tag) for stream in range(streams)]
            return cls(question, outgoing, take_all(door, keys, until))
        except BaseException:
            _close_all(outgoing)
            raise

    def all_reduce(self, question: AllReduce) -> Reduced:
        deadline = time.monotonic() + question.limit_s
        total = question.size_bytes // 4
        bounds = [i * total // len(self._outgoing) for i in range(len(self._outgoing) + 1)]
        lanes = [
            ring.Lane(
                outgoing, incoming, position=self._question.position, count=self._question.count,
                elements=bounds[i + 1] - bounds[i],
            )
            for i, (outgoing, incoming) in enumerate(zip(self._outgoing, self._incoming, strict=True))
        ]  # fmt: skip
        measured = _Measured(self._outgoing)

        def once() -> float:
            return ring.all_reduce(lanes, deadline=deadline, stall_s=question.stall_s)

        times, broken = _repeat(once, question.iterations + 1, deadline, measured.begin)
        return Reduced(
            times_s=times[1:],
            first_s=times[0] if times else 0.0,
            wrong={self._question.previous: wrong} if (wrong := sum(lane.wrong for lane in lanes)) else {},
            sent=measured.end(),
            processor=measured.processor.share(),
            broken=broken,
        )

    def close(self) -> None:
        _close_all((*self._outgoing, *self._incoming))


class DoublingGroup:
    algorithm: Literal["doubling"] = "doubling"

    def __init__(self, question: JoinDoubling, connections: dict[int, socket.socket]) -> None:
        self._question = question
        self._connections = connections
        self._ranks = {position: peer.rank for position, peer in question.peers}

    @classmethod
    def join(cls, question: JoinDoubling, door: Door, caller: Caller) -> Self:
        """The lower position calls. Raises: Unreached."""
        until = time.monotonic() + question.limit_s
        made: dict[int, socket.socket] = {}
        try:
            for position, peer in question.peers:
                if position > question.position:
                    limit_s = max(0.1, until - time.monotonic())
                    (made[position],) = caller.call(
                        peer, Purpose.DOUBLING, tag=question.tag, streams=1, limit_s=limit_s
                    )
            for position, peer in question.peers:
                if position < question.position:
                    (made[position],) = take_all(door, [(Purpose.DOUBLING, peer.rank, 0, question.tag)], until)
        except BaseException:
            _close_all(tuple(made.values()))
            raise
        return cls(question, made)

    def all_reduce(self, question: AllReduce) -> Reduced:
        deadline = time.monotonic() + question.limit_s
        stall = struct.pack("ll", int(question.stall_s), int(question.stall_s % 1 * 1e6))
        for connection in self._connections.values():
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, stall)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, stall)
        exchange = doubling.Doubling(
            self._connections, position=self._question.position, count=self._question.count,
            elements=max(1, question.size_bytes // 4),
        )  # fmt: skip
        processor = Processor()
        times, broken = _repeat(exchange.all_reduce, question.iterations + 1, deadline, lambda: None)
        return Reduced(
            times_s=times[1:],
            first_s=times[0] if times else 0.0,
            wrong={self._ranks[position]: wrong for position, wrong in exchange.wrong.items()},
            processor=processor.share(),
            broken=broken,
        )

    def close(self) -> None:
        _close_all(tuple(self._connections.values()))


def _keep_queue_short(connection: socket.socket) -> None:
    """Who may not is left to the kernel: what it allows everybody is less than a far machine needs."""
    if (size := send_buffer(tcp_info.read(connection))) is not None:
        with contextlib.suppress(OSError):
            connection.setsockopt(socket.SOL_SOCKET, _SEND_BUFFER_FORCED, size)


def send_buffer(info: TcpInfo) -> int | None:
    """Bytes for a connection to a machine that is near; None: as the kernel finds best."""
    return SEND_BUFFER if 0 < info.min_rtt_s <= NEAR_S else None


def take_all(door: Door, keys: Sequence[tuple[Purpose, int, int, int]], until: float) -> list[socket.socket]:
    """Connections that others make to us. Raises: Unreached, when one did not come by *until*."""
    taken: list[socket.socket] = []
    for key in keys:
        connection = door.take(key, until)
        if connection is None:
            _close_all(taken)
            raise Unreached(key[1], "silent")
        taken.append(connection)
    return taken


def sent_between(before: Sequence[TcpInfo], after: Sequence[TcpInfo], seconds: float) -> Sent:
    """
    What the kernel counted for several connections to one peer: bytes of all, the time in which any was busy taken as
    the longest of theirs.
    """
    changes = list(zip(before, after, strict=True))
    return Sent(
        seconds=seconds,
        acked_bytes=sum(now.acked_bytes - then.acked_bytes for then, now in changes),
        busy_s=max((now.busy_s - then.busy_s for then, now in changes), default=0.0),
        window_s=max((now.window_s - then.window_s for then, now in changes), default=0.0),
        retransmits=sum(now.retransmits - then.retransmits for then, now in changes),
        rtt_s=max((now.rtt_s for now in after), default=0.0),
        cwnd=sum(now.cwnd for now in after),
        lost=sum(now.lost for now in after),
        is_stuck=any(now.unacked > 0 and now.silent_s >= STUCK_S for now in after),
    )


class _Measured:
    """What the outgoing connections and the processor did since `begin`."""

    def __init__(self, outgoing: Sequence[socket.socket]) -> None:
        self._outgoing = outgoing
        self.begin()

    def begin(self) -> None:
        self.processor = Processor()
        self._began = time.monotonic()
        self._before = [tcp_info.read(connection) for connection in self._outgoing]

    def end(self) -> Sent:
        after = [tcp_info.read(connection) for connection in self._outgoing]
        return sent_between(self._before, after, time.monotonic() - self._began)


def _repeat(
    once: Callable[[], float], count: int, deadline: float, after_first: Callable[[], None]
) -> tuple[tuple[float, ...], str]:
    times: list[float] = []
    try:
        for i in range(count):
            times.append(once())
            if i == 0:
                after_first()
            if time.monotonic() > deadline:
                return tuple(times), "the time was over before all iterations were done"
    except Broken as error:
        return tuple(times), f"{'towards the next' if error.towards else 'from the previous'}: {error}"
    return tuple(times), ""


def _close_all(connections: Sequence[socket.socket]) -> None:
    for connection in connections:
        transfer.abandon(connection)
