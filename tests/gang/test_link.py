"""What the coordinator takes from an agent's link, and what it refuses with a sentence."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import WSMsgType

from astra_agent import wire
from astra_gang import link
from astra_gang.planner import SETTLE_S
from tests.fakes.cluster import AGENT, OPERATOR, FakeCluster
from tests.fakes.eventually import until
from tests.fakes.runs import document, facts


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[FakeCluster]:
    async with FakeCluster(tmp_path, machines=2) as made:
        for agent in made.agents.values():
            await agent.disconnect()
        yield made


@asynccontextmanager
async def dial(cluster: FakeCluster, token: str = AGENT) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
    headers = {"Authorization": f"Bearer {token}"}
    async with aiohttp.ClientSession(headers=headers) as session:
        async with session.ws_connect(f"{cluster.url}/v1/agents/link") as socket:
            yield socket


def hello(name: str = "m1", **changes: Any) -> dict[str, Any]:
    document = wire.Hello(version="0", boot="b", facts=facts(name), slots=()).model_dump(mode="json")
    return {**document, **changes}


async def closing(socket: aiohttp.ClientWebSocketResponse) -> str:
    """The reason with which the other side closes; what it says before does not count."""
    async with asyncio.timeout(10):
        while True:
            message = await socket.receive()
            if message.type in (WSMsgType.CLOSE, WSMsgType.CLOSED, WSMsgType.CLOSING):
                return str(message.extra)


async def said(socket: aiohttp.ClientWebSocketResponse) -> dict[str, Any]:
    async with asyncio.timeout(10):
        return dict(json.loads(await socket.receive_str()))


@pytest.mark.parametrize("token", ["", "wrong", OPERATOR])
async def test_a_wrong_token_gets_no_link(cluster: FakeCluster, token: str) -> None:
    with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
        async with dial(cluster, token):
            pass
    assert refused.value.status == 401


async def test_an_agents_token_is_no_operators(cluster: FakeCluster) -> None:
    headers = {"Authorization": f"Bearer {AGENT}"}
    status, answer = await cluster.request("GET", "/v1/machines", headers=headers)
    assert (status, answer["error"]["code"]) == (401, "Unauthorized")


async def test_the_hello_is_answered_with_term_and_limit(cluster: FakeCluster) -> None:
    async with dial(cluster) as socket:
        await socket.send_json(hello())
        welcome = await said(socket)
    assert welcome == {"kind": "welcome", "term": 1, "protocol": wire.PROTOCOL, "disconnect_limit_s": 60.0}


async def test_another_protocol_is_refused_with_both_numbers_even_if_its_hello_has_unknown_fields(
    cluster: FakeCluster,
) -> None:
    async with dial(cluster) as socket:
        await socket.send_json(hello(protocol=99, hologram=True))
        assert (await closing(socket)).startswith(f"agent speaks protocol 99, coordinator {wire.PROTOCOL}")


@pytest.mark.parametrize(
    ("first", "reason"),
    [
        ({"kind": "lease", "n": 1}, "the first message must be a hello"),
        (hello("m9"), "machine m9 is not in [agents]"),
        (hello(hologram=True), "hologram: Extra inputs are not permitted"),
        ({"kind": "dance"}, "Input tag 'dance'"),
        ([1, 2], "Input should be an object"),
    ],
)
async def test_what_is_no_hello_is_refused_with_the_reason(cluster: FakeCluster, first: Any, reason: str) -> None:
    async with dial(cluster) as socket:
        await socket.send_json(first)
        assert reason in await closing(socket)
    assert cluster.parts.links.connected() == ()


@pytest.mark.parametrize("garbage", ["", "{", "\x00\x01", "null", '"hello"', "[" * 10_000])
async def test_garbage_ends_the_link_and_nothing_else(cluster: FakeCluster, garbage: str) -> None:
    async with dial(cluster) as first:
        await first.send_str(garbage)
        await closing(first)
    async with dial(cluster) as socket:
        await socket.send_json(hello())
        await said(socket)
        await socket.send_str(garbage)
        await closing(socket)
    await until(lambda: cluster.parts.links.connected() == ())
    assert not cluster.is_dead()


async def test_bytes_where_text_is_spoken_end_the_link(cluster: FakeCluster) -> None:
    async with dial(cluster) as socket:
        await socket.send_bytes(b"hello")
        assert await closing(socket) == "a BINARY message where text is spoken"


async def test_a_message_that_is_too_large_ends_the_link(cluster: FakeCluster) -> None:
    async with dial(cluster) as socket:
        await socket.send_json(hello())
        await said(socket)
        with suppress(ConnectionError):  # it may be cut while it is being sent
            await socket.send_str("x" * (link.MESSAGE_MAX + 1))
    await until(lambda: cluster.parts.links.connected() == ())


async def test_every_lease_is_answered_with_its_number(cluster: FakeCluster) -> None:
    async with dial(cluster) as socket:
        await socket.send_json(hello())
        await said(socket)
        for n in (1, 2, 7):
            await socket.send_json({"kind": "lease", "n": n})
            assert await said(socket) == {"kind": "lease_ack", "n": n}


async def test_the_newest_link_of_a_machine_takes_the_place_of_the_older(cluster: FakeCluster) -> None:
    async with dial(cluster) as older, dial(cluster) as newer:
        await older.send_json(hello())
        await said(older)
        await newer.send_json(hello())
        assert await closing(older) == "another link of this machine took its place"
        assert (await said(newer))["kind"] == "welcome"
        assert cluster.parts.links.connected() == ("m1",)
    await until(lambda: cluster.parts.links.connected() == ())


async def test_of_many_links_of_one_machine_exactly_one_stays(cluster: FakeCluster) -> None:
    async with AsyncExitStack() as stack:
        sockets = [await stack.enter_async_context(dial(cluster)) for _ in range(5)]
        await asyncio.gather(*(socket.send_json(hello()) for socket in sockets))
        closed = [asyncio.ensure_future(closing(socket)) for socket in sockets]
        await until(lambda: sum(task.done() for task in closed) == 4)
        assert cluster.parts.links.connected() == ("m1",)
        for task in closed:
            task.cancel()
        await asyncio.gather(*closed, return_exceptions=True)
    await until(lambda: cluster.parts.links.connected() == ())


async def test_a_second_hello_and_a_change_of_name_end_the_link(cluster: FakeCluster) -> None:
    for message, reason in (
        (hello(), "a second hello on one link"),
        ({"kind": "facts", "facts": hello("m2")["facts"]}, "machine m1 can't become m2 on the same link"),
    ):
        async with dial(cluster) as socket:
            await socket.send_json(hello())
            await said(socket)
            await socket.send_json(message)
            assert await closing(socket) == reason


async def test_facts_that_change_let_a_waiting_run_start(cluster: FakeCluster) -> None:
    small = facts("m1", cpu_cores=0.5)
    cluster.agents["m1"].facts = small
    cluster.agents["m1"].connect(cluster.url)
    await cluster.connected("m1")
    status, _ = await cluster.request("POST", "jobs", json=document(machines=1))
    assert status == 201
    cluster.clock.advance(SETTLE_S)
    await until(lambda: "fits" in cluster.run().state.reason or "placed" in cluster.run().state.reason)
    await cluster.agents["m1"].say(wire.FactsChanged(facts=facts("m1")))
    await cluster.until_phase("running")


async def test_a_report_about_a_run_that_nobody_knows_is_acknowledged(cluster: FakeCluster) -> None:
    status = wire.SlotStatus(
        slot="old-slot",
        rev=1,
        run=wire.RunRef(workspace="default", name="old", uid="gone"),
        worker="old-0",
        phase="ready",
    )
    async with dial(cluster) as socket:
        await socket.send_json(hello())
        await said(socket)
        await socket.send_str(wire.Report(seq=41, status=status).model_dump_json())
        assert await said(socket) == {"kind": "report_ack", "seq": 41}


async def test_many_reports_while_the_loop_is_busy_are_all_acknowledged_and_the_newest_counts(
    cluster: FakeCluster,
) -> None:
    agent = cluster.agents["m1"]
    agent.connect(cluster.url)
    await cluster.connected("m1")
    cluster.clock.advance(SETTLE_S)
    await cluster.request("POST", "jobs", json=document(machines=1))
    await cluster.until_phase("running")
    await until(lambda: not agent.unacknowledged)
    cluster.store.failing = "the disk is full"
    slot = next(iter(agent.held))
    for percent in range(200):
        agent.held[slot].detail = f"{percent} % done"
        await agent.report(slot)
    assert agent.unacknowledged
    cluster.store.failing = None
    await until(lambda: not agent.unacknowledged)
    worker = cluster.run().state.workers[0]
    assert worker.slot is not None
    assert worker.slot.detail == "199 % done"
