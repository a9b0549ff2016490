"""
What a coordinator stands on: the records and the engine that belong together. SQLite with the embedded engine, or Nomad
for both. A coordinator that may act has one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from astra_gang.clock import Clock
from astra_gang.config import Config
from astra_gang.desk import Desk
from astra_gang.engine import Engine
from astra_gang.engines.agent_socket import AgentSocket
from astra_gang.engines.embedded import EmbeddedEngine
from astra_gang.engines.nomad.footing import nomad_footing
from astra_gang.performer import Agents
from astra_gang.roster import Roster
from astra_gang.sqlite_store import open_store
from astra_gang.store import Loaded, Store


class Footing(Protocol):
    @property
    def store(self) -> Store: ...

    @property
    def shared(self) -> bool:
        """Coordinators on several machines may have these records, one after the other."""
        ...

    async def engine(self, *, clock: Clock, roster: Roster, loaded: Loaded, term: int) -> Ground:
        """The engine of this term; nothing of it runs yet."""
        ...


class Ground(Protocol):
    """An engine with what keeps it going."""

    @property
    def engine(self) -> Engine: ...

    @property
    def expected(self) -> Collection[str]:
        """Machines that will have a link soon if all is well."""
        ...

    @property
    def allowed(self) -> Collection[str] | None:
        """The only machines that may have one; None: any."""
        ...

    async def run(self, agents: Agents, desk: Desk) -> None:
        """Until cancelled. Raises: Stale, when another coordinator has taken over."""
        ...


@asynccontextmanager
async def open_footing(config: Config) -> AsyncIterator[Footing]:
    """
    Returns once this coordinator may act; on Nomad that may take for as long as another one does.

    Raises:
        InvalidRequest, Conflict, Unavailable: It never will; one sentence says why.
    """
    if config.engine is not None:
        async with nomad_footing(config.engine, config.disconnect_limit_s, config.workspaces) as footing:
            yield footing
    else:
        assert config.state_dir is not None, "the configuration is checked"
        store = await open_store(config.state_dir)
        try:
            yield EmbeddedFooting(store, config.agents or {})
        finally:
            await store.close()


@dataclass(frozen=True, slots=True)
class EmbeddedFooting:
    """*agents*: sockets by machine."""

    store: Store
    agents: Mapping[str, Path]
    shared: bool = False

    async def engine(self, *, clock: Clock, roster: Roster, loaded: Loaded, term: int) -> EmbeddedGround:
        doors = {name: AgentSocket(name, path) for name, path in self.agents.items()}
        engine = EmbeddedEngine(store=self.store, clock=clock, roster=roster, doors=doors, book=loaded.book)
        return EmbeddedGround(engine, doors)


@dataclass(frozen=True, slots=True)
class EmbeddedGround:
    engine: EmbeddedEngine
    doors: Mapping[str, AgentSocket]

    @property
    def expected(self) -> Collection[str]:
        return self.doors

    @property
    def allowed(self) -> Collection[str] | None:
        return self.doors

    async def run(self, agents: Agents, desk: Desk) -> None:
        async with AsyncExitStack() as stack:
            for door in self.doors.values():
                stack.push_async_callback(door.close)
            await self.engine.run()
