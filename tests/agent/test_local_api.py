"""The unix socket: the door of the engine and of the driver."""

from __future__ import annotations

import asyncio
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from astra_agent.errors import InvalidRequest
from astra_agent.wire import PROTOCOL
from tests.agent.daemon import Daemon, a_daemon
from tests.agent.machine import BOUND_S, SLOT, request, until


@pytest.fixture
async def daemon(tmp_path: Path) -> AsyncIterator[Daemon]:
    async with a_daemon(tmp_path) as made:
        yield made


async def test_putting_a_slot_is_idempotent_and_another_request_conflicts(daemon: Daemon) -> None:
    assert await daemon.put(request()) == 201
    assert await daemon.put(request()) == 200
    assert await daemon.put(request(command=("other",))) == 409


async def test_slots_are_listed_and_shown(daemon: Daemon) -> None:
    await daemon.ready()
    _, document = await daemon.ask("GET", "/v1/slots")
    assert [item["slot"] for item in document["items"]] == [SLOT]
    assert (await daemon.status()).phase == "ready"


async def test_an_unknown_slot_is_not_found_in_a_sentence(daemon: Daemon) -> None:
    status, document = await daemon.ask("GET", "/v1/slots/nobody")
    assert status == 404
    assert document["error"] == {"message": "there is no slot nobody on gpu-1", "field": None, "code": "NotFound"}


async def test_a_deleted_slot_ends_is_gone_and_stays_gone(daemon: Daemon) -> None:
    await daemon.ready()
    waiting = asyncio.create_task(daemon.ask("GET", f"/v1/slots/{SLOT}/wait?timeout_s=10"))
    status, _ = await daemon.ask("DELETE", f"/v1/slots/{SLOT}?code=3&reason=Gang+failed")
    assert status == 202
    assert await waiting == (200, {"code": 3, "reason": "Gang failed", "oom": False})
    async with asyncio.timeout(BOUND_S):
        while (await daemon.ask("GET", f"/v1/slots/{SLOT}"))[0] != 404:  # noqa: ASYNC110 -- asked by HTTP
            await asyncio.sleep(0.01)
    assert await daemon.put(request()) == 409
    assert (await daemon.ask("DELETE", f"/v1/slots/{SLOT}?code=9"))[0] == 202
    assert await daemon.ask("GET", f"/v1/slots/{SLOT}/wait") == (
        200,
        {"code": 3, "reason": "Gang failed", "oom": False},
    )


async def test_a_slot_that_was_deleted_before_it_came_is_refused(daemon: Daemon) -> None:
    assert (await daemon.ask("DELETE", f"/v1/slots/{SLOT}?code=143&reason=given+back"))[0] == 202
    assert (await daemon.ask("GET", f"/v1/slots/{SLOT}"))[0] == 404
    assert await daemon.put(request()) == 409


async def test_waiting_has_a_bound_and_an_unknown_slot_none(daemon: Daemon) -> None:
    await daemon.ready()
    assert await daemon.ask("GET", f"/v1/slots/{SLOT}/wait?timeout_s=0.01") == (204, None)
    assert (await daemon.ask("GET", "/v1/slots/nobody/wait?timeout_s=0.01"))[0] == 404


@pytest.mark.parametrize(
    ("method", "path", "body", "code", "field"),
    [
        ("PUT", f"/v1/slots/{SLOT}", "{", 400, None),
        ("PUT", f"/v1/slots/{SLOT}", '{"slot": "a", "color": 1}', 400, "run"),
        ("PUT", "/v1/slots/other", request().model_dump_json(), 400, "slot"),
        ("GET", f"/v1/slots/{SLOT}/wait?timeout_s=soon", None, 400, "timeout_s"),
        ("DELETE", "/v1/slots/%2e%2e%2fagent", None, 400, "slot"),
        ("GET", "/v1/slots/LLAMA", None, 400, "slot"),
        ("GET", "/v1/nothing", None, 404, None),
        ("POST", "/v1/slots", None, 405, None),
    ],
)
async def test_what_is_wrong_is_said_in_a_sentence(
    daemon: Daemon, method: str, path: str, body: str | None, code: int, field: str | None
) -> None:
    status, document = await daemon.ask(method, path, body)
    assert status == code
    assert document["error"]["message"]
    assert document["error"]["field"] == field


async def test_health_says_what_the_runtime_is_or_that_it_is_away(daemon: Daemon) -> None:
    _, document = await daemon.ask("GET", "/v1/health")
    assert (document["protocol"], document["runtime"]["version"], document["findings"]) == (PROTOCOL, "fake", [])
    daemon.containers.go_down()
    _, document = await daemon.ask("GET", "/v1/health")
    assert (document["runtime"], document["findings"]) == (None, ["the container runtime does not answer"])


async def test_facts_are_the_machines(daemon: Daemon) -> None:
    _, document = await daemon.ask("GET", "/v1/facts")
    assert (document["name"], document["address"]) == ("gpu-1", "10.83.0.3")
    assert document["cpu_cores"] > 0 and document["memory_bytes"] > 0


async def test_the_socket_is_for_its_group_and_goes_with_the_agent(daemon: Daemon) -> None:
    assert stat.S_IMODE(daemon.config.socket.stat().st_mode) == 0o660
    daemon.stop.set()
    await until(lambda: not daemon.config.socket.exists())


async def test_a_socket_that_a_killed_agent_left_is_replaced(tmp_path: Path) -> None:
    async with a_daemon(tmp_path / "one", socket=tmp_path / "agent.sock") as first:
        (tmp_path / "left.sock").hardlink_to(first.config.socket)
    async with a_daemon(tmp_path / "two", socket=tmp_path / "left.sock") as second:
        assert (await second.ask("GET", "/v1/facts"))[0] == 200


async def test_a_second_agent_on_the_same_state_is_refused(daemon: Daemon, tmp_path: Path) -> None:
    second = Daemon(tmp_path, socket=tmp_path / "second.sock")
    with pytest.raises(InvalidRequest, match="another agent uses state_dir"):
        await second.start()
    assert (await daemon.ask("GET", "/v1/facts"))[0] == 200


async def test_a_file_in_the_sockets_place_is_not_removed(tmp_path: Path) -> None:
    (tmp_path / "agent.sock").write_text("precious")
    with pytest.raises(InvalidRequest, match="is no socket"):
        await Daemon(tmp_path, socket=tmp_path / "agent.sock").start()
    assert (tmp_path / "agent.sock").read_text() == "precious"
