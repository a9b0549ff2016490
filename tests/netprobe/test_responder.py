"""The responder on loopback: who knows the token takes part; nothing that is sent to it makes it stop."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from astra_netprobe import responder
from astra_netprobe.channel import Silent
from astra_netprobe.messages import Failed, Leave, Open, Opened, Peer, Transfer, Transferred
from astra_netprobe.responder import Limits, Responder

TOKEN = "a-token"
SECRET = "0" * 32
ANSWER_S = 20.0
Start = Callable[..., Awaitable[Responder]]


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    async with asyncio.TaskGroup() as group:
        tasks = []

        async def begin(limits: Limits | None = None) -> Responder:
            made, ready = Responder(TOKEN, limits), asyncio.Event()
            tasks.append(group.create_task(made.run("127.0.0.1", 0, ready)))
            await ready.wait()
            return made

        yield begin
        for task in tasks:
            task.cancel()


def opening(**changes: object) -> Open:
    return Open.model_validate({"rank": 0, "secret": SECRET, "address": "127.0.0.1", **changes})


async def test_who_knows_the_token_takes_part(start: Start) -> None:
    served = await start()
    channel = await responder.call("127.0.0.1", served.port, TOKEN)
    answer = await channel.ask(opening(), ANSWER_S)
    assert isinstance(answer, Opened) and answer.device == "lo" and answer.port
    await channel.close()


def members() -> list[str]:
    """Processes of members that this process has started and not waited for."""
    mine = []
    for status in Path("/proc").glob("[0-9]*/status"):
        with contextlib.suppress(OSError):
            if f"\nPPid:\t{os.getpid()}\n" in status.read_text():
                words = status.with_name("cmdline").read_bytes().split(b"\0")
                mine += [status.parent.name] if b"astra_netprobe.member" in words or words == [b""] else []
    return mine


@pytest.mark.parametrize("left", [False, True], ids=["while a caller is there", "while a member ends"])
async def test_no_member_outlives_a_responder(left: bool) -> None:
    made, ready = Responder(TOKEN), asyncio.Event()
    before = set(members())
    running = asyncio.create_task(made.run("127.0.0.1", 0, ready))
    await ready.wait()
    channel = await responder.call("127.0.0.1", made.port, TOKEN)
    assert isinstance(await channel.ask(opening(), ANSWER_S), Opened)
    assert set(members()) - before
    if left:
        await channel.close()
        await asyncio.sleep(0)
    running.cancel()
    await asyncio.wait({running})
    assert set(members()) <= before
    await channel.close()


async def test_a_wrong_token_gets_nothing(start: Start) -> None:
    served = await start()
    channel = await responder.call("127.0.0.1", served.port, "another")
    with pytest.raises(Silent, match="closed"):
        await channel.ask(opening(), ANSWER_S)
    await channel.close()


async def test_the_token_never_crosses_the_network() -> None:
    assert TOKEN.encode() not in responder.prove(TOKEN, "00")
    assert responder.prove(TOKEN, "00") != responder.prove(TOKEN, "01")


async def test_more_probes_than_the_bound_are_refused_and_told_so(start: Start) -> None:
    served = await start(Limits(at_once=1))
    first = await responder.call("127.0.0.1", served.port, TOKEN)
    assert isinstance(await first.ask(opening(), ANSWER_S), Opened)
    second = await responder.call("127.0.0.1", served.port, TOKEN)
    answer = await second.ask(opening(), ANSWER_S)
    assert isinstance(answer, Failed) and "probes run on this machine" in answer.sentence
    await second.close()
    await first.close()


@pytest.mark.parametrize("asked_bps", [0.0, 8e9])
async def test_a_machine_sends_no_faster_than_its_own_bound_whatever_it_is_asked_for(
    start: Start, asked_bps: float
) -> None:
    bound_bps, seconds, streams = 80e6, 0.5, 2
    served = await start(Limits(max_bps=bound_bps))
    channels = [await responder.call("127.0.0.1", served.port, TOKEN) for _ in range(2)]
    opened = [
        await channel.ask(opening(rank=rank, max_bps=asked_bps), ANSWER_S) for rank, channel in enumerate(channels)
    ]
    assert isinstance(opened[1], Opened) and opened[1].no_rdma == "its rate is bounded"
    assert opened[1].max_bps == bound_bps, "who leads the probe has to know that it is no fault"
    bounds = {"tag": 1, "streams": streams, "seconds": seconds, "stall_s": ANSWER_S, "limit_s": ANSWER_S}
    peer = Peer(rank=1, address="127.0.0.1", port=opened[1].port)
    _, received = await asyncio.gather(
        channels[0].ask(Transfer.model_validate({**bounds, "to": peer}), 2 * ANSWER_S),
        channels[1].ask(Transfer.model_validate({**bounds, "from_rank": 0}), 2 * ANSWER_S),
    )
    assert isinstance(received, Transferred)
    assert 0 < received.received_bytes < 2 * bound_bps * seconds / 8
    for channel in channels:
        await channel.close()


async def test_questions_that_make_no_sense_get_a_sentence(start: Start) -> None:
    served = await start()
    channel = await responder.call("127.0.0.1", served.port, TOKEN)
    early = await channel.ask(Leave(tag=1), ANSWER_S)
    assert isinstance(early, Failed) and early.sentence == "no probe is open"
    absent = await channel.ask(opening(address="192.0.2.1"), ANSWER_S)
    assert isinstance(absent, Failed) and absent.sentence.startswith("this machine can't do open")
    await channel.close()


async def test_a_minute_of_nonsense_later_it_still_serves(start: Start) -> None:
    served = await start()
    chance = random.Random(7)

    async def nonsense(content: bytes) -> None:
        with contextlib.suppress(OSError):
            reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
            writer.write(content)
            writer.write_eof()
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(ANSWER_S):
                    await reader.read()
            writer.close()

    for _ in range(20):
        await asyncio.gather(*(nonsense(chance.randbytes(chance.choice((0, 1, 40, 300, 70_000)))) for _ in range(10)))
    channel = await responder.call("127.0.0.1", served.port, TOKEN)
    assert isinstance(await channel.ask(opening(), ANSWER_S), Opened)
    await channel.close()
