"""The name server's process, made so that it outlives the agent."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from astra_agent import cgroup_names, processes
from astra_agent.config import AgentConfig
from astra_agent.errors import HostFault
from astra_agent.name_places import PORT
from astra_dns.channel import Message
from astra_dns.client import Client

_START_S = 10.0
_LOOK_EVERY_S = 0.02


@dataclass(slots=True)
class NameProcess:
    """A child by its number; nothing ends it when this object goes, unlike one of `subprocess` or asyncio."""

    pid: int
    log_path: Path
    ended: bool = False

    def is_running(self) -> bool:
        """Whether it does; one that has ended is no zombie after this."""
        if not self.ended:
            try:
                self.ended = os.waitpid(self.pid, os.WNOHANG)[0] == self.pid
            except ChildProcessError:
                self.ended = True
        return not self.ended

    async def connect(self, control: Path) -> Client:
        """Once it listens. Raises: HostFault when it does not."""
        deadline_s = time.monotonic() + _START_S
        while time.monotonic() < deadline_s and self.is_running():
            with contextlib.suppress(OSError):
                return Client(control)
            await asyncio.sleep(_LOOK_EVERY_S)
        raise HostFault(f"the name server does not start; see {self.log_path}")

    async def ended_within(self, limit_s: float) -> bool:
        """Whether it has, after *limit_s* at most."""
        deadline_s = time.monotonic() + limit_s
        while self.is_running() and time.monotonic() < deadline_s:  # noqa: ASYNC110 -- an end makes no event
            await asyncio.sleep(_LOOK_EVERY_S)
        return self.ended


def settings(config: AgentConfig) -> Message:
    """What a server says of itself when it was started with this configuration."""
    return {
        "zone": config.zone, "server": config.name_server, "upstreams": list(config.upstreams),
        "upstream_port": PORT, "root": "/",
    }  # fmt: skip


def start(config: AgentConfig, control: Path) -> NameProcess:
    """
    `python -m astra_dns` in a session and a cgroup of its own, so that a service manager which stops the agent leaves
    it; its output is added to a log in state_dir. Raises: HostFault.
    """
    words = ["--control", str(control), "--zone", config.zone, "--server", config.name_server]
    for upstream in config.upstreams:
        words += ["--upstream", upstream]
    log_path = config.state_dir / "names.log"
    actions = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, str(log_path), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
        (os.POSIX_SPAWN_DUP2, 1, 2),
    ]
    command = (sys.executable, "-P", "-m", "astra_dns", *words)
    try:
        pid = os.posix_spawn(command[0], command, os.environ, file_actions=actions, setsid=True)
    except OSError as error:
        raise HostFault(f"the name server can't be started: {error.strerror}") from error
    processes.move_to_cgroup(pid, cgroup_names.beside(config.cgroup_driver, config.cgroup_parent, "names"))
    return NameProcess(pid, log_path)
