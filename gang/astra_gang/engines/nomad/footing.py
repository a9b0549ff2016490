"""A coordinator on Nomad: engine, records and office on one connection, as `astra_gang.footing` asks for them."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass

from astra_agent.errors import InvalidRequest, Unavailable
from astra_gang.clock import Clock
from astra_gang.config import NomadConfig
from astra_gang.desk import Desk
from astra_gang.engines.nomad.adoption import Adoption
from astra_gang.engines.nomad.api import NomadApi
from astra_gang.engines.nomad.clearing import Agents
from astra_gang.engines.nomad.engine import NomadEngine
from astra_gang.engines.nomad.job import Terms
from astra_gang.engines.nomad.office import Office, office
from astra_gang.engines.nomad.shelf import Shelf
from astra_gang.engines.nomad.store import NomadStore
from astra_gang.engines.nomad.transport import Access
from astra_gang.roster import Roster
from astra_gang.store import Loaded

_log = logging.getLogger(__name__)

OLDEST = (1, 6, 0)


@dataclass(frozen=True, slots=True)
class NomadFooting:
    api: NomadApi
    office: Office
    store: NomadStore
    terms: Terms
    workspaces: tuple[str, ...] = ("default",)
    shared: bool = True

    async def engine(self, *, clock: Clock, roster: Roster, loaded: Loaded, term: int) -> NomadGround:
        engine = NomadEngine(
            api=self.api, store=self.store, clock=clock, roster=roster, terms=self.terms, term=term, book=loaded.book,
            namespaces=self.workspaces,
        )  # fmt: skip
        try:
            expected = await engine.open()
        except Unavailable as error:
            # It may act all the same: what runs is looked after over the agents' links.
            _log.warning("no_nodes reason=%r", str(error))
            expected = frozenset()
        adoption = Adoption(
            api=self.api,
            engine=engine,
            clock=clock,
            term=term,
            namespaces=self.workspaces,
            node_pool=self.terms.node_pool,
        )
        return NomadGround(engine, adoption, self.store, self.office, expected)


@dataclass(frozen=True, slots=True)
class NomadGround:
    engine: NomadEngine
    adoption: Adoption
    store: NomadStore
    office: Office
    expected: Collection[str]
    allowed: Collection[str] | None = None

    async def run(self, agents: Agents, desk: Desk) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self.adoption.run(agents, desk))
            group.create_task(self.engine.run(agents))
            group.create_task(self.store.run())
            group.create_task(self.office.keep())


@asynccontextmanager
async def nomad_footing(
    config: NomadConfig, disconnect_limit_s: float, workspaces: tuple[str, ...]
) -> AsyncIterator[NomadFooting]:
    """
    Returns once this coordinator has the office.

    Raises:
        InvalidRequest: Nomad is too old, or its servers do not say what they are.
        Unavailable: It can't be asked at all.
    """
    access = Access(config.address, config.token_file, config.ca_file, config.cert_file, config.key_file)
    async with NomadApi(access, namespace=config.namespace) as api:
        version = _supported((await api.members()).version())
        held = office(api, version, config.prefix, _who())
        await held.take()
        try:
            yield NomadFooting(
                api=api,
                office=held,
                store=NomadStore(Shelf(api), config.prefix),
                terms=Terms(config.node_pool, version, disconnect_limit_s, config.priority),
                workspaces=workspaces,
            )
        finally:
            await held.leave()


def _supported(version: tuple[int, int, int] | None) -> tuple[int, int, int]:
    if version is None:
        raise InvalidRequest("no server of Nomad says its version: is [engine] address that of a server or client?")
    if version < OLDEST:
        text = ".".join(map(str, version))
        raise InvalidRequest(f"Nomad is {text}: 1.6 is the oldest that has all that a gang needs")
    return version


def _who() -> str:
    """For people, and no two alike."""
    return f"{socket.gethostname()}/{os.getpid()}/{secrets.token_hex(3)}"
