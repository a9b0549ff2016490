"""How the parts of a coordinator are put together, and how they live and end together."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from aiohttp import web

from astra_agent.wire import lease_every_s
from astra_gang.api import Api
from astra_gang.clock import Clock
from astra_gang.config import Config
from astra_gang.desk import Desk
from astra_gang.engine import Engine
from astra_gang.follow import Follow
from astra_gang.footing import Footing, Ground
from astra_gang.intake import Intake
from astra_gang.ledger import Ledger
from astra_gang.link import Links
from astra_gang.loop import Loop, Settings
from astra_gang.naming import Naming
from astra_gang.probing import Probing
from astra_gang.prover import Prover
from astra_gang.roster import Roster
from astra_gang.store import Loaded
from astra_gang.streams import Streams
from astra_gang.tokens import Token

_SHUTDOWN_S = 3.0
"""For requests that are under way."""
_TURNS_TO_ACCEPT = 3
"""Of asyncio's loop, from accepting a connection to its being the runner's, which closes no other ones."""
_LINE_MAX = 64 * 1024
"""Bytes of a request's first line: the words of an exec are in it."""


@dataclass(frozen=True, slots=True)
class Parts:
    ground: Ground
    loop: Loop
    links: Links
    prover: Prover
    app: web.Application
    desk: Desk
    term: int

    @property
    def engine(self) -> Engine:
        return self.ground.engine

    def status(self) -> str:
        """For whoever asks the service manager: `term 4, 12 live runs, 16 machines linked`."""
        live, linked = len(tuple(self.loop.ledger.live())), len(self.links.connected())
        return f"term {self.term}, {_counted(live, 'live run')}, {_counted(linked, 'machine')} linked"


async def assemble(
    config: Config, *, clock: Clock, footing: Footing, loaded: Loaded, term: int, operator: Token, agent: Token
) -> Parts:
    """Nothing runs yet."""
    roster = Roster(clock, silent_after_s=2 * lease_every_s(config.disconnect_limit_s))
    ground = await footing.engine(clock=clock, roster=roster, loaded=loaded, term=term)
    engine, store = ground.engine, footing.store
    loop = Loop(
        clock=clock,
        store=store,
        engine=engine,
        roster=roster,
        ledger=Ledger(loaded.runs, loaded.last_event),
        settings=Settings(term, config.disconnect_limit_s, config.lost_margin_s, config.runs_kept, footing.shared),
        machines=ground.expected,
    )
    limit_s = config.disconnect_limit_s
    links = Links(
        inbox=loop, roster=roster, token=agent, term=term, disconnect_limit_s=limit_s, machines=ground.allowed
    )
    streams = Streams(links, agent)
    api = Api(
        clock=clock,
        engine=engine,
        loop=loop,
        intake=Intake(
            clock=clock, engine=engine, loop=loop, streams=streams, drives=config.drives, settings=config.policy
        ),
        follow=Follow(clock=clock, store=store, loop=loop, streams=streams),
        naming=Naming(loop=loop, streams=streams),
        probing=Probing(engine, streams),
        workspaces=config.workspaces,
        machines=ground.expected,
        term=term,
    )
    desk = Desk(clock=clock, loop=loop, settings=config.policy)
    prover = Prover(roster=roster, streams=streams, post=loop.post)
    return Parts(ground, loop, links, prover, api.application(links, streams, operator), desk, term)


@contextlib.asynccontextmanager
async def serving(parts: Parts, sockets: Sequence[socket.socket]) -> AsyncIterator[None]:
    """The coordinator runs inside the block. What breaks one part ends them all, and the block."""
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(parts.ground.run(parts.links, parts.desk)),
            group.create_task(parts.loop.run(parts.links, parts.prover)),
        ]
        try:
            async with _served(parts, sockets):
                yield
        finally:
            for task in tasks:
                task.cancel()


@contextlib.asynccontextmanager
async def _served(parts: Parts, sockets: Sequence[socket.socket]) -> AsyncIterator[None]:
    runner = web.AppRunner(
        parts.app, handler_cancellation=True, access_log=None, shutdown_timeout=_SHUTDOWN_S, max_line_size=_LINE_MAX
    )
    await runner.setup()
    try:
        for listening in sockets:
            await web.SockSite(runner, listening).start()
        yield
    finally:
        for site in tuple(runner.sites):
            await site.stop()
        for _ in range(_TURNS_TO_ACCEPT):
            await asyncio.sleep(0)
        await parts.links.close()
        await runner.cleanup()


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
