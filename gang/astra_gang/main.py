"""`astra-coordinator --config coordinator.toml`: put the parts together, run until SIGTERM, end in order."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import signal
import sys
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from astra_agent.errors import AstraError, first_of, handling
from astra_agent.service_manager import ServiceManager, told
from astra_gang.assembly import Parts, assemble, serving
from astra_gang.clock import BoottimeClock
from astra_gang.config import Config, load
from astra_gang.footing import open_footing
from astra_gang.listening import listening_socket
from astra_gang.tokens import read_token

_STANDBY_S = 10.0
_WAITS = "waits: another coordinator is active, or Nomad does not answer"

_log = logging.getLogger("astra_gang.main")  # also when it is run as a script


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 0 after SIGTERM or SIGINT, else what `astra_agent.errors.HANDLING` says."""
    parser = argparse.ArgumentParser(prog="astra-coordinator", description="The gang coordinator of Astraeus.")
    parser.add_argument("--config", type=Path, required=True, help="TOML file; see gang/README.md")
    parser.add_argument("--debug", action="store_true", help="log what is ignored, too")
    options = parser.parse_args(arguments)
    _start_logging(options.debug)
    try:
        with told() as manager:
            asyncio.run(_main(load(options.config), manager))
    except (AstraError, BaseExceptionGroup) as error:
        cause = first_of(error)
        if not isinstance(cause, AstraError):
            raise
        print(f"astra-coordinator: {cause}", file=sys.stderr)
        return handling(cause).exit
    return 0


async def _main(config: Config, manager: ServiceManager) -> None:
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    serving: asyncio.Future[Parts] = asyncio.get_running_loop().create_future()
    watched = asyncio.create_task(_watched(manager, serving))
    try:
        async with coordinator(config) as parts:
            serving.set_result(parts)
            manager.ready(parts.status())
            await stopping.wait()
            manager.stopping()
            _log.info("stopping")
    finally:
        watched.cancel()


async def _watched(manager: ServiceManager, serving: asyncio.Future[Parts]) -> None:
    """One that waits for the office of another does what it is there for: it is ready, and says that it waits."""
    await asyncio.wait([serving], timeout=_STANDBY_S)
    if not serving.done():
        manager.ready(_WAITS)
    await manager.watched(lambda: serving.result().status() if serving.done() else _WAITS)


@contextlib.asynccontextmanager
async def coordinator(config: Config) -> AsyncIterator[Parts]:
    """
    A coordinator that serves inside the block. Workers go on when it ends, in whatever way.

    Raises:
        InvalidRequest, Conflict, Unavailable: It can't start; one sentence says why.
    """
    operator = read_token("operator", config.operator_token_file, "operator_token_file")
    agent = read_token("agent", config.agent_token_file, "agent_token_file")
    async with contextlib.AsyncExitStack() as stack:
        footing = await stack.enter_async_context(open_footing(config))
        sockets = [listening_socket(address) for address in config.listen]
        for listening in sockets:
            stack.callback(listening.close)
        term = await footing.store.begin_term()
        loaded = await footing.store.load()
        clock = BoottimeClock(loaded.readings, shared=footing.shared)
        parts = await assemble(
            config, clock=clock, footing=footing, loaded=loaded, term=term, operator=operator, agent=agent
        )
        await stack.enter_async_context(serving(parts, sockets))
        _log.info("serving term=%d runs=%d listen=%s", term, len(loaded.runs), _where(config))
        yield parts


def _where(config: Config) -> str:
    return ",".join(f"{a.host}:{a.port}" + (f"@{a.netns}" if a.netns else "") for a in config.listen)


def _start_logging(debug: bool) -> None:
    """Standard error, one line for an event, times in UTC."""
    formatter = logging.Formatter(
        "time=%(asctime)s.%(msecs)03dZ level=%(levelname)s part=%(name)s %(message)s", "%Y-%m-%dT%H:%M:%S"
    )
    formatter.converter = time.gmtime
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    logging.basicConfig(handlers=[handler], level=logging.DEBUG if debug else logging.INFO)
    for chatty in ("asyncio", "aiohttp.access"):
        logging.getLogger(chatty).setLevel(logging.WARNING)


if __name__ == "__main__":
    sys.exit(main())
