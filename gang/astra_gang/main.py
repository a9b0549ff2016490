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
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from astra_agent.errors import AstraError, handling
from astra_gang.assembly import assemble, serving
from astra_gang.clock import BoottimeClock
from astra_gang.config import Config, load
from astra_gang.footing import open_footing
from astra_gang.listening import listening_socket
from astra_gang.tokens import read_token

_log = logging.getLogger("astra_gang.main")  # also when it is run as a script


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
        yield


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
