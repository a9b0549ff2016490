"""What a conductor may expect of a machine's part in a probe, of the real process and of the fake of our tests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Protocol

import pytest

from astra_netprobe import channel
from astra_netprobe.messages import (
    AllReduce,
    Answer,
    CountErrors,
    Done,
    ErrorsCounted,
    Failed,
    FindPeers,
    JoinDoubling,
    JoinRing,
    Leave,
    Open,
    Opened,
    PacketsSent,
    Peer,
    PeersFound,
    Question,
    Reduced,
    RoundTrips,
    RoundTripsDone,
    SendPackets,
    Transfer,
    Transferred,
)
from tests.fakes.probe_member import FakeMember

ADDRESSES = ("127.0.0.1", "127.0.0.2")
WAIT_S = 30.0


class Member(Protocol):
    async def ask(self, question: Question, limit_s: float) -> Answer: ...

    async def close(self) -> None: ...


class FakeChannel:
    def __init__(self) -> None:
        self._member = FakeMember({})

    async def ask(self, question: Question, limit_s: float) -> Answer:
        return self._member.answer(question)

    async def close(self) -> None:
        pass


@pytest.fixture(params=["fake", "real"])
async def pair(request: pytest.FixtureRequest) -> AsyncIterator[tuple[Member, Member]]:
    """Two members that have no probe open yet."""
    made: list[Member] = []
    for _ in ADDRESSES:
        made.append(FakeChannel() if request.param == "fake" else await channel.start())
    yield made[0], made[1]
    await asyncio.gather(*(member.close() for member in made))


async def open_both(pair: tuple[Member, Member]) -> tuple[Peer, Peer]:
    peers = []
    for rank, (member, address) in enumerate(zip(pair, ADDRESSES, strict=True)):
        opened = await member.ask(Open(rank=rank, secret="0" * 32, address=address), WAIT_S)
        assert isinstance(opened, Opened) and opened.port and opened.packet_port
        peers.append(Peer(rank=rank, address=address, port=opened.port, packet_port=opened.packet_port))
    return peers[0], peers[1]


async def ask_both(pair: tuple[Member, Member], one: Question, other: Question) -> tuple[Answer, Answer]:
    first, second = await asyncio.gather(pair[0].ask(one, WAIT_S), pair[1].ask(other, WAIT_S))
    return first, second


async def test_without_a_probe_that_is_open_nothing_is_done(pair: tuple[Member, Member]) -> None:
    refused = await pair[0].ask(Leave(tag=1), WAIT_S)
    assert isinstance(refused, Failed) and refused.rank is None


async def test_peers_find_each_other(pair: tuple[Member, Member]) -> None:
    one, other = await open_both(pair)
    found = await ask_both(pair, FindPeers(peers=(other,), limit_s=5), FindPeers(peers=(one,), limit_s=5))
    assert found == (PeersFound(outcomes={1: "reached"}), PeersFound(outcomes={0: "reached"}))
    sent = await ask_both(pair, SendPackets(peers=(other,), limit_s=2), SendPackets(peers=(one,), limit_s=2))
    for answer, rank in zip(sent, (1, 0), strict=True):
        assert isinstance(answer, PacketsSent)
        assert (answer.small, answer.large) == ((rank,), (rank,))


@pytest.mark.parametrize("algorithm", ["ring", "doubling"])
async def test_an_all_reduce_is_timed_and_checked(pair: tuple[Member, Member], algorithm: str) -> None:
    one, other = await open_both(pair)
    join: tuple[Question, Question]
    if algorithm == "ring":
        join = (
            JoinRing(tag=7, position=0, count=2, next=other, previous=1, limit_s=5),
            JoinRing(tag=7, position=1, count=2, next=one, previous=0, limit_s=5),
        )
    else:
        join = (
            JoinDoubling(tag=7, position=0, count=2, peers=((1, other),), limit_s=5),
            JoinDoubling(tag=7, position=1, count=2, peers=((0, one.model_copy(update={"port": 0})),), limit_s=5),
        )
    assert await ask_both(pair, *join) == (Done(), Done())
    asked = AllReduce.model_validate(
        {"tag": 7, "algorithm": algorithm, "size_bytes": 65536, "iterations": 3, "stall_s": 3, "limit_s": 10}
    )
    for answer in await ask_both(pair, asked, asked):
        assert isinstance(answer, Reduced) and answer.broken == ""
        assert len(answer.times_s) == 3 and answer.wrong == {} and min(answer.times_s) > 0
        if algorithm == "ring":
            assert answer.sent is not None
            assert 2 * 65536 < answer.sent.acked_bytes <= 4 * 65536, "acknowledgements may come a little later"
    assert await ask_both(pair, Leave(tag=7), Leave(tag=7)) == (Done(), Done())
    gone = await pair[0].ask(asked, WAIT_S)
    assert isinstance(gone, Failed) and "join it first" in gone.sentence


async def test_a_transfer_is_measured_at_both_ends(pair: tuple[Member, Member]) -> None:
    _, other = await open_both(pair)
    bounds = {"tag": 3, "seconds": 0.2, "stall_s": 3, "limit_s": 5}
    sent, received = await ask_both(
        pair,
        Transfer.model_validate({**bounds, "to": other}),
        Transfer.model_validate({**bounds, "from_rank": 0}),
    )
    assert isinstance(sent, Transferred) and sent.sent is not None and sent.sent.acked_bytes > 0
    assert isinstance(received, Transferred) and received.sent is None and received.received_bytes > 0
    assert (sent.broken, received.broken, received.wrong) == ("", "", 0)


async def test_round_trips_are_counted_by_who_asks(pair: tuple[Member, Member]) -> None:
    _, other = await open_both(pair)
    bounds = {"tag": 4, "count": 5, "seconds": 5, "limit_s": 10}
    asked, answered = await ask_both(
        pair,
        RoundTrips.model_validate({**bounds, "to": other}),
        RoundTrips.model_validate({**bounds, "from_rank": 0}),
    )
    assert isinstance(asked, RoundTripsDone) and len(asked.times_s) == 5 and min(asked.times_s) > 0
    assert answered == RoundTripsDone(times_s=())


async def test_errors_of_the_port_are_counted_from_when_the_probe_was_opened(pair: tuple[Member, Member]) -> None:
    await open_both(pair)
    assert await ask_both(pair, CountErrors(), CountErrors()) == (ErrorsCounted(errors=0), ErrorsCounted(errors=0))
