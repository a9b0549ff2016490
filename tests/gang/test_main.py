"""The coordinator as a process: it serves or says why not, ends in order, and goes on after kill -9."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from astra_agent.errors import InvalidRequest, Stale
from astra_gang import main
from astra_gang.config import Address, Config
from astra_gang.listening import listening_socket
from tests.fakes.agent import FakeAgent
from tests.fakes.eventually import until
from tests.fakes.runs import document

OPERATOR, AGENT = "operator-token-of-the-test", "agent-token-of-the-test"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Setup:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.config = folder / "coordinator.toml"
        (folder / "operator").write_text(OPERATOR)
        (folder / "agent").write_text(AGENT)
        self.write()

    def write(self, **more: Any) -> None:
        values = {
            "state_dir": str(self.folder / "state"),
            "operator_token_file": str(self.folder / "operator"),
            "agent_token_file": str(self.folder / "agent"),
            "listen": [f"127.0.0.1:{self.port}"],
            **more,
        }
        lines = [f"{name} = {json.dumps(value)}" for name, value in values.items()]
        self.config.write_text("\n".join([*lines, "[agents]", f'm1 = "{self.folder}/m1.sock"']))

    async def start(self, **environment: str) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            sys.executable, "-m", "astra_gang.main", "--config", str(self.config),
            env={**os.environ, **environment}, stderr=subprocess.PIPE,
        )  # fmt: skip

    async def refusal(self) -> tuple[int, str]:
        """Exit status and last words of a coordinator that does not start."""
        process = await self.start()
        async with asyncio.timeout(20):
            _, said = await process.communicate()
        return process.returncode or 0, said.decode().splitlines()[-1]

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[asyncio.subprocess.Process]:
        process = await self.start()
        try:
            async with asyncio.timeout(20):
                await self.until_healthy()
            yield process
        finally:
            if process.returncode is None:
                process.kill()
            await process.communicate()

    async def until_healthy(self) -> None:
        async with aiohttp.ClientSession() as session:
            while True:
                try:
                    async with session.get(f"{self.url}/v1/health") as answer:
                        if answer.status == 200:
                            return
                except aiohttp.ClientError:
                    await asyncio.sleep(0.02)


@pytest.fixture
def setup(tmp_path: Path) -> Setup:
    return Setup(tmp_path)


async def test_sigterm_ends_it_in_order(setup: Setup) -> None:
    async with setup.serving() as process:
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(20):
            assert await process.wait() == 0


async def test_systemd_is_told_when_it_serves_that_it_lives_and_when_it_ends(setup: Setup) -> None:
    path = setup.folder / "notify"
    heard: list[str] = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(path))
        listener.setblocking(False)
        process = await setup.start(NOTIFY_SOCKET=str(path), WATCHDOG_USEC="25000000")

        async def heard_of(start: str) -> None:
            async with asyncio.timeout(60):
                while not any(one.startswith(start) for one in heard):
                    heard.append((await asyncio.get_running_loop().sock_recv(listener, 4096)).decode())

        await heard_of("READY=1")
        assert heard == ["READY=1\nSTATUS=term 1, 0 live runs, 0 machines linked"]
        await heard_of("WATCHDOG=1")
        process.send_signal(signal.SIGTERM)
        await heard_of("STOPPING=1")
        async with asyncio.timeout(20):
            await process.communicate()


async def test_a_wrong_setting_is_one_sentence_and_exit_status_2(setup: Setup) -> None:
    setup.write(disconnect_limit_s=0)
    assert await setup.refusal() == (
        2,
        "astra-coordinator: disconnect_limit_s is 0: it must be a number from 1 to 1e9",
    )


def test_a_coordinator_whose_office_another_one_has_ends_with_that_sentence(
    setup: Setup, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What ends one of its parts comes out of a group of tasks, as from `Office.keep` on Nomad."""

    @asynccontextmanager
    async def superseded(config: Config) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as group:
            group.create_task(lose_the_office())
        yield None

    async def lose_the_office() -> None:
        raise Stale("another coordinator has the lock astraeus/lock: this one ends; workers go on")

    monkeypatch.setattr(main, "coordinator", superseded)
    assert main.main(["--config", str(setup.config)]) == 4
    assert capsys.readouterr().err.splitlines()[-1] == (
        "astra-coordinator: another coordinator has the lock astraeus/lock: this one ends; workers go on"
    )


async def test_an_address_in_use_is_one_sentence(setup: Setup) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", setup.port))
        other.listen()
        status, sentence = await setup.refusal()
    assert (status, sentence) == (
        2,
        f"astra-coordinator: can't listen on 127.0.0.1:{setup.port} (Address already in use): choose another address",
    )


async def test_a_second_coordinator_on_the_same_records_does_not_start(setup: Setup) -> None:
    async with setup.serving() as process:
        setup.write(listen=[f"127.0.0.1:{free_port()}"])
        status, sentence = await setup.refusal()
    assert status == 2
    assert f"is in use by another coordinator (process {process.pid})" in sentence


async def test_killed_with_9_it_goes_on_where_it_was(setup: Setup) -> None:
    agent = FakeAgent("m1", setup.folder, AGENT)
    await agent.start()
    headers = {"Authorization": f"Bearer {OPERATOR}"}
    jobs = f"{setup.url}/v1/workspaces/default/jobs"
    try:
        async with setup.serving() as process, aiohttp.ClientSession(headers=headers) as session:
            agent.connect(setup.url)
            async with session.post(jobs, json=document(machines=1)) as answer:
                assert answer.status == 201
            await until(agent.running)
            process.kill()
            await process.wait()
            async with setup.serving():
                await until(lambda: len(agent.welcomes) == 2)
                await agent.exit(next(iter(agent.held)), 0)
                await until(lambda: not agent.held)
                async with session.get(f"{jobs}/llama") as answer:
                    assert (await answer.json())["status"]["phase"] == "Completed"
    finally:
        await agent.stop()
    assert agent.welcomes[1] > agent.welcomes[0]
    assert list(agent.started.values()) == [1]
    assert agent.wrong == []


# Listening inside another namespace ----------------------------------------------------------------------------------


def test_a_namespace_that_is_not_there_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"can't listen on 127.0.0.1:0 in .*/nothing \(No such file"):
        listening_socket(Address("127.0.0.1", 0, str(tmp_path / "nothing")))


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to make a network namespace")
def test_a_socket_is_made_in_the_namespace_and_the_process_stays_in_its_own() -> None:
    holder = subprocess.Popen(["unshare", "--net", "cat"], stdin=subprocess.PIPE)
    try:
        own = Path("/proc/self/ns/net").readlink()
        netns = Path(f"/proc/{holder.pid}/ns/net")
        while netns.readlink() == own:
            pass
        subprocess.run(["nsenter", f"--net={netns}", "ip", "link", "set", "lo", "up"], check=True)
        with listening_socket(Address("127.0.0.1", 0, str(netns))) as listening:
            port = listening.getsockname()[1]
            reach = f"exec 3<>/dev/tcp/127.0.0.1/{port}"
            inside = subprocess.run(["nsenter", f"--net={netns}", "bash", "-c", reach], capture_output=True)
            outside = subprocess.run(["bash", "-c", reach], capture_output=True)
        assert (inside.returncode, outside.returncode) == (0, 1)
        assert Path("/proc/thread-self/ns/net").readlink() == own
    finally:
        assert holder.stdin is not None
        holder.stdin.close()
        holder.wait()
