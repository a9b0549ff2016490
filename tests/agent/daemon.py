"""A whole agent to test with: socket, link and streams on real connections, the runtime in memory."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp

from astra_agent.config import AgentConfig
from astra_agent.daemon import serve
from astra_agent.service_manager import ServiceManager
from astra_agent.wire import SlotRequest, SlotStatus
from tests import cgroups
from tests.agent.machine import BOUND_S, SLOT, request
from tests.fakes.coordinator import TOKEN
from tests.fakes.runtime import FakeContainers, FakeImages


class Daemon:
    def __init__(self, folder: Path, **settings: Any) -> None:
        folder.mkdir(exist_ok=True)
        (folder / "token").write_text(f"{TOKEN}\n")
        values: dict[str, Any] = {
            "name": "gpu-1",
            "state_dir": folder / "state",
            "address": "10.83.0.3",
            "token_file": folder / "token",
            "log_check_s": 0.02,
            "cgroup_parent": cgroups.own("core"),
            "name_server": "",
        }
        self.config = AgentConfig(**(values | settings))
        self.containers = FakeContainers()
        self.images = FakeImages()
        self.stop = asyncio.Event()
        self.manager = ServiceManager()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self.stop.clear()
        self._task = asyncio.create_task(serve(self.config, self.containers, self.images, self.stop, self.manager))
        async with asyncio.timeout(BOUND_S):
            while not await self._answers():
                if self._task.done():
                    self._task.result()
                await asyncio.sleep(0.005)

    async def _answers(self) -> bool:
        try:
            return (await self.ask("GET", "/v1/facts"))[0] == 200
        except (aiohttp.ClientError, OSError):
            return False

    async def crash(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def ask(self, method: str, path: str, body: str | None = None) -> tuple[int, Any]:
        """Status and JSON of an answer on the unix socket."""
        connector = aiohttp.UnixConnector(path=str(self.config.socket))
        async with aiohttp.ClientSession(connector=connector) as session:
            async with session.request(method, f"http://agent{path}", data=body) as answer:
                return answer.status, await answer.json() if answer.status != 204 else None

    async def put(self, wanted: SlotRequest) -> int:
        status, _ = await self.ask("PUT", f"/v1/slots/{wanted.slot}", wanted.model_dump_json())
        return status

    async def status(self, slot: str = SLOT) -> SlotStatus:
        code, document = await self.ask("GET", f"/v1/slots/{slot}")
        assert code == 200, document
        return SlotStatus.model_validate(document)

    async def ready(self, wanted: SlotRequest | None = None) -> None:
        wanted = wanted or request()
        await self.put(wanted)
        async with asyncio.timeout(BOUND_S):
            while (await self.status(wanted.slot)).phase == "preparing":  # noqa: ASYNC110 -- asked by HTTP
                await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def a_daemon(folder: Path, **settings: Any) -> AsyncIterator[Daemon]:
    daemon = Daemon(folder, **settings)
    await daemon.start()
    try:
        yield daemon
    finally:
        await daemon.crash()
        cgroups.remove(daemon.config.cgroup_parent)
