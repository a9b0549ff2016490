"""
What a dev cluster leaves on this machine when it, or all of it, is killed: found and removed without asking anybody.

Ours is a process that names a file of this cluster's state folder as its configuration, its containerd or its runtime's
root; a cgroup below the cluster's; a mount below its folders. Nothing else is touched. All of it blocks, all of it is
idempotent.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from astra_agent import namespaces
from astra_agent.containerd import leftovers
from astra_agent.containerd.private import PrivateContainerd
from astra_agent.containerd.proc import Cgroups
from astra_agent.errors import HostFault
from astra_cli.dev.plan import Layout

TERM_S = 5.0
"""From SIGTERM to SIGKILL for daemons. They survive SIGKILL; the wait is for a tidy last line in their logs."""
GONE_S = 10.0
"""How long killed processes, and cgroups that they were in, may take to go."""

_FLAGS = ("--config", "-address", "--address", "--root", "--control")
_GONE = (FileNotFoundError, ProcessLookupError, PermissionError)


def sweep(layout: Layout) -> None:
    """
    End and remove everything that runs: daemons, workers, containerd, mounts, namespaces, cgroups, the run folder.

    Records, images and logs stay.

    Raises: HostFault: something does not go; all the rest is gone.
    """
    resisting: list[str] = []
    end_processes(daemons(layout))
    containerd = PrivateContainerd(layout.containerd)
    containerd.kill()
    end_processes(ours(layout))
    end_cgroup(layout.cgroup, resisting)
    try:
        leftovers.clean(containerd.root, containerd.state, containerd.socket, containerd.runc_root)
    except HostFault as fault:
        resisting.append(str(fault))
    unmount_below(layout)
    remove_namespaces(layout)
    shutil.rmtree(layout.run, ignore_errors=True)
    layout.client_file.unlink(missing_ok=True)
    if resisting:
        raise HostFault(f"not all of the dev cluster could be removed: {'; '.join(resisting)}")


def is_left(layout: Layout) -> bool:
    """Whether anything of a cluster runs or is mounted, with or without a supervisor."""
    return bool(layout.run.exists() or ours(layout) or mounts_below(layout) or cgroup_directories(layout.cgroup))


def daemons(layout: Layout) -> list[int]:
    """The coordinator and the agents."""
    configs = {str(layout.coordinator / "coordinator.toml").encode()}
    configs |= {str(path).encode() for path in (layout.state / "machines").glob("*/agent.toml")}
    return [pid for pid, words in _processes() if any(_value(words, "--config") == config for config in configs)]


def ours(layout: Layout) -> list[int]:
    """Every process outside of containers: daemons, containerd, shims, runtimes."""
    below = f"{layout.state}/".encode()
    return [
        pid for pid, words in _processes() if any(_value(words, flag).startswith(below) for flag in _FLAGS)
    ]  # fmt: skip


def shims(namespace: str) -> list[int]:
    """Of one machine: it has a containerd namespace of its own."""
    return [
        pid
        for pid, words in _processes()
        if b"containerd-shim" in words[0] and _value(words, "-namespace") == namespace.encode()
    ]


def cut_power(layout: Layout, machine: str) -> None:
    """
    End every worker of one machine at once, with its shims; containerd goes on for the others.

    Raises: HostFault: a process does not die.
    """
    namespace = layout.containerd_namespace(machine)
    sockets = shim_sockets(layout)
    end_processes(shims(namespace), term_s=0)
    resisting: list[str] = []
    end_cgroup(layout.machine_cgroup(machine), resisting)
    remove_dead(sockets)
    if resisting:
        raise HostFault(resisting[0])


def shim_sockets(layout: Layout) -> list[Path]:
    """Of every container that containerd knows, whether its shim lives or not."""
    bundles = PrivateContainerd(layout.containerd).state.glob("io.containerd.runtime.v2.task/*/*")
    return [path for bundle in bundles for path in leftovers.shim_sockets(bundle)]


def remove_dead(sockets: list[Path]) -> None:
    """Remove those that nobody listens on any more; containerd forgets the ones of shims that were killed."""
    for path in sockets:
        with socket.socket(socket.AF_UNIX) as probe:
            try:
                probe.connect(str(path))
            except ConnectionRefusedError:
                path.unlink(missing_ok=True)
            except OSError:
                continue


def end_processes(pids: list[int], term_s: float = TERM_S) -> None:
    """SIGTERM, then SIGKILL; returns when they are gone or `GONE_S` have passed."""
    handles = dict(_pidfds(pids))
    for number, patience_s in ((signal.SIGTERM, term_s), (signal.SIGKILL, GONE_S)):
        if not patience_s:
            continue
        for handle in handles.values():
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(handle, number)
        deadline = time.monotonic() + patience_s
        while any(_runs(pid) for pid in handles) and time.monotonic() < deadline:
            time.sleep(0.02)
    for handle in handles.values():
        os.close(handle)


def end_cgroup(path: str, resisting: list[str]) -> None:
    """SIGKILL to every process in it and below, thawing what is frozen; then the directories go, deepest first."""
    deadline = time.monotonic() + GONE_S
    while pids := cgroup_processes(path):
        if time.monotonic() > deadline:
            resisting.append(f"processes {', '.join(map(str, pids))} in {path} do not die, they wait in the kernel")
            return
        _thaw(path)
        end_processes(pids, term_s=0)
    while (left := cgroup_directories(path)) and time.monotonic() < deadline:
        for directory in left:
            with suppress(OSError):
                directory.rmdir()
        if cgroup_directories(path):
            time.sleep(0.05)
    if left := cgroup_directories(path):
        resisting.append(f"the cgroup {left[-1]} is busy")


def cgroup_directories(path: str) -> list[Path]:
    """In every hierarchy, the deepest first."""
    tops = Cgroups.of_this_machine().directories(path)
    return [Path(found) for top in tops for found, _, _ in os.walk(top, topdown=False)]


def cgroup_processes(path: str) -> list[int]:
    pids: set[int] = set()
    for directory in cgroup_directories(path):
        with suppress(OSError):
            pids.update(map(int, (directory / "cgroup.procs").read_text().split()))
    return sorted(pids)


def mounts_below(layout: Layout) -> list[str]:
    """Where something is mounted in the cluster's folders, in the order of mounting."""
    points = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return [point for point in points if Path(point).is_relative_to(layout.state)]


