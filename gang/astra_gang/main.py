"""`astra-coordinator --config coordinator.toml`: put the parts together, run until SIGTERM, end in order."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from aiohttp import web

from astra_agent.errors import AstraError, handling
from astra_gang.api import Api
from astra_gang.clock import BoottimeClock
from astra_gang.config import Config, load
from astra_gang.engines.agent_socket import AgentSocket
from astra_gang.engines.embedded import EmbeddedEngine
from astra_gang.follow import Follow
from astra_gang.intake import Intake
from astra_gang.ledger import Ledger
from astra_gang.link import Links
from astra_gang.listening import listening_socket
from astra_gang.loop import Loop, Settings
from astra_gang.roster import Roster
from astra_gang.sqlite_store import open_store
from astra_gang.streams import Streams
from astra_gang.tokens import read_token

_log = logging.getLogger(__name__)

_SHUTDOWN_S = 3.0
"""For requests that are under way."""
_LINE_MAX = 64 * 1024
"""Of a request's first line: the words of an exec are in it."""


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 0 after SIGTERM or SIGINT, else what `astra_agent.errors.HANDLING` says."""
    parser = argparse.ArgumentParser(prog="astra-coordinator", description="The gang coordinator of Astraeus.")
    parser.add_argument("--config", type=Path, required=True, help="TOML file; see gang/README.md")
    parser.add_argument("--debug", action="store_true", help="log what is ignored, too")
    options = parser.parse_args(arguments)
    _start_logging(options.debug)
    try:
        asyncio.run(_main(load(options.config)))
    except AstraError as error:
        print(f"astra-coordinator: {error}", file=sys.stderr)
        return handling(error).exit
    return 0


async def _main(config: Config) -> None:
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    async with coordinator(config):
        notify("READY=1")
        await stopping.wait()
        notify("STOPPING=1")
        _log.info("stopping")


@contextlib.asynccontextmanager
async def coordinator(config: Config) -> AsyncIterator[None]:
    """
    A coordinator that serves inside the block. Workers go on when it ends, in whatever way.

    Raises:
        InvalidRequest, Conflict, Unavailable: It can't start; one sentence says why.
    """
    operator = read_token("operator", config.operator_token_file, "operator_token_file")
    agent = read_token("agent", config.agent_token_file, "agent_token_file")
    doors = {name: AgentSocket(name, path) for name, path in (config.agents or {}).items()}
    async with contextlib.AsyncExitStack() as stack:
        sockets = [listening_socket(address) for address in config.listen]
        for listening in sockets:
            stack.callback(listening.close)
        store = await open_store(config.state_dir)
        stack.push_async_callback(store.close)
        for door in doors.values():
            stack.push_async_callback(door.close)
        term = await store.begin_term()
        loaded = await store.load()
        clock = BoottimeClock(loaded.readings)
        roster = Roster(clock)
        engine = EmbeddedEngine(store=store, clock=clock, roster=roster, doors=doors, book=loaded.book)
        settings = Settings(term, config.disconnect_limit_s, config.lost_margin_s, config.runs_kept)
        loop = Loop(
            clock=clock,
            store=store,
            engine=engine,
            roster=roster,
            ledger=Ledger(loaded.runs, loaded.last_event),
            settings=settings,
        )
        links = Links(
            inbox=loop,
            roster=roster,
            token=agent,
            term=term,
            disconnect_limit_s=config.disconnect_limit_s,
            machines=doors,
        )
        streams = Streams(links, agent)
        api = Api(
            clock=clock,
            engine=engine,
            loop=loop,
            intake=Intake(clock=clock, engine=engine, loop=loop, drives=config.drives, settings=config.policy),
            follow=Follow(clock=clock, store=store, loop=loop, streams=streams),
            workspaces=config.workspaces,
            machines=doors,
            term=term,
        )
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(engine.run()), group.create_task(loop.run(links))]
            try:
                async with _served(api.application(links, streams, operator), sockets, links):
                    _log.info("serving term=%d runs=%d listen=%s", term, len(loaded.runs), _where(config))
                    yield
            finally:
                for task in tasks:
                    task.cancel()


@contextlib.asynccontextmanager
async def _served(app: web.Application, sockets: Sequence[socket.socket], links: Links) -> AsyncIterator[None]:
    runner = web.AppRunner(
        app, handler_cancellation=True, access_log=None, shutdown_timeout=_SHUTDOWN_S, max_line_size=_LINE_MAX
    )
    await runner.setup()
    try:
        for listening in sockets:
            await web.SockSite(runner, listening).start()
        yield
    finally:
        await links.close()
        await runner.cleanup()


def notify(message: str) -> None:
    """Tell systemd, when it started us and wants to know (sd_notify)."""
    where = os.environ.get("NOTIFY_SOCKET")
    if not where:
        return
    address = "\0" + where[1:] if where.startswith("@") else where
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as told:
            told.connect(address)
            told.sendall(message.encode())
    except OSError as error:
        _log.warning("not_notified socket=%s reason=%r", where, str(error))


def _where(config: Config) -> str:
    return ",".join(f"{a.host}:{a.port}" + (f"@{a.netns}" if a.netns else "") for a in config.listen)


def _start_logging(debug: bool) -> None:
    """Standard error, one line an event; whoever started us adds the time."""
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.DEBUG if debug else logging.INFO,
        format="level=%(levelname)s part=%(name)s %(message)s",
    )
    for chatty in ("asyncio", "aiohttp.access"):
        logging.getLogger(chatty).setLevel(logging.WARNING)


if __name__ == "__main__":
    sys.exit(main())
