"""An agent's name server without the agent, in network namespaces of its own, and who asks it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import dns.message
import dns.query

from astra_agent import namespaces
from astra_agent.config import AgentConfig
from astra_agent.name_server import LINGER_S, NameServer
from astra_agent.wire import RunNames
from tests import cgroups

CGROUP = cgroups.own("name-server")
ASK_S = 5.0


@dataclass
class Machine:
    """An agent's name server, without the agent; *machine* and *slot* are network namespaces."""

    folder: Path
    netns: Path
    own: Path
    config: AgentConfig
    names: NameServer = field(init=False)
    _task: asyncio.Task[None] | None = None

    def start(self, linger_s: float = LINGER_S) -> None:
        self.names = NameServer(self.config, linger_s)

    def run(self) -> None:
        self._task = asyncio.create_task(self.names.run())

    async def crash(self) -> None:
        """The agent is gone; the process of the name server is not."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    @property
    def pid(self) -> int:
        return next(iter(pids(self.folder)))


def pids(folder: Path) -> Iterator[int]:
    """Of name servers with their control socket below *folder*."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = path.read_bytes().split(b"\0")
            if b"astra_dns" in words and any(word.startswith(os.fsencode(folder)) for word in words):
                yield int(path.parent.name)


@contextlib.asynccontextmanager
async def made(folder: Path) -> AsyncIterator[Machine]:
    """Below *folder*, which is short enough for a socket's path; nothing of it is left afterwards."""
    netns, own = folder / "machine", folder / "slot"
    for one in (netns, own):
        namespaces.make(one)
    config = AgentConfig(
        name="gpu-1", state_dir=folder, address="10.0.0.1", netns=netns, upstreams=("127.0.0.9",), cgroup_parent=CGROUP
    )
    machine = Machine(folder, netns, own, config)
    machine.start()
    machine.run()
    try:
        yield machine
    finally:
        await machine.crash()
        for pid in list(pids(folder)):
            os.kill(pid, signal.SIGKILL)
        cgroups.remove(CGROUP)
        for one in (netns, own):
            namespaces.remove(one)


def ask(netns: Path, address: str, name: str, *, tcp: bool = False) -> dns.message.Message:
    query = dns.message.make_query(name, "A")
    over = dns.query.tcp if tcp else dns.query.udp
    return namespaces.inside(netns, lambda: over(query, address, ASK_S))


def texts(message: dns.message.Message) -> list[str]:
    return [str(rdata) for rrset in message.answer for rdata in rrset]


def llama(address: str, *, workspace: str = "nlp", version: int = 1) -> RunNames:
    return RunNames(
        workspace=workspace, run="llama", addresses={"llama-0": (address,)}, leader="llama-0", port=29500, world_size=1,
        term=1, version=version,
    )  # fmt: skip


async def two_workspaces(machine: Machine) -> tuple[str, str]:
    """Slots of two workspaces with one run name on the machine's network; the addresses they ask."""
    first = await machine.names.serve("a", "nlp", machine.netns)
    second = await machine.names.serve("b", "vision", machine.netns)
    machine.names.publish("a", llama("10.0.0.1"))
    machine.names.publish("b", llama("10.0.9.9", workspace="vision"))
    await machine.names.settled()
    return first, second


class Storm(NamedTuple):
    """*refused* and *lost* of the questions, *slowest_s* of the answers."""

    answered: int
    refused: int
    lost: int
    slowest_s: float


def storm(netns: Path, address: str, for_s: float) -> Storm:
    """One question after the other on one socket."""

    def work() -> Storm:
        answered = refused = lost = 0
        slowest_s = 0.0
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asker:
            asker.settimeout(ASK_S)
            asker.connect((address, 53))
            asked_s = time.monotonic()
            end_s = asked_s + for_s
            while asked_s < end_s:
                try:
                    asker.send(dns.message.make_query("llama-0", "A").to_wire())
                    asker.recv(4096)
                    answered += 1
                    slowest_s = max(slowest_s, time.monotonic() - asked_s)
                except ConnectionRefusedError:
                    refused += 1
                except TimeoutError:
                    lost += 1
                asked_s = time.monotonic()
        return Storm(answered, refused, lost, slowest_s)

    return namespaces.inside(netns, work)