def unmount_below(layout: Layout) -> None:
    for point in reversed(mounts_below(layout)):
        subprocess.run(["umount", "--lazy", point], check=False, stderr=subprocess.DEVNULL)


def remove_namespaces(layout: Layout) -> None:
    for path in (layout.run / "net").glob("*"):
        namespaces.remove(path)


def _thaw(path: str) -> None:
    for directory in cgroup_directories(path):
        for file, value in (("freezer.state", "THAWED"), ("cgroup.freeze", "0")):
            with suppress(OSError):
                if (directory / file).exists():
                    (directory / file).write_text(value)


def _processes() -> Iterator[tuple[int, list[bytes]]]:
    """Every process but this one, with the words of its command line."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            words = path.read_bytes().split(b"\0")
            if words[0] and int(path.parent.name) != os.getpid():
                yield int(path.parent.name), words


def _value(words: list[bytes], flag: str) -> bytes:
    """What follows *flag* in a command line; empty when it is not there."""
    with suppress(ValueError, IndexError):
        return words[words.index(flag.encode()) + 1]
    return b""


def _pidfds(pids: list[int]) -> Iterator[tuple[int, int]]:
    """A handle means this process, also when its number has been given to another."""
    for pid in pids:
        with suppress(*_GONE):
            yield pid, os.pidfd_open(pid)


def _runs(pid: int) -> bool:
    """A zombie has ended; its parent has only not looked yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except (OSError, IndexError):
        return False
