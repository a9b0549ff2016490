"""
The process that a dev cluster lives by: it brings the cluster up, keeps its daemons running, answers `astra dev …`, and
takes everything down when it is told to, by Ctrl-C, SIGTERM or `astra dev stop`, at whatever moment that comes.

A supervisor that is killed leaves daemons and workers running; the next one takes them over (`Cluster.start`), and
`astra dev stop` removes them without one.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from astra_agent.errors import HostFault, Unauthorized
from astra_cli.dev import control, lock, sweep
from astra_cli.dev.cluster import Cluster
from astra_cli.dev.network import Link
from astra_cli.dev.plan import ClusterPlan, Layout
from astra_cli.dev.requests import Boot, Kill, LinkRequest, Request

Json = dict[str, Any]
Say = Callable[[str], None]

STOP_S = 60.0
"""How long a supervisor may take to stop, before `astra dev stop` ends it and does its work."""

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(slots=True)
class Supervisor:
    plan: ClusterPlan
    layout: Layout
    say: Say
    port: int = 0
    wish: asyncio.Event = field(default_factory=asyncio.Event)
    interrupted: bool = False
    cluster: Cluster = field(init=False)

    def __post_init__(self) -> None:
        self.cluster = Cluster(self.plan, self.layout, self.say, self.port)

    async def run(self, work: Callable[[Cluster], Awaitable[None]]) -> None:
        """
        Bring the cluster up, do *work* with it, and serve until that has ended or somebody wants it to stop: then the
        work is cancelled first. Nothing is left when it returns or raises; the process, which has only its end before
        it, ignores Ctrl-C from then on.

        Raises: Conflict when one runs already; whatever kept it from starting, or the work raised; HostFault when
            something does not go.
        """
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, self._stop, number)
        with lock.held(self.layout):
            serving = asyncio.create_task(self._serve(work), name="cluster")
            wish = asyncio.create_task(self.wish.wait(), name="wish")
            try:
                await asyncio.wait({serving, wish}, return_when=asyncio.FIRST_COMPLETED)
                if serving.done():
                    serving.result()
                self.say("stopping: workers, agents, containerd, networks")
            finally:
                self.wish.set()
                serving.cancel()
                await asyncio.wait({serving, wish})
                await self.cluster.stop()
                for number in _SIGNALS:
                    loop.remove_signal_handler(number)
                    signal.signal(number, signal.SIG_IGN)

    async def _serve(self, work: Callable[[Cluster], Awaitable[None]]) -> None:
        await self.cluster.start()
        server = await control.serve(self.layout, self._handle)
        try:
            await work(self.cluster)
        finally:
            server.close()

    def _stop(self, number: int) -> None:
        if self.wish.is_set():
            self.say("still cleaning up, a moment")
        self.interrupted = self.interrupted or number == signal.SIGINT
        self.wish.set()

    async def _handle(self, request: Request) -> Json:
        match request:
            case LinkRequest(machine=name, rate_bit_s=rate, up=up):
                self.plan.machine(name)
                link: Link = await self.cluster.link(name, rate, up)
                return {"machine": name, "rate_bit_s": link.rate_bit_s, "up": link.up}
            case Kill(machine=name):
                self.plan.machine(name)
                await self.cluster.kill_machine(name)
                return {"machine": name, "off": True}
            case Boot(machine=name):
                self.plan.machine(name)
                await self.cluster.start_machine(name)
                return {"machine": name, "off": False}
        return self.cluster.status()


async def until_stopped() -> None:
    """Work of no end of its own."""
    await asyncio.Event().wait()


def require_root() -> None:
    """Raises: Unauthorized."""
    if os.geteuid() != 0:
        raise Unauthorized("a dev cluster needs root, for network namespaces, mounts and cgroups; use sudo")


def stop(layout: Layout, say: Say) -> bool:
    """
    End the cluster of this state folder, with or without a supervisor; blocks until nothing is left.

    Returns: whether there was anything.
    Raises: HostFault: something does not go.
    """
    require_root()
    pid = lock.holder(layout)
    if pid > 0:
        _signal(pid, signal.SIGTERM)
        if not _ends(layout):
            say(f"its supervisor, process {pid}, does not stop; it is killed")
            _signal(pid, signal.SIGKILL)
    if not layout.state.is_dir():
        return False
    with lock.held(layout, timeout_s=10.0):
        left = sweep.is_left(layout)
        if left:
            say("a cluster was killed: what it left is removed")
            sweep.sweep(layout)
        return left or pid > 0


def _ends(layout: Layout) -> bool:
    with suppress(Exception), lock.held(layout, timeout_s=STOP_S):
        return True
    return False


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return
    except PermissionError as error:
        raise HostFault(f"the supervisor, process {pid}, belongs to somebody else") from error
