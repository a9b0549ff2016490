"""Logs and programs beside a worker's own, over connections that the agent dials."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import WSMsgType, web

from astra_agent.errors import Unavailable
from astra_agent.inventory.document import load
from astra_agent.look_ahead import SMALL_BYTES
from astra_agent.runtime import ImageConfig
from astra_agent.wire import (
    DriveMount,
    ExecExit,
    ExecRequest,
    InventoryRequest,
    JoinedNetwork,
    LogsRequest,
    LookAhead,
    LookAheadRequest,
    Lookup,
    LookupRequest,
    ProbeRequest,
    Resize,
    StdinEnd,
)
from astra_netprobe import channel
from astra_netprobe.channel import parse
from astra_netprobe.messages import Failed, Open, Opened
from tests.agent.daemon import Daemon, a_daemon
from tests.agent.machine import BOUND_S, SLOT, arm, finish, request, start, until
from tests.fakes.coordinator import FakeCoordinator, a_coordinator


@pytest.fixture
async def coordinator() -> AsyncIterator[FakeCoordinator]:
    async with a_coordinator() as made:
        yield made


@pytest.fixture
async def daemon(tmp_path: Path, coordinator: FakeCoordinator) -> AsyncIterator[Daemon]:
    async with a_daemon(tmp_path, coordinator=coordinator.url, log_max_bytes=64 * 1024) as made:
        await until(lambda: coordinator.connected)
        await made.ready()
        await coordinator.tell(arm())
        await coordinator.tell(start())
        await until(lambda: made.containers.starts[f"{SLOT}-a0"])
        await until(lambda: coordinator.slots[SLOT].attempts[0].state == "running")
        yield made


CONTAINER = f"{SLOT}-a0"
OPEN = Open(rank=0, secret="0" * 32, address="127.0.0.1")


async def everything(connection: web.WebSocketResponse) -> tuple[bytes, list[str]]:
    """All binary and text messages until the agent closes."""
    data, texts = b"", []
    async with asyncio.timeout(BOUND_S):
        async for message in connection:
            if message.type is WSMsgType.BINARY:
                data += message.data
            elif message.type is WSMsgType.TEXT:
                texts.append(message.data)
    return data, texts


async def test_a_log_is_sent_whole_and_closed(daemon: Daemon, coordinator: FakeCoordinator) -> None:
    daemon.containers.write(CONTAINER, b"step 1\nstep 2\n")
    connection = await coordinator.open_stream("s1", LogsRequest(slot=SLOT))
    assert (await everything(connection))[0] == b"step 1\nstep 2\n"


async def test_the_tail_of_a_log_is_its_last_bytes(daemon: Daemon, coordinator: FakeCoordinator) -> None:
    daemon.containers.write(CONTAINER, b"step 1\nstep 2\n")
    connection = await coordinator.open_stream("s1", LogsRequest(slot=SLOT, attempt=0, tail_bytes=7))
    assert (await everything(connection))[0] == b"step 2\n"


async def test_a_followed_log_goes_on_until_the_attempt_has_ended(daemon: Daemon, coordinator: FakeCoordinator) -> None:
    connection = await coordinator.open_stream("s1", LogsRequest(slot=SLOT, follow=True))
    reading = asyncio.create_task(everything(connection))
    daemon.containers.write(CONTAINER, b"step 1\n")
    await asyncio.sleep(0.05)
    daemon.containers.write(CONTAINER, b"step 2\n")
    daemon.containers.exit(CONTAINER, 0)
    assert (await reading)[0] == b"step 1\nstep 2\n"


async def test_a_followed_log_loses_nothing_when_it_is_rotated(daemon: Daemon, coordinator: FakeCoordinator) -> None:
    connection = await coordinator.open_stream("s1", LogsRequest(slot=SLOT, follow=True))
    reading = asyncio.create_task(everything(connection))
    lines = [f"line {number:06} {'x' * 80}\n".encode() for number in range(3000)]
    for begin in range(0, len(lines), 200):
        daemon.containers.write(CONTAINER, b"".join(lines[begin : begin + 200]))
        await asyncio.sleep(0.02)
    daemon.containers.exit(CONTAINER, 0)
    assert (await reading)[0] == b"".join(lines)


async def test_the_log_of_an_ended_slot_can_be_read(daemon: Daemon, coordinator: FakeCoordinator) -> None:
    daemon.containers.write(CONTAINER, b"last words\n")
    await coordinator.tell(finish())
    await until(lambda: not daemon.containers.names())
    connection = await coordinator.open_stream("s1", LogsRequest(slot=SLOT))
    assert (await everything(connection))[0] == b"last words\n"


async def test_a_log_that_is_not_there_is_said_in_the_close(daemon: Daemon, coordinator: FakeCoordinator) -> None:
    connection = await coordinator.open_stream("s1", LogsRequest(slot=SLOT, attempt=7))
    message = await connection.receive()
    assert (message.type, message.data) == (WSMsgType.CLOSE, 4404)
    assert "no attempt 7" in str(message.extra)


async def test_an_agent_that_stops_does_not_pass_for_the_end_of_a_log(
    daemon: Daemon, coordinator: FakeCoordinator
) -> None:
    connection = await coordinator.open_stream("s1", LogsRequest(slot=SLOT, follow=True))
    closing = asyncio.create_task(connection.receive())
    await daemon.crash()
    async with asyncio.timeout(BOUND_S):
        message = await closing
    assert (message.type, message.data) == (WSMsgType.CLOSE, 1001)


async def test_a_reader_that_leaves_frees_its_stream(daemon: Daemon, coordinator: FakeCoordinator) -> None:
    connection = await coordinator.open_stream("s1", LogsRequest(slot=SLOT, follow=True))
    before = len(asyncio.all_tasks())
    await connection.close()
    coordinator.end_stream("s1")
    await until(lambda: len(asyncio.all_tasks()) < before)


async def test_a_programs_output_and_code_arrive(daemon: Daemon, coordinator: FakeCoordinator) -> None:
    wanted = ExecRequest(slot=SLOT, command=("sh", "-c", "echo hello; exit 3"))
    data, texts = await everything(await coordinator.open_stream("e1", wanted))
    assert data == b"\x01hello\n"
    assert ExecExit.model_validate_json(texts[-1]) == ExecExit(code=3)


async def test_a_programs_input_is_fed_until_its_end(daemon: Daemon, coordinator: FakeCoordinator) -> None:
    connection = await coordinator.open_stream("e1", ExecRequest(slot=SLOT, command=("cat",), stdin=True))
    await connection.send_bytes(b"over ")
    await connection.send_str(Resize(width=100, height=30).model_dump_json())
    await connection.send_bytes(b"here")
    await connection.send_str(StdinEnd().model_dump_json())
    data, texts = await everything(connection)
    assert data.replace(b"\x01", b"") == b"over here"
    assert ExecExit.model_validate_json(texts[-1]).code == 0
    assert daemon.containers.execs[0].size == (100, 30)


async def test_a_user_that_leaves_ends_the_program(daemon: Daemon, coordinator: FakeCoordinator) -> None:
    connection = await coordinator.open_stream("e1", ExecRequest(slot=SLOT, command=("cat",), stdin=True))
    await until(lambda: daemon.containers.execs)
    await connection.close()
    coordinator.end_stream("e1")
    await until(lambda: daemon.containers.execs[0].closed)


@pytest.mark.parametrize(
    ("slot", "command", "says"),
    [
        (SLOT, "/no/such", 'command "/no/such" is not in the container'),
        ("nobody", "sh", "there is no slot nobody"),
    ],
)
async def test_what_can_not_be_run_is_said(
    daemon: Daemon, coordinator: FakeCoordinator, slot: str, command: str, says: str
) -> None:
    connection = await coordinator.open_stream("e1", ExecRequest(slot=slot, command=(command,)))
    _, texts = await everything(connection)
    ended = ExecExit.model_validate_json(texts[-1])
    assert ended.code == 126
    assert says in ended.error


async def test_nothing_is_run_beside_a_worker_that_does_not_run(daemon: Daemon, coordinator: FakeCoordinator) -> None:
    daemon.containers.exit(CONTAINER, 0)
    await until(lambda: coordinator.slots[SLOT].attempts[0].state == "exited")
    connection = await coordinator.open_stream("e1", ExecRequest(slot=SLOT, command=("sh",)))
    _, texts = await everything(connection)
    assert "nothing runs in slot" in ExecExit.model_validate_json(texts[-1]).error


async def test_a_lookup_without_a_name_server_says_why(daemon: Daemon, coordinator: FakeCoordinator) -> None:
    connection = await coordinator.open_stream("s1", LookupRequest(slot=SLOT, name="llama-0"))
    _, (text,) = await everything(connection)
    assert Lookup.model_validate_json(text).error.startswith(f"slot {SLOT} asks no name server of ours")


async def test_a_machine_that_is_looked_at_says_all_that_it_has(daemon: Daemon, coordinator: FakeCoordinator) -> None:
    connection = await coordinator.open_stream("s1", InventoryRequest())
    _, (text,) = await everything(connection)
    assert load(json.loads(text)).machine == "gpu-1"


@pytest.mark.parametrize(
    ("changes", "refusal", "field"),
    [
        ({}, "", None),
        ({"image": "pytorch:26"}, 'there is no image "pytorch:26"', "image"),
        ({"command": ("/no/such",)}, 'command "/no/such" is not in image "host"', "command"),
        ({"drives": (DriveMount(name="data", mount_path="/data"),)}, 'drive "data" is not on this machine', "drives"),
    ],
)
async def test_a_look_ahead_says_what_is_not_there(
    daemon: Daemon, coordinator: FakeCoordinator, changes: dict[str, Any], refusal: str, field: str | None
) -> None:
    found = await look_ahead(coordinator, **changes)
    assert found.refusal.startswith(refusal)
    assert (found.refusal == "", found.field) == (refusal == "", field)
    assert (await daemon.ask("GET", "/v1/slots/example"))[0] == 404


async def test_a_look_ahead_does_not_bring_a_large_image(daemon: Daemon, coordinator: FakeCoordinator) -> None:
    daemon.images.images["large"] = ImageConfig()
    daemon.images.missing_bytes = SMALL_BYTES + 1
    assert await look_ahead(coordinator, image="large", command=("/no/such",)) == LookAhead()
    assert "large" not in [image for image, _ in daemon.images.asked]


async def test_a_registry_that_does_not_answer_is_refused_and_a_runtime_that_does_not_is_not(
    daemon: Daemon, coordinator: FakeCoordinator
) -> None:
    daemon.images.look_error = Unavailable("registry example.org does not answer: asked once")
    found = await look_ahead(coordinator)
    assert (found.refusal.split(":")[0], found.field) == ("registry example.org does not answer", "image")
    daemon.containers.go_down()
    assert await look_ahead(coordinator) == LookAhead()


async def look_ahead(coordinator: FakeCoordinator, **changes: Any) -> LookAhead:
    connection = await coordinator.open_stream("s1", LookAheadRequest(request=request("example", **changes)))
    _, (text,) = await everything(connection)
    return LookAhead.model_validate_json(text)


# Probes --------------------------------------------------------------------------------------------------------------


async def test_the_network_of_a_slot_that_is_gone_is_a_sentence(daemon: Daemon, coordinator: FakeCoordinator) -> None:
    connection = await coordinator.open_stream("s1", ProbeRequest(slot="gone"))
    await connection.send_str(OPEN.model_dump_json())
    (answer,) = (await everything(connection))[1]
    assert parse(answer) == Failed(sentence=f"there is no slot gone on {daemon.config.name}")


async def test_a_probe_of_a_slot_is_in_the_network_that_its_containers_join(
    daemon: Daemon, coordinator: FakeCoordinator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered: list[Path | None] = []
    spawn = channel.spawn

    async def spawned(netns: Path | None, max_bps: float) -> asyncio.subprocess.Process:
        entered.append(netns)
        return await spawn(None, max_bps)

    monkeypatch.setattr(channel, "spawn", spawned)
    joined = tmp_path / "joined.net"
    joined.touch()
    network = JoinedNetwork(netns=str(joined), address="10.99.0.7")
    await daemon.put(request(slot="joins", worker="llama-1", network=network))
    await until(lambda: coordinator.slots["joins"].phase == "ready")
    for number, slot in enumerate(("joins", SLOT, None)):
        connection = await coordinator.open_stream(f"s{number}", ProbeRequest(slot=slot))
        await connection.send_str(OPEN.model_dump_json())
        assert isinstance(parse((await connection.receive()).data), Opened)
        await connection.close()
        coordinator.end_stream(f"s{number}")
    assert entered == [joined, None, None]
    joined.unlink()
    connection = await coordinator.open_stream("s3", ProbeRequest(slot="joins"))
    await connection.send_str(OPEN.model_dump_json())
    (answer,) = (await everything(connection))[1]
    name = daemon.config.name
    assert parse(answer) == Failed(sentence=f"slot joins has no network on {name}: it is not ready yet, or is ending")
