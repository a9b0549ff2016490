"""
`python -m astra_dns`: the name server of one machine, as a process of its own.

Of its own, so that nothing its agent does makes an answer late, and an agent that is killed takes no name with it. It
runs until it is told to stop, or until its control socket's file is gone: with it the last who could tell it anything.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import itertools
import logging
import os
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from astra_dns import resolv_conf
from astra_dns.channel import Message
from astra_dns.control import Control
from astra_dns.counters import Counters
from astra_dns.forward import Forwarder
from astra_dns.records import Draft
from astra_dns.selector import PromptSelector
from astra_dns.server import Server

log = logging.getLogger(__name__)

LOOK_EVERY_S = 1.0
"""At the machine's resolv.conf, and at our own control socket's file."""
NICENESS = -10
COLLECT_EVERY = 60
"""Looks between two searches for cycles, which time-outs leave behind; names are not searched."""


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="ts=%(asctime)s level=%(levelname)s at=%(name)s event=%(message)s"
    )
    # A search for cycles among 100,000 names would take a tenth of a second.
    gc.disable()
    with contextlib.suppress(PermissionError):
        # It needs little and is waited for by every program, on machines whose processors data loaders keep busy.
        os.setpriority(os.PRIO_PROCESS, 0, NICENESS)
    selector = PromptSelector()
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selector)) as runner:
        runner.run(_run(options, selector))
    return 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="astra_dns", description="The name server of one machine.")
    parser.add_argument("--control", type=Path, required=True, help="the unix socket it is told things on")
    parser.add_argument("--zone", default="astra.internal", help="the cluster's zone")
    parser.add_argument("--server", default="169.254.53.53", help="the address that the zone's NS record shows")
    parser.add_argument("--upstream", action="append", default=[], help="instead of the machine's own servers")
    parser.add_argument("--upstream-port", type=int, default=53)
    parser.add_argument("--root", type=Path, default=Path("/"), help="where etc/resolv.conf is looked for")
    return parser.parse_args(arguments)


async def _run(options: argparse.Namespace, selector: PromptSelector) -> None:
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    counters = Counters()
    draft = Draft(options.zone, options.server)
    forwarder = Forwarder(counters, port=options.upstream_port)
    server = Server(draft.freeze(), forwarder, counters, selector)
    control = Control(draft, server, forwarder, counters, settings(options), stopped.set)
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(_accept(options.control, control)),
                group.create_task(_look(options, server, forwarder, control, stopped)),
            ]
            await stopped.wait()
            for task in tasks:
                task.cancel()
    finally:
        await server.close()
        await forwarder.close()


def settings(options: argparse.Namespace) -> Message:
    """What makes two processes do the same, for whoever compares; the control socket is where they differ."""
    return {
        "zone": options.zone,
        "server": options.server,
        "upstreams": options.upstream,
        "upstream_port": options.upstream_port,
        "root": str(options.root),
    }


async def _accept(path: Path, control: Control) -> None:
    loop = asyncio.get_running_loop()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.setblocking(False)
        path.unlink(missing_ok=True)
        listening.bind(str(path))
        path.chmod(0o600)
        listening.listen(8)
        log.info("names_up control=%s", path)
        async with asyncio.TaskGroup() as connections:
            while True:
                connection, _ = await loop.sock_accept(listening)
                connection.setblocking(False)
                connections.create_task(control.serve(connection))


async def _look(
    options: argparse.Namespace, server: Server, forwarder: Forwarder, control: Control, stopped: asyncio.Event
) -> None:
    for second in itertools.count():
        own = frozenset({options.server, *(sock.getsockname()[0] for _, sock in server.sockets.values())})
        forwarder.set_upstreams(options.upstream or machine_upstreams(options.root, own))
        if second % COLLECT_EVERY == 0 and not control.is_busy:
            gc.collect(1)
        await asyncio.sleep(LOOK_EVERY_S)
        if not options.control.exists():
            log.info("names_down reason=the control socket is gone")
            stopped.set()


def machine_upstreams(root: Path, own: frozenset[str]) -> tuple[str, ...]:
    """The servers in the machine's files, without our own addresses."""
    return resolv_conf.upstreams(_text(root / "etc/resolv.conf"), _text(root / "run/systemd/resolve/resolv.conf"), own)


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
