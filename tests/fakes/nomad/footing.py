"""A coordinator on the fake Nomad, with records in the test's own memory: it can be killed at an exact commit."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import dataclass

from astra_gang.clock import Clock
from astra_gang.desk import Desk
from astra_gang.engines.nomad.adoption import Adoption
from astra_gang.engines.nomad.api import NomadApi
from astra_gang.engines.nomad.clearing import Agents
from astra_gang.engines.nomad.engine import NomadEngine
from astra_gang.engines.nomad.job import Terms
from astra_gang.engines.nomad.transport import Access
from astra_gang.roster import Roster
from astra_gang.store import Loaded, Store


@dataclass(frozen=True, slots=True)
class FakeNomadFooting:
    store: Store
    url: str
    disconnect_limit_s: float
    shared: bool = True

    async def engine(self, *, clock: Clock, roster: Roster, loaded: Loaded, term: int) -> FakeNomadGround:
        api = NomadApi(Access(self.url), patience_s=0.5)
        await api.__aenter__()
        version = (await api.members()).version()
        assert version is not None
        engine = NomadEngine(
            api=api, store=self.store, clock=clock, roster=roster, term=term, book=loaded.book, hand_over_s=5.0,
            terms=Terms("gpu", version, self.disconnect_limit_s),
        )  # fmt: skip
        adoption = Adoption(
            api=api, engine=engine, clock=clock, term=term, namespaces=("default",), node_pool="gpu", look_s=0.2
        )  # fmt: skip
        return FakeNomadGround(engine, adoption, api, await engine.open())


@dataclass(frozen=True, slots=True)
class FakeNomadGround:
    engine: NomadEngine
    adoption: Adoption
    api: NomadApi
    expected: Collection[str]
    allowed: Collection[str] | None = None

    async def run(self, agents: Agents, desk: Desk) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self.engine.run(agents))
                group.create_task(self.adoption.run(agents, desk))
        finally:
            await asyncio.shield(self.api.__aexit__(None, None, None))
