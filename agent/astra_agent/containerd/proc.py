"""
Processes and cgroups of this machine, read from `/proc` and `/sys/fs/cgroup`. Asks containerd nothing, so it works
while containerd is away. What is gone by the time it is looked at is left out, never an error.
"""

from __future__ import annotations

import ctypes
import errno
import os
import signal
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from astra_agent.containerd.stopping import Process

_GONE = (FileNotFoundError, ProcessLookupError)

_libc = ctypes.CDLL(None, use_errno=True)
_libc.sigqueue.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_void_p)


@dataclass(frozen=True, slots=True)
class Cgroups:
    """
    Where the cgroups of this machine are mounted.

    Attributes:
        version: 2 on the unified hierarchy; 1 also for the hybrid one, where the controllers are on version 1.
        roots: A directory for each hierarchy that runtimes make directories in. Any of them knows all processes.
    """

    version: Literal[1, 2]
    roots: tuple[Path, ...]

    @staticmethod
    def of_this_machine(mount: Path = Path("/sys/fs/cgroup")) -> Cgroups:
        if (mount / "cgroup.controllers").exists():
            return Cgroups(2, (mount,))
        roots = sorted(path for path in mount.iterdir() if (path / "cgroup.procs").exists() and not path.is_symlink())
        return Cgroups(1, tuple(roots))

    def directories(self, path: str) -> list[Path]:
        """The directories of the cgroup *path* that exist, one for each hierarchy."""
        found = (root / path.lstrip("/") for root in self.roots)
        return [directory for directory in found if directory.is_dir()]

    def processes(self, path: str) -> list[int]:
        """The processes in it, of any hierarchy, without those of cgroups inside of it."""
        pids: set[int] = set()
        for directory in self.directories(path):
            with suppress(*_GONE, OSError):  # OSError: it was removed while it was open (ENODEV)
                pids.update(map(int, (directory / "cgroup.procs").read_text().split()))
        return sorted(pids)

    def out_of_memory_kills(self, path: str) -> int:
        """How many of its processes the kernel killed for want of memory. 0 when the cgroup is gone."""
        file = "memory.events" if self.version == 2 else "memory.oom_control"
        for directory in self.directories(path):
            with suppress(*_GONE, OSError):
                for line in (directory / file).read_text().splitlines():
                    key, _, value = line.partition(" ")
                    if key == "oom_kill":
                        return int(value)
        return 0

    def remove(self, path: str) -> None:
        """Remove the empty directories of that cgroup. One that still has processes is left."""
        for directory in self.directories(path):
            with suppress(OSError):
                directory.rmdir()


def status(pid: int) -> dict[str, str]:
    """The fields of `/proc/<pid>/status`; empty when there is no such process."""
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except _GONE:
        return {}
    pairs = (line.partition(":") for line in text.splitlines())
    return {key: value.strip() for key, _, value in pairs}


def process(pid: int) -> Process | None:
    """What a stop must know of a process of a container; None when it is gone, or in no container."""
    fields = status(pid)
    if len(_namespace_pids(fields)) < 2:
        return None
    term = 1 << (signal.SIGTERM - 1)
    handled = int(fields["SigCgt"], 16) | int(fields["SigBlk"], 16)
    return Process(
        pid=pid,
        parent=int(fields["PPid"]),
        inner_pid=int(_namespace_pids(fields)[1]),
        handles_term=bool(handled & term),
        zombie=fields["State"].startswith("Z"),
        reads=_pipe(pid, 0),
        writes=frozenset({_pipe(pid, 1), _pipe(pid, 2)} - {""}),
    )


def _pipe(pid: int, descriptor: int) -> str:
    try:
        link = str(Path(f"/proc/{pid}/fd/{descriptor}").readlink())
    except OSError:
        return ""
    return link if link.startswith("pipe:") else ""


def is_init(pid: int) -> bool:
    """Whether it is the first process of a PID namespace below this one."""
    return _namespace_pids(status(pid))[1:2] == ["1"]


def _namespace_pids(fields: dict[str, str]) -> list[str]:
    """The IDs of a process: on the machine, in its container, in namespaces that were made inside of that."""
    return fields.get("NSpid", "").split()


def runs(pid: int, program: str) -> bool:
    """Whether it was started as *program*."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().startswith(program.encode() + b"\0")
    except _GONE:
        return False


def session(pid: int) -> int:
    """The session that a process belongs to; 0 when it is gone."""
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return 0


def send(pid: int, number: int, cgroup: str) -> None:
    """Send a signal, if the process is (still) one of *cgroup*: an ID that was given away again is safe."""
    try:
        handle = os.pidfd_open(pid)
    except OSError as error:
        # One that is just being reaped is no process any more, and still an ID: EINVAL or ENOENT, by kernel.
        if error.errno in (errno.ESRCH, errno.EINVAL, errno.ENOENT):
            return
        raise
    try:
        if _is_in(pid, cgroup):
            signal.pidfd_send_signal(handle, number)
    except ProcessLookupError:
        pass
    finally:
        os.close(handle)


def signal_program(cgroups: Cgroups, cgroup: str, number: int, init_program: str) -> None:
    """
    Send a signal to the program of a container. It goes to its init, which passes it on; what init can't pass on goes
    to every other process itself. A container that has not started, or has ended, hears nothing.
    """
    pids = cgroups.processes(cgroup)
    init = next((pid for pid in pids if is_init(pid)), 0)
    if not init or not runs(init, init_program):
        return
    passed_on = number not in (signal.SIGKILL, signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)
    for pid in [init] if passed_on else [pid for pid in pids if pid != init]:
        send(pid, number, cgroup)


def queue(pid: int, number: int, value: int) -> None:
    """Send a real-time signal with a value. A process that is gone is no error."""
    if _libc.sigqueue(pid, number, value) != 0:
        code = ctypes.get_errno()
        with suppress(ProcessLookupError):
            raise OSError(code, os.strerror(code))


def _is_in(pid: int, cgroup: str) -> bool:
    try:
        lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    except _GONE:
        return False
    paths = (line.split(":", 2)[2] for line in lines)
    return any(path == cgroup or path.startswith(f"{cgroup}/") for path in paths)
