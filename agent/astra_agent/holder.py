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
from collections.abc import Callable, Iterator
from pathlib import Path

from astra_agent import processes

_SLOT, _STATE = "ASTRA_HOLDS_FOR", "ASTRA_STATE_DIR"


def sweep(state_dir: Path, is_unknown: Callable[[str], bool], proc: Path = Path("/proc")) -> None:
    """
    End what an agent before this one has left that holds for nobody: for a slot that is not there (any more), or beside
    the one that the slot's file names. Those of another agent on this machine are another's.
    """
    for pid, slot in _of_agent(state_dir, proc):
        if is_unknown(slot) or pid != _pid_in(_file(state_dir, slot)):
            _end(pid)


def _of_agent(state_dir: Path, proc: Path) -> Iterator[tuple[int, str]]:
    for path in proc.glob("[0-9]*/environ"):
        variables = _environment(path)
        if variables.get(_STATE) == str(state_dir) and _SLOT in variables:
            yield int(path.parent.name), variables[_SLOT]


class Holder:
    """
    Args:
        state_dir: The agent's own; which process it is stands in a file of the slot's there.
        slot: Its name is in the process's environment, for whoever finds it.
        cgroup: Where the process is put.
    """

    def __init__(self, state_dir: Path, slot: str, cgroup: str) -> None:
        self._state_dir = state_dir
        self._file = _file(state_dir, slot)
        self._slot = slot
        self._cgroup = cgroup
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
                {_SLOT: self._slot, _STATE: str(self._state_dir)},
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
        variables = _environment(Path(f"/proc/{pid}/environ"))
        return (variables.get(_SLOT), variables.get(_STATE)) == (self._slot, str(self._state_dir))


def _file(state_dir: Path, slot: str) -> Path:
    return state_dir / "slots" / slot / "holder.json"


def _pid_in(file: Path) -> int:
    try:
        return int(json.loads(file.read_text())["pid"])
    except (OSError, ValueError, KeyError):
        return 0


def _environment(path: Path) -> dict[str, str]:
    try:
        words = path.read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return {}
    return dict(word.split("=", 1) for word in words if "=" in word)


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
