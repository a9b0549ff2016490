"""
What a containerd that was killed leaves on a machine, and how all of it goes away: shims, containers, cgroups, mounts,
sockets. Works from what is in its folders, asks nobody, and goes on to the end when one thing resists.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

from astra_agent import cgroup_names
from astra_agent.containerd import proc
from astra_agent.errors import HostFault

GONE_TIMEOUT_S = 10.0
"""How long killed processes may take to go."""


def clean(root: Path, state: Path, socket: Path, runc_root: Path) -> None:
    """
    Blocking. Idempotent. containerd itself must have been stopped.

    Raises: HostFault: a process does not die, and what it uses stays.
    """
    bundles = [config.parent for config in state.glob("io.containerd.runtime.v2.task/*/*/config.json")]
    listened = [path for bundle in bundles for path in shim_sockets(bundle)]
    cgroups = {cgroup for bundle in bundles if (cgroup := _cgroup(bundle / "config.json"))}
    _end_processes(cgroups)  # while their shims, where they live, can reap them
    _end_shims(socket)
    _unmount_below(root)
    machine = proc.Cgroups.of_this_machine()
    for cgroup in cgroups:
        machine.remove(cgroup)
    for path in (*listened, socket, socket.with_name(f"{socket.name}.ttrpc")):
        path.unlink(missing_ok=True)
    for folder in (state, runc_root):
        shutil.rmtree(folder, ignore_errors=True)


def shim_sockets(bundle: Path) -> list[Path]:
    """Where the shim of *bundle* listens; killed, it leaves them. 1.6 and 1.7 keep it as text, 2.x as JSON."""
    with suppress(OSError):
        return [Path((bundle / "address").read_text().removeprefix("unix://"))]
    with suppress(OSError, ValueError, KeyError):
        return [Path(json.loads((bundle / "bootstrap.json").read_text())["address"].removeprefix("unix://"))]
    return []


def _cgroup(config: Path) -> str:
    with suppress(OSError, ValueError, KeyError):
        return cgroup_names.of_runc(str(json.loads(config.read_text())["linux"]["cgroupsPath"]))
    return ""


def _end_shims(socket: Path) -> None:
    """A shim carries the socket of its containerd in its command line."""
    address = str(socket).encode()
    for cmdline in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            words = cmdline.read_bytes().split(b"\0")
            if b"containerd-shim" in words[0] and address in words:
                os.kill(int(cmdline.parent.name), signal.SIGKILL)


def _end_processes(cgroups: set[str]) -> None:
    machine = proc.Cgroups.of_this_machine()
    deadline = time.monotonic() + GONE_TIMEOUT_S
    while left := [(pid, cgroup) for cgroup in cgroups for pid in machine.processes(cgroup)]:
        if time.monotonic() > deadline:
            pids = ", ".join(str(pid) for pid, _ in left)
            raise HostFault(f"these processes do not die: {pids}; what they use is left in place")
        for pid, cgroup in left:
            proc.send(pid, signal.SIGKILL, cgroup)
        time.sleep(0.01)


def _unmount_below(root: Path) -> None:
    """The deepest mount first; a busy one is detached at once and goes when its last user has gone."""
    points = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    below = [point for point in points if Path(point).is_relative_to(root)]
    for point in reversed(below):
        subprocess.run(["umount", "--lazy", point], check=False, stderr=subprocess.DEVNULL)
