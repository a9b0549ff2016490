"""Slots that start by themselves, and what an engine asks of a slot on the socket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from astra_agent.errors import Conflict, Unavailable
from astra_agent.records import Ending
from astra_agent.wire import ExecExit, ExecRequest, SlotRequest, SlotStatus, StopRequest
from tests.agent.daemon import Daemon, a_daemon
from tests.agent.machine import BOUND_S, SLOT, Machine, a_machine, request, until


@pytest.fixture
async def machine(tmp_path: Path) -> AsyncIterator[Machine]:
    async with a_machine(tmp_path) as made:
        yield made


def alone(script: str = "sleep 300", *, slot: str = SLOT, **changes: Any) -> SlotRequest:
    return request(slot, **{"starts": "when_ready", "command": ("sh", "-c", script), "incarnation": "1", **changes})


async def running(machine: Machine, attempt: int = 0) -> None:
    await until(lambda: machine.containers.starts[f"{SLOT}-a{attempt}"] == 1)


async def ending(machine: Machine, slot: str = SLOT) -> tuple[int, str, bool]:
    stone = await machine.agent.wait(slot, BOUND_S)
    assert stone is not None
    return stone.code, stone.reason, stone.oom


async def test_it_starts_once_it_is_ready_and_ends_with_its_program(machine: Machine) -> None:
    machine.agent.put_slot(alone("exit 3"))
    assert await ending(machine) == (3, "", False)
    assert machine.containers.names() == () and machine.containers.starts[f"{SLOT}-a0"] == 1


async def test_out_of_memory_is_told_from_a_kill(machine: Machine) -> None:
    machine.agent.put_slot(alone(memory_bytes=2 * 1024**3))
    await running(machine)
    machine.containers.exit(f"{SLOT}-a0", 137, oom=True)
    assert await ending(machine) == (137, "Out of memory (limit 2 GiB)", True)


async def test_one_that_can_not_be_prepared_ends_with_the_reason(machine: Machine) -> None:
    machine.agent.put_slot(alone(image="nowhere"))
    assert await ending(machine) == (125, 'there is no image "nowhere"', False)


async def test_one_that_can_not_be_made_ends_with_the_reason(machine: Machine) -> None:
    from astra_agent.errors import InvalidRequest

    machine.containers.fail_next_create(InvalidRequest("no such device"))
    machine.agent.put_slot(alone())
    assert await ending(machine) == (125, "no such device", False)
    assert machine.containers.names() == ()


async def test_a_stop_asks_waits_and_keeps_the_programs_code(machine: Machine) -> None:
    machine.agent.put_slot(alone())
    await running(machine)
    machine.agent.stop(SLOT, StopRequest(grace_s=30.0))
    assert await ending(machine) == (143, "Killed by signal 15", False)
    assert machine.containers.terms[f"{SLOT}-a0"] == 1


async def test_a_stop_with_a_signal_of_its_own_sends_that(machine: Machine) -> None:
    machine.agent.put_slot(alone())
    await running(machine)
    machine.agent.stop(SLOT, StopRequest(grace_s=30.0, signal="SIGINT"))
    assert (await ending(machine))[0] == 130
    assert machine.containers.signals == [(f"{SLOT}-a0", 2)] and machine.containers.terms[f"{SLOT}-a0"] == 0


async def test_what_ignores_the_stop_is_killed(machine: Machine) -> None:
    machine.agent.put_slot(alone("trap '' TERM; sleep 300"))
    await running(machine)
    machine.agent.stop(SLOT, StopRequest(grace_s=0.05))
    code, reason, _ = await ending(machine)
    assert code == 137 and "did not end within 0.05 s" in reason


async def test_a_stop_while_it_is_prepared_ends_it_without_a_start(machine: Machine) -> None:
    machine.images.hold()
    machine.agent.put_slot(alone())
    await until(lambda: machine.images.asked)
    machine.agent.stop(SLOT, StopRequest(grace_s=30.0, reason="Stopped by Nomad"))
    assert await ending(machine) == (143, "Stopped by Nomad", False)
    assert not machine.containers.starts


@pytest.mark.parametrize("moment", range(8))
async def test_an_agent_that_dies_at_any_moment_starts_it_once(machine: Machine, moment: int) -> None:
    machine.agent.put_slot(alone())
    for _ in range(moment * 3):
        await asyncio.sleep(0)
    await machine.crash()
    machine.start()
    await running(machine)
    await machine.restart()
    machine.containers.exit(f"{SLOT}-a0", 4)
    assert (await ending(machine))[0] == 4
    assert machine.containers.starts == {f"{SLOT}-a0": 1}


async def test_an_end_while_the_agent_is_away_has_its_code(machine: Machine) -> None:
    machine.agent.put_slot(alone())
    await running(machine)
    await machine.crash()
    machine.containers.exit(f"{SLOT}-a0", 9)
    machine.start()
    assert (await ending(machine))[0] == 9


async def test_after_a_boot_it_has_ended(machine: Machine) -> None:
    machine.agent.put_slot(alone())
    await running(machine)
    await machine.crash()
    machine.boot()
    machine.start()
    assert await ending(machine) == (1, "The machine was booted", False)


# Uses of one ID ----------------------------------------------------------------------------------------------------


async def test_an_ended_slots_id_is_used_again_by_another_incarnation_and_counts_on(machine: Machine) -> None:
    machine.agent.put_slot(alone("exit 1"))
    await ending(machine)
    with pytest.raises(Conflict, match="has ended"):
        machine.agent.put_slot(alone("exit 1"))
    machine.agent.put_slot(alone("exit 0", incarnation="2"))
    assert (await ending(machine))[0] == 0
    assert machine.containers.starts == {f"{SLOT}-a0": 1, f"{SLOT}-a1": 1}


async def test_another_incarnation_of_one_that_lives_is_the_same_slot(machine: Machine) -> None:
    machine.agent.put_slot(alone())
    await running(machine)
    status, is_new = machine.agent.put_slot(alone(incarnation="2"))
    assert not is_new and status.incarnation == "2"
    machine.agent.finish(SLOT, Ending(137, "late"), "1")
    assert machine.status().phase != "finished", "what is said of an older use does not reach the newer one"
    machine.agent.finish(SLOT, Ending(137, "now"), "2")
    assert await ending(machine) == (137, "now", False)


async def test_one_that_is_ending_is_not_used_again_yet(machine: Machine) -> None:
    machine.agent.put_slot(alone("trap '' TERM; sleep 300"))
    await running(machine)
    machine.agent.finish(SLOT, Ending(0, "done"))
    with pytest.raises(Unavailable, match="is just ending"):
        machine.agent.put_slot(alone("exit 0", incarnation="2"))


async def test_one_that_was_destroyed_before_it_came_does_not_come(machine: Machine) -> None:
    machine.agent.finish(SLOT, Ending(137, "Destroyed"), "1")
    with pytest.raises(Conflict):
        machine.agent.put_slot(alone())
    machine.agent.put_slot(alone(incarnation="2"))


# On the socket -----------------------------------------------------------------------------------------------------


@pytest.fixture
async def daemon(tmp_path: Path) -> AsyncIterator[Daemon]:
    async with a_daemon(tmp_path) as made:
        yield made


async def started(daemon: Daemon) -> None:
    await daemon.put(alone())
    await until(lambda: daemon.containers.starts[f"{SLOT}-a0"] == 1)
    async with asyncio.timeout(BOUND_S):
        while [one.state for one in (await daemon.status()).attempts] != ["running"]:  # noqa: ASYNC110 -- HTTP
            await asyncio.sleep(0.01)


async def test_signals_and_usage_are_of_what_runs(daemon: Daemon) -> None:
    await started(daemon)
    assert (await daemon.ask("POST", f"/v1/slots/{SLOT}/signal", '{"signal": "hup"}'))[0] == 200
    assert daemon.containers.signals == [(f"{SLOT}-a0", 1)]
    assert (await daemon.ask("POST", f"/v1/slots/{SLOT}/signal", '{"signal": "SIGFOO"}'))[0] == 400
    code, used = await daemon.ask("GET", f"/v1/slots/{SLOT}/usage")
    assert (code, used["memory_rss_bytes"]) == (200, 4096)
    assert (await daemon.ask("GET", "/v1/slots/nobody/usage"))[0] == 404


async def test_a_stop_of_an_unknown_slot_is_not_found(daemon: Daemon) -> None:
    assert (await daemon.ask("POST", "/v1/slots/nobody/stop", '{"grace_s": 5}'))[0] == 404
    assert (await daemon.ask("POST", f"/v1/slots/{SLOT}/stop", '{"grace": 5}'))[0] == 400


async def test_a_watch_has_all_that_is_there_and_then_each_change(daemon: Daemon) -> None:
    await started(daemon)
    connector = aiohttp.UnixConnector(path=str(daemon.config.socket))
    async with aiohttp.ClientSession(connector=connector) as session, session.get("http://agent/v1/watch") as answer:
        async with asyncio.timeout(BOUND_S):
            first = SlotStatus.model_validate_json(await answer.content.readline())
            assert (first.slot, first.starts) == (SLOT, "when_ready")
            assert await answer.content.readline() == b"\n"
            daemon.containers.exit(f"{SLOT}-a0", 2)
            seen: list[SlotStatus] = []
            while not seen or not any(one.state == "exited" for one in seen[-1].attempts):
                if line := (await answer.content.readline()).strip():
                    seen.append(SlotStatus.model_validate_json(line))
    assert seen[-1].rev > first.rev


async def test_exec_on_the_socket_is_in_the_links_frames(daemon: Daemon) -> None:
    await started(daemon)
    connector = aiohttp.UnixConnector(path=str(daemon.config.socket))
    url = f"http://agent/v1/slots/{SLOT}/exec"
    async with aiohttp.ClientSession(connector=connector) as session:
        for script, wanted in (("echo hello; exit 5", ExecExit(code=5)), ("/no/such", None)):
            command = ("sh", "-c", script) if wanted else ("/no/such",)
            async with asyncio.timeout(BOUND_S), session.ws_connect(url) as connection:
                await connection.send_str(ExecRequest(slot=SLOT, command=command).model_dump_json())
                messages = [message async for message in connection]
            ended = ExecExit.model_validate_json(messages[-1].data)
            if wanted is not None:
                assert messages[0].data == b"\x01hello\n" and ended == wanted
            else:
                assert ended.code == 126 and "/no/such" in ended.error
        async with session.ws_connect(url) as connection:
            await connection.send_str(json.dumps({"kind": "exec"}))
            assert "slot" in ExecExit.model_validate_json((await connection.receive()).data).error
