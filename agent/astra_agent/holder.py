"""
A process of its own that holds a slot's FIFOs open for writing while there is no agent: it does nothing else, and ends
with the slot. It is outside of the agent's control group, so that a service manager which stops the agent leaves it.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
from pathlib import Path

from astra_agent import processes


class Holder:
    """
    Args:
        file: Says which process it is; written here.
        slot: Its name is in the process's environment, for whoever finds it.
    """

    def __init__(self, file: Path, slot: str, cgroup_parent: str) -> None:
        self._file = file
        self._slot = slot
        self._cgroup = f"{cgroup_parent.rstrip('/')}/holders"
        self._descriptors: dict[str, int] = {}

    def hold(self, name: str, descriptor: int) -> None:
        """Hold this FIFO as well. One that is held by the process of an earlier agent is held already."""
        self._descriptors[name] = descriptor
        pid, held = self._read()
        if name in held and _holds(pid, descriptor):
            return
        self._replace(pid)

    def end(self) -> None:
        """Idempotent."""
        _end(self._read()[0])
        self._file.unlink(missing_ok=True)

    def _replace(self, before: int) -> None:
        """The new one is there before the old one ends. Without the program nothing is held, and the agent does it."""
        sleep = shutil.which("sleep")
        if sleep is None:
            return
        copies = [os.dup(descriptor) for descriptor in self._descriptors.values()]
        try:
            for copy in copies:
                os.set_inheritable(copy, True)
            pid = os.posix_spawn(
                sleep,
                [sleep, "infinity"],
                {"ASTRA_HOLDS_FOR": self._slot},
                file_actions=[(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in (0, 1, 2)],
                setsid=True,
            )
        finally:
            for copy in copies:
                os.close(copy)
        processes.move_to_cgroup(pid, self._cgroup)
        self._file.write_text(json.dumps({"pid": pid, "held": sorted(self._descriptors)}))
        _end(before)

    def _read(self) -> tuple[int, list[str]]:
        try:
            document = json.loads(self._file.read_text())
            pid = int(document["pid"])
        except (OSError, ValueError, KeyError):
            return 0, []
        return (pid, document["held"]) if self._is_mine(pid) else (0, [])

    def _is_mine(self, pid: int) -> bool:
        """An ID may have been given to another process since."""
        try:
            environment = Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            return False
        return f"ASTRA_HOLDS_FOR={self._slot}".encode() in environment.split(b"\0")


def _holds(pid: int, descriptor: int) -> bool:
    """Whether it has the same file open, and not one of that name that was there before."""
    mine = os.fstat(descriptor)
    for link in Path(f"/proc/{pid}/fd").glob("*"):
        with contextlib.suppress(OSError):
            there = link.stat()
            if (there.st_dev, there.st_ino) == (mine.st_dev, mine.st_ino):
                return True
    return False


def _end(pid: int) -> None:
    if pid:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)
