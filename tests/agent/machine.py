"""A machine to test with: an agent on a runtime in memory, which can be crashed and started again."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from astra_agent.agent import Agent
from astra_agent.config import AgentConfig
from astra_agent.inventory import Besides
from astra_agent.lookout import HadGpus, Lookout
from astra_agent.names import Names
from astra_agent.sources import source_of
from astra_agent.wire import Arm, AttemptStatus, Finish, Placed, RunRef, SlotRequest, SlotStatus, Start, Stop
from tests import cgroups
from tests.fakes.runtime import FakeContainers, FakeImages

BOUND_S = 30.0
SLOT = "llama-1-0"
ONE_MACHINE = Placed()


async def until(met: Callable[[], Any]) -> None:
    async with asyncio.timeout(BOUND_S):
        while not met():  # noqa: ASYNC110 -- what is waited for has no event of its own
            await asyncio.sleep(0.005)


def request(slot: str = SLOT, **changes: Any) -> SlotRequest:
    values: dict[str, Any] = {
        "slot": slot,
        "run": RunRef(workspace="default", name="llama", uid="u1"),
        "worker": "llama-1",
        "image": "host",
        "command": ("serve",),
    }
    return SlotRequest(**(values | changes))


def arm(
    attempt: int = 0,
    *,
    term: int = 1,
    slot: str = SLOT,
    env: dict[str, str] | None = None,
    placed: Placed = ONE_MACHINE,
) -> Arm:
    hosts = {"llama-0": "10.83.0.2"}
    return Arm(slot=slot, term=term, attempt=attempt, env=env or {"RANK": "1"}, hosts=hosts, placed=placed)


def start(attempt: int = 0, *, term: int = 1, slot: str = SLOT) -> Start:
    return Start(slot=slot, term=term, attempt=attempt)


def stop(attempt: int = 0, *, term: int = 1, grace_s: float = 30.0, slot: str = SLOT) -> Stop:
    return Stop(slot=slot, term=term, attempt=attempt, grace_s=grace_s)


def finish(*, term: int = 1, code: int = 0, reason: str = "done", slot: str = SLOT) -> Finish:
    return Finish(slot=slot, term=term, code=code, reason=reason)


class Machine:
    """
    Attributes:
        agent: The one that runs now; dropped by `crash`.
        containers, images: The runtime, which outlives it.
    """

    def __init__(self, folder: Path, names: Names | None = None, **settings: Any) -> None:
        boot = folder / "boot_id"
        boot.write_text("boot-1\n")
        values: dict[str, Any] = {
            "name": "gpu-1",
            "state_dir": folder / "state",
            "address": "10.83.0.3",
            "boot_id_file": boot,
            "cgroup_parent": cgroups.own("core"),
            "stuck_after_s": 0.05,
            "log_check_s": 0.02,
            "glance_s": 0.02,
        }
        self.config = AgentConfig(**(values | settings))
        self.containers = FakeContainers()
        self.images = FakeImages()
        self.names = names
        self._task: asyncio.Task[None] | None = None
        self.start()

    def start(self) -> None:
        self.config.state_dir.mkdir(exist_ok=True)
        source, had = source_of(self.config), HadGpus(self.config.state_dir / "gpus")
        lookout = Lookout(
            source,
            source.read(source.library(), Besides(had_gpus=had.most)),
            had,
            kernel_log=self.config.kernel_log,
            glance_s=self.config.glance_s,
        )
        self.agent = Agent(self.config, self.containers, self.images, lookout, self.names)
        self._task = asyncio.create_task(self.agent.run())

    async def crash(self) -> None:
        """The agent is gone in the middle of whatever it does; its files and the runtime stay."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def restart(self) -> None:
        await self.crash()
        self.start()

    def boot(self) -> None:
        """The machine is booted: its containers are gone, files stay. The agent must have crashed before."""
        self.config.boot_id_file.write_text("boot-2\n")
        self.containers = FakeContainers()

    # What is asked of it ------------------------------------------------------------------------------------------

    def status(self, slot: str = SLOT) -> SlotStatus:
        return self.agent.slot(slot).status()

    def attempt(self, number: int = 0, slot: str = SLOT) -> AttemptStatus:
        return next(seen for seen in self.status(slot).attempts if seen.attempt == number)

    async def ready(self, wanted: SlotRequest | None = None) -> SlotStatus:
        wanted = wanted or request()
        self.agent.put_slot(wanted)
        await until(lambda: self.status(wanted.slot).phase != "preparing")
        return self.status(wanted.slot)

    async def armed(self, number: int = 0, *, term: int = 1) -> None:
        assert self.agent.obey(arm(number, term=term)) is None
        await until(lambda: self.attempt(number).state == "armed")

    async def running(self, number: int = 0, *, term: int = 1) -> str:
        """An attempt that runs; returns its container."""
        await self.armed(number, term=term)
        assert self.agent.obey(start(number, term=term)) is None
        await until(lambda: self.attempt(number).state == "running")
        return f"{SLOT}-a{number}"

    async def exited(self, number: int = 0) -> AttemptStatus:
        await until(lambda: self.attempt(number).state == "exited")
        return self.attempt(number)

    async def acknowledge_all(self) -> None:
        """The coordinator takes every report that there is."""
        with contextlib.suppress(TimeoutError):
            while True:
                async with asyncio.timeout(0.05):
                    report = await self.agent.outbox.next()
                self.agent.acknowledged(report.seq)


@contextlib.asynccontextmanager
async def a_machine(folder: Path, names: Names | None = None, **settings: Any) -> AsyncIterator[Machine]:
    machine = Machine(folder, names, **settings)
    try:
        yield machine
    finally:
        await machine.crash()
        cgroups.remove(machine.config.cgroup_parent)
