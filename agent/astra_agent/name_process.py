"""Starting the name server's process, so that it outlives the agent."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from astra_agent.errors import HostFault


@dataclass(slots=True)
class NameProcess:
    """A child by its number; nothing ends it when this object goes, unlike one of `subprocess` or asyncio."""

    pid: int
    ended: bool = False

    def is_running(self) -> bool:
        """Whether it does; one that has ended is no zombie after this."""
        if not self.ended:
            try:
                self.ended = os.waitpid(self.pid, os.WNOHANG)[0] == self.pid
            except ChildProcessError:
                self.ended = True
        return not self.ended


def start(words: Sequence[str], log_path: Path) -> NameProcess:
    """`python -m astra_dns` in a session of its own, with its output behind *log_path*'s. Raises: HostFault."""
    out = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    actions = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, str(log_path), out, 0o600),
        (os.POSIX_SPAWN_DUP2, 1, 2),
    ]
    command = (sys.executable, "-P", "-m", "astra_dns", *words)
    try:
        return NameProcess(os.posix_spawn(command[0], command, os.environ, file_actions=actions, setsid=True))
    except OSError as error:
        raise HostFault(f"the name server can't be started: {error.strerror}") from error
