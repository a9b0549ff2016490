"""One machine's side of a pair: bytes to or from a peer for a while, round trips with it."""

from __future__ import annotations

import socket
import struct
import time

from astra_netprobe import tcp_info, transfer
from astra_netprobe.calling import Caller
from astra_netprobe.door import Door
from astra_netprobe.greeting import Purpose
from astra_netprobe.groups import sent_between, take_all
from astra_netprobe.messages import RoundTrips, RoundTripsDone, Sent, Transfer, Transferred
from astra_netprobe.processor import Processor
from astra_netprobe.ring import Broken


def transfer_with(question: Transfer, door: Door, caller: Caller) -> Transferred:
    """Raises: Unreached."""
    until = time.monotonic() + question.limit_s
    join_s = min(question.limit_s, question.stall_s)
    outgoing: list[socket.socket] = []
    incoming: list[socket.socket] = []
    try:
        if question.to is not None:
            outgoing = caller.call(
                question.to, Purpose.FLOW, tag=question.tag, streams=question.streams, limit_s=join_s
            )
        if question.from_rank is not None:
            keys = [(Purpose.FLOW, question.from_rank, stream, question.tag) for stream in range(question.streams)]
            incoming = take_all(door, keys, time.monotonic() + join_s)
        for connection in (*outgoing, *incoming):
            connection.setblocking(False)
        return _transfer(question, outgoing, incoming, until)
    finally:
        for connection in (*outgoing, *incoming):
            transfer.abandon(connection)


def _transfer(
    question: Transfer, outgoing: list[socket.socket], incoming: list[socket.socket], until: float
) -> Transferred:
    processor = Processor()
    flow = transfer.Flow(outgoing, incoming)
    before, began = [tcp_info.read(connection) for connection in outgoing], time.monotonic()
    sent: Sent | None = None
    broken = ""
    try:
        flow.send(seconds=question.seconds, stall_s=question.stall_s)
        sent = _sent(outgoing, before, began)
        for connection in outgoing:
            transfer.abandon(connection)
        flow.drain(stall_s=question.stall_s, deadline=until)
    except Broken as error:
        broken = str(error)
        sent = sent or _sent(outgoing, before, began)
    received = flow.received
    return Transferred(
        sent=sent,
        received_bytes=received.total_bytes,
        received_s=received.seconds,
        wrong=received.wrong,
        processor=processor.share(),
        broken=broken,
    )


def _sent(outgoing: list[socket.socket], before: list[tcp_info.TcpInfo], began: float) -> Sent | None:
    if not outgoing:
        return None
    after = [tcp_info.read(connection) for connection in outgoing]
    return sent_between(before, after, time.monotonic() - began)


def round_trips(question: RoundTrips, door: Door, caller: Caller) -> RoundTripsDone:
    """Raises: Unreached."""
    until = time.monotonic() + question.limit_s
    if question.to is not None:
        (connection,) = caller.call(question.to, Purpose.TRIP, tag=question.tag, streams=1, limit_s=question.limit_s)
    elif question.from_rank is not None:
        (connection,) = take_all(door, [(Purpose.TRIP, question.from_rank, 0, question.tag)], until)
    else:
        return RoundTripsDone(times_s=(), broken="neither a peer to ping nor one to answer is named")
    with connection:
        left_s = max(0.1, until - time.monotonic())
        bound = struct.pack("ll", int(left_s), int(left_s % 1 * 1e6))
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, bound)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, bound)
        try:
            if question.to is None:
                transfer.pong(connection)
                return RoundTripsDone(times_s=())
            return RoundTripsDone(times_s=transfer.ping(connection, count=question.count, seconds=question.seconds))
        except Broken as error:
            return RoundTripsDone(times_s=(), broken=str(error))
