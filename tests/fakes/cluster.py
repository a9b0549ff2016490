"""
A whole coordinator in the test's process: real HTTP on loopback, a clock that the test turns, records in memory.

It can be killed, also at an exact commit, and made again on the same records and the same port.
"""

from __future__ import annotations

import asyncio
import itertools
import socket
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import aiohttp

from astra_agent.errors import NotFound
from astra_gang.assembly import Parts, assemble, serving
from astra_gang.config import Config
from astra_gang.core import Phase, Policy
from astra_gang.footing import EmbeddedFooting, Footing
from astra_gang.store import RunRecord
from astra_gang.tokens import Token
from tests.fakes.agent import FakeAgent
from tests.fakes.clock import FakeClock
from tests.fakes.eventually import until
from tests.fakes.nomad.clients import Clients
from tests.fakes.nomad.cluster import FakeNomad
from tests.fakes.nomad.footing import FakeNomadFooting
from tests.fakes.nomad.server import NomadServer
from tests.fakes.store import MemoryStore

OPERATOR, AGENT = "operator-of-the-test", "agents-of-the-test"


class Killed(Exception):  # it is no error: the test did it
    """The coordinator's process has ended at this commit."""


class FakeCluster:
    """
    Attributes:
        agents: By machine, with links to whatever coordinator is there.
        network: Rates of slow links, by address; probes find them.
        parts: Of the coordinator that runs now.
        nomad: With *on_nomad*, the version: what holds the machines, whatever becomes of the coordinator.
    """

    def __init__(
        self, folder: Path, machines: int = 4, gpus: int = 8, *, on_nomad: str | None = None, **settings: Any
    ) -> None:
        self.clock = FakeClock()
        self.store = MemoryStore()
        self.agents = {f"m{i}": FakeAgent(f"m{i}", folder, AGENT, gpus) for i in range(1, machines + 1)}
        self.network: dict[str, float] = {}
        for agent in self.agents.values():
            agent.network = self.network
        self.config = Config(
            state_dir=folder,
            operator_token_file=folder / "unused",
            agent_token_file=folder / "unused",
            drives=("datasets", "checkpoints"),
            agents={name: agent.path for name, agent in self.agents.items()},
            **{"disconnect_limit_s": 60.0, "policy": Policy(), **settings},
        )
        self.parts: Parts
        self.nomad = FakeNomad(on_nomad) if on_nomad is not None else None
        self._nomad_url = ""
        self._stack = AsyncExitStack()
        self.url = ""
        self._port = 0
        self._task: asyncio.Task[None] | None = None
        self._leases = itertools.count(1)
        self._leasing: list[asyncio.Task[None]] = []
        self._session: aiohttp.ClientSession | None = None

    def pass_time(self, seconds: float) -> None:
        """With a lease of every agent that has a link, so that no machine falls silent by the clock alone."""
        self.clock.advance(seconds)
        sent = (agent.lease(next(self._leases)) for agent in self.agents.values())
        self._leasing = [asyncio.ensure_future(lease) for lease in sent]

    async def __aenter__(self) -> FakeCluster:
        self._session = aiohttp.ClientSession(headers={"Authorization": f"Bearer {OPERATOR}"})
        if self.nomad is not None:
            for name, agent in self.agents.items():
                self.nomad.add_node(name, agent, gpus=tuple(gpu.uuid for gpu in agent.facts.gpus))
            self._nomad_url = await self._stack.enter_async_context(NomadServer(self.nomad).serving())
            await self._stack.enter_async_context(Clients(self.nomad))
        await self.start()
        for agent in self.agents.values():
            await agent.start()
            agent.connect(self.url)
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.gather(*self._leasing)
        await self.kill()
        await self._stack.aclose()
        for agent in self.agents.values():
            await agent.stop()
        if self._session is not None:
            await self._session.close()

    async def start(self) -> None:
        listening = socket.socket()
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(("127.0.0.1", self._port))
        listening.setblocking(False)
        self._port = listening.getsockname()[1]
        self.url = f"http://127.0.0.1:{self._port}"
        started = asyncio.Event()
        self._task = asyncio.ensure_future(self._run(listening, started))
        await started.wait()

    async def _run(self, listening: socket.socket, started: asyncio.Event) -> None:
        with listening, suppress(Killed):
            try:
                term = await self.store.begin_term()
                self.parts = await assemble(
                    self.config,
                    clock=self.clock,
                    footing=self._footing(),
                    loaded=await self.store.load(),
                    term=term,
                    operator=Token("operator", OPERATOR),
                    agent=Token("agent", AGENT),
                )
                async with serving(self.parts, [listening]):
                    started.set()
                    await asyncio.Event().wait()
            except* Killed:
                pass

    def _footing(self) -> Footing:
        if self.nomad is not None:
            return FakeNomadFooting(self.store, self._nomad_url, self.config.disconnect_limit_s)
        return EmbeddedFooting(self.store, self.config.agents or {})

    async def kill(self) -> None:
        """What it had in memory is gone. Idempotent."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    async def restart(self) -> None:
        await self.kill()
        await self.start()

    def is_dead(self) -> bool:
        return self._task is None or self._task.done()

    def kill_at_commit(self, number: int, *, durable: bool) -> None:
        """End it at the *number*-th commit from now: right after it, before anybody hears of it, or right before."""
        last = self.store.commits + number

        def check(commits: int) -> None:
            if commits >= last:
                self.store.before_commit = self.store.after_commit = lambda _: None
                raise Killed

        if durable:
            self.store.after_commit = check
        else:
            self.store.before_commit = check

    # As a user -------------------------------------------------------------------------------------------------------

    async def request(self, method: str, path: str, **more: Any) -> tuple[int, Any]:
        """Status and JSON of an answer; *path* below the workspace `default` unless it starts with `/`."""
        assert self._session is not None
        url = self.url + (path if path.startswith("/") else f"/v1/workspaces/default/{path}")
        async with self._session.request(method, url, **more) as answer:
            return answer.status, await answer.json()

    @property
    def session(self) -> aiohttp.ClientSession:
        assert self._session is not None
        return self._session

    async def job(self, name: str = "llama") -> Any:
        status, document = await self.request("GET", f"jobs/{name}")
        assert status == 200, document
        return document["status"]

    async def sentences(self, name: str = "llama") -> list[str]:
        _, document = await self.request("GET", f"jobs/{name}/events")
        return [item["sentence"] for item in document["items"]]

    def run(self, name: str = "llama") -> RunRecord:
        """The newest of this name, as the coordinator has it in memory, dead or alive."""
        return self.parts.loop.ledger.find("default", name)

    def phase(self, name: str = "llama") -> str:
        """`none` without a run of this name; its outcome once it has ended."""
        try:
            state = self.run(name).state
        except NotFound:
            return "none"
        return str(state.outcome if state.phase is Phase.ENDED else state.phase)

    async def until_phase(self, phase: str, name: str = "llama") -> None:
        await until(lambda: self.phase(name) == phase, f"{name} {phase}")

    async def connected(self, *machines: str) -> None:
        """Wait until these machines, or all, have links."""
        names = machines or tuple(self.agents)

        async def there() -> bool:
            found = {m.facts.name for m in await self.parts.engine.machines() if m.connected}
            return set(names) <= found

        async with asyncio.timeout(60):
            while not await there():  # noqa: ASYNC110  # what is waited for makes no event
                await asyncio.sleep(0.005)

    def slot(self, worker: str) -> tuple[FakeAgent, str]:
        """The agent and the slot that a worker is in now: the newest, where a machine that is cut off keeps one."""
        found = [
            (len(held.attempts) and max(held.attempts), name, slot)
            for name, agent in self.agents.items()
            for slot, held in agent.held.items()
            if held.request.worker == worker
        ]
        assert found, f"no agent has a slot of {worker}"
        _, name, slot = max(found)
        return self.agents[name], slot

    def wrong(self) -> list[str]:
        """What should never happen and did."""
        said = [f"{name}: {what}" for name, agent in self.agents.items() for what in agent.wrong]
        for name, agent in self.agents.items():
            said += [f"{name}: {key} was started {n} times" for key, n in agent.started.items() if n > 1]
        return said
