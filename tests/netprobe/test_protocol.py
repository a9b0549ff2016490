"""Machines of different versions: found out at the first message, in one sentence, whoever is the newer one."""

from __future__ import annotations

import asyncio
import hmac
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astra_netprobe import channel, greeting, messages, responder
from astra_netprobe.channel import Endpoint, Silent
from astra_netprobe.conductor import Conductor
from astra_netprobe.greeting import Greeting, Purpose
from astra_netprobe.member import Member
from astra_netprobe.messages import PROTOCOL, Failed, Open, Opened, other_protocol
from astra_netprobe.responder import Responder
from astra_netprobe.verdict import judge

TOKEN = "a-token"
ANSWER_S = 20.0
OPEN = Open(rank=0, secret="0" * 32, address="127.0.0.1")
VERSION_AT, PROOF_BYTES = 4, 16
"""Of a greeting: where its version is, and how long the proof at its end."""
OTHERS = [PROTOCOL - 1, PROTOCOL + 1, 99]


@pytest.mark.parametrize("theirs", OTHERS)
def test_a_conductor_of_another_protocol_is_told_before_the_rest_is_read(theirs: int) -> None:
    newer = OPEN.model_dump() | {"protocol": theirs, "something": "that is not known here"}
    assert Member().hear(json.dumps(newer).encode()) == Failed(
        sentence=f"the conductor speaks protocol {theirs} of the probe, this machine {PROTOCOL}: "
        "install the same version on both"
    )


@pytest.mark.parametrize("theirs", OTHERS)
def test_a_machine_of_another_protocol_is_named_by_who_leads(theirs: int) -> None:
    newer = {"kind": "opened", "protocol": theirs, "something": "that is not known here"}
    with pytest.raises(Silent) as told:
        channel.parse(json.dumps(newer))
    assert str(told.value) == (
        f"speaks protocol {theirs} of the probe, this side {PROTOCOL}: install the same version on both"
    )


def test_unknown_fields_of_our_own_protocol_are_refused_by_name() -> None:
    question = OPEN.model_dump() | {"colour": "blue"}
    answer = Member().hear(json.dumps(question).encode())
    assert isinstance(answer, Failed) and answer.sentence.startswith("this is no question: open.colour: Extra inputs")
    with pytest.raises(Silent, match=f"answers what is no answer in protocol {PROTOCOL} of the probe"):
        channel.parse(json.dumps(Opened(port=1, packet_port=2).model_dump() | {"colour": "blue"}))


def test_what_refuses_is_read_by_every_version() -> None:
    """As the first protocol wrote it, and read it."""
    assert Failed(sentence="no").model_dump() == {"kind": "failed", "sentence": "no", "rank": None}


@given(st.one_of(st.binary(max_size=200), st.text(max_size=200)))
def test_what_is_no_document_has_no_protocol(document: bytes | str) -> None:
    assert other_protocol(document) is None


@pytest.mark.parametrize("named", ['"2"', "null", "true", "2.5", "[1]", str(PROTOCOL), "1" * 5000])
def test_only_a_number_is_a_protocol(named: str) -> None:
    assert other_protocol(f'{{"protocol": {named}}}') is None


def test_machines_of_other_protocols_do_not_greet_each_other() -> None:
    secret = b"s" * 16
    greeted = greeting.encode(Greeting(Purpose.RING, 0, 1, 0, 7, b"n" * 8), secret)
    body = bytearray(greeted[:-PROOF_BYTES])
    assert body[VERSION_AT] == PROTOCOL
    body[VERSION_AT] += 1
    newer = bytes(body) + hmac.digest(secret, bytes(body), "sha256")[:PROOF_BYTES]
    assert greeting.decode(greeted, secret) is not None
    assert greeting.decode(newer, secret) is None


# Over a socket --------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def saying(hello: bytes, answer: bytes = b"") -> AsyncIterator[int]:
    """A port where somebody says *hello*, and *answer* to whatever comes after the caller's proof."""

    callers: list[asyncio.Task[None]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(hello + b"\n")
        await reader.readline()
        if await reader.readline():
            writer.write(answer + b"\n")
        await reader.read()
        writer.close()
        await writer.wait_closed()

    def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        callers.append(asyncio.create_task(serve(reader, writer)))

    server = await asyncio.start_server(begin, "127.0.0.1", 0)
    async with server:
        yield int(server.sockets[0].getsockname()[1])
        async with asyncio.timeout(ANSWER_S):
            await asyncio.gather(*callers)


@asynccontextmanager
async def responding() -> AsyncIterator[int]:
    made, ready = Responder(TOKEN), asyncio.Event()
    running = asyncio.create_task(made.run("127.0.0.1", 0, ready))
    await ready.wait()
    try:
        yield made.port
    finally:
        running.cancel()
        await asyncio.wait({running})


async def test_a_newer_responder_is_told_from_something_else() -> None:
    async with saying(b"astra-netprobe 7 00 and more") as port:
        with pytest.raises(Silent) as told:
            await responder.call("127.0.0.1", port, TOKEN)
    assert str(told.value) == (
        f"has a responder at 127.0.0.1:{port} that greets by version 7, this side by 1: "
        "install the same version on both"
    )
    for hello in (b"SSH-2.0-OpenSSH_9.2", b"astra-netprobe x 00", b"astra-netprobe 1", b"\xff\xfe"):
        async with saying(hello) as port:
            with pytest.raises(Silent, match="has something else than a responder"):
                await responder.call("127.0.0.1", port, TOKEN)


async def test_a_probe_with_a_responder_of_another_protocol_says_so_and_measures_nothing() -> None:
    newer = json.dumps({"kind": "opened", "protocol": PROTOCOL + 1, "ports": []}).encode()
    async with saying(b"astra-netprobe 1 00", newer) as port, responding() as ours:
        ways = [await responder.call("127.0.0.1", each, TOKEN) for each in (ours, port)]
        ends = [Endpoint(f"m-{i}", "127.0.0.1", way) for i, way in enumerate(ways)]
        verdict = judge(await Conductor(ends).run())
        for way in ways:
            await way.close()
    assert (verdict.state, verdict.exit) == ("unmeasured", 3)
    assert verdict.sentence == (
        f"m-1 speaks protocol {PROTOCOL + 1} of the probe, this side {PROTOCOL}: install the same version on both"
    )


async def test_a_probe_led_by_another_protocol_hears_so_from_a_real_responder() -> None:
    async with responding() as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        challenge = (await reader.readline()).split()[-1].decode()
        question = OPEN.model_dump() | {"protocol": PROTOCOL + 1, "something": "new"}
        writer.write(responder.prove(TOKEN, challenge) + b"\n" + json.dumps(question).encode() + b"\n")
        async with asyncio.timeout(ANSWER_S):
            answer = messages.ANSWER.validate_json(await reader.readline())
        writer.close()
    assert isinstance(answer, Failed)
    assert answer.sentence.startswith(f"the conductor speaks protocol {PROTOCOL + 1} of the probe, this machine")
