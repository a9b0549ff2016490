"""Machines that answer a probe's questions at once, over real connections, as a network with one sick port would."""

from __future__ import annotations

import asyncio
import time

from astra_netprobe import messages, stats
from astra_netprobe.channel import Endpoint, LineChannel
from astra_netprobe.conductor import Conductor
from astra_netprobe.messages import (
    MESSAGE_MAX,
    AllReduce,
    Answer,
    Done,
    FindPeers,
    Open,
    Opened,
    PacketsSent,
    PeersFound,
    Question,
    Reduced,
    RoundTrips,
    RoundTripsDone,
    SendPackets,
    Sent,
    Transfer,
    Transferred,
)  # fmt: skip
from astra_netprobe.verdict import judge

LINE_BPS, SICK_BPS = 1e9, 0.2e9
SICK = 7


async def control_plane_s(count: int) -> float:
    """
    Seconds from the first question to the verdict, in which a machine that receives slowly is found.

    Raises:
        RuntimeError: Another verdict.
    """
    serving: list[asyncio.Task[None]] = []

    def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.append(asyncio.create_task(_Machine.serve(reader, writer)))

    server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=MESSAGE_MAX)
    port = server.sockets[0].getsockname()[1]
    endpoints = []
    async with server:
        for rank in range(count):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=MESSAGE_MAX)
            endpoints.append(Endpoint(f"m-{rank}", f"10.0.{rank // 250}.{rank % 250 + 1}", LineChannel(reader, writer)))
        began = time.perf_counter()
        verdict = judge(await Conductor(endpoints).run())
        took = time.perf_counter() - began
        for endpoint in endpoints:
            await endpoint.channel.close()
        await asyncio.gather(*serving)
    if verdict.blamed != (f"m-{SICK}",):
        raise RuntimeError(f"the verdict is another: {verdict.sentence}")
    return took


class _Machine:
    """One machine's answers."""

    def __init__(self) -> None:
        self._rank = 0
        self._next = 0

    @classmethod
    async def serve(cls, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        machine = cls()
        while line := await reader.readline():
            writer.write(machine.answer(messages.QUESTION.validate_json(line)).model_dump_json().encode() + b"\n")
            await writer.drain()
        writer.close()

    def answer(self, question: Question) -> Answer:
        match question:
            case Open(rank=rank):
                self._rank = rank
                return Opened(port=1, packet_port=1, device="eth0", driver="veth", mtu=1500)
            case FindPeers(peers=peers):
                return PeersFound(outcomes={peer.rank: "reached" for peer in peers})
            case SendPackets(peers=peers):
                ranks = tuple(peer.rank for peer in peers)
                return PacketsSent(mtu=1500, small=ranks, large=ranks)
            case messages.JoinRing(next=following):
                self._next = following.rank
                return Done()
            case AllReduce():
                return self._reduced(question)
            case Transfer():
                return self._transferred(question)
            case RoundTrips(to=to, count=count):
                return RoundTripsDone(times_s=(50e-6,) * count if to is not None else ())
            case _:
                return Done()

    def _reduced(self, question: AllReduce) -> Reduced:
        """The ring goes at the pace of its slowest hop, which alone is always busy."""
        seconds = 8 * question.size_bytes * stats.bus_factor("all_reduce", 64) / SICK_BPS
        whole = seconds * question.iterations
        rate = _rate(self._next)
        sent = Sent(
            seconds=whole, acked_bytes=int(SICK_BPS * whole / 8), busy_s=whole * SICK_BPS / rate, window_s=0.0,
            retransmits=0, rtt_s=50e-6,
        )  # fmt: skip
        return Reduced(times_s=(seconds,) * question.iterations, first_s=seconds, wrong={}, sent=sent, processor=0.1)

    def _transferred(self, question: Transfer) -> Transferred:
        sent = None
        if question.to is not None:
            acked = int(_rate(question.to.rank) * question.seconds / 8)
            sent = Sent(
                seconds=question.seconds, acked_bytes=acked, busy_s=question.seconds, window_s=0.0, retransmits=0,
                rtt_s=50e-6,
            )  # fmt: skip
        received = int(_rate(self._rank) * question.seconds / 8) if question.from_rank is not None else 0
        return Transferred(sent=sent, received_bytes=received, received_s=question.seconds, processor=0.1)


def _rate(receiver: int) -> float:
    return SICK_BPS if receiver == SICK else LINE_BPS
