"""
What containerd is, and what it can and can't give to containers: its own limits and capabilities bound theirs.
"""

from __future__ import annotations

import os
import re
import socket
import stat
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from google.protobuf.empty_pb2 import Empty

from astra_agent.containerd import proc
from astra_agent.containerd.client import Client
from astra_agent.containerd.proto.introspection_pb2 import Plugin, PluginsRequest
from astra_agent.containerd.services import PLUGINS, VERSION
from astra_agent.errors import HostFault, Unavailable

OLDEST = (1, 6)
WANTED_OPEN_FILES = 1_048_576
_CAP_SYS_RESOURCE = 24
_UNLIMITED = 2**64 - 1
_BOOTED = Path("/run/systemd/system")
"""sd_booted(3): a folder that is there while systemd is the first process, as the runtime looks for it, too."""


@dataclass(frozen=True, slots=True)
class Limits:
    """
    Bounds for what a container may be given; with CAP_SYS_RESOURCE containerd can raise them.

    Attributes:
        open_files: The highest RLIMIT_NOFILE.
        memlock_unlimited: Whether RLIMIT_MEMLOCK can be unlimited.
    """

    open_files: int
    memlock_unlimited: bool


@dataclass(frozen=True, slots=True)
class Service:
    """What the running containerd offers."""

    version: str
    keeps_exits: bool
    """It has the sandbox store: a record there keeps the exit code of a task that ends while containerd is away."""


async def ask_service(client: Client, snapshotter: str) -> Service:
    """
    Raises:
        Unavailable: containerd does not answer.
        HostFault: it is too old, or has no such snapshotter.
    """
    version = (await client.call(VERSION, Empty())).version
    if not is_new_enough(version):
        wanted = ".".join(map(str, OLDEST))
        raise HostFault(f"containerd on this machine is {version}; Astraeus needs {wanted} or later")
    plugins = (await client.call(PLUGINS, PluginsRequest())).plugins
    _check_snapshotter(list(plugins), snapshotter)
    # The store is a plugin with a type of its own, so its name may change and its type not.
    stores = [plugin for plugin in plugins if plugin.type.startswith("io.containerd.sandbox.store.")]
    return Service(version, any(not plugin.HasField("init_err") for plugin in stores))


def is_new_enough(version: str) -> bool:
    """`1.6.20~ds1`, `v2.1.9` and the like. What can't be read is built by somebody who knows what he does."""
    found = re.match(r"v?(\d+)\.(\d+)", version)
    return found is None or (int(found[1]), int(found[2])) >= OLDEST


def _check_snapshotter(plugins: list[Plugin], name: str) -> None:
    found = [plugin for plugin in plugins if plugin.type == "io.containerd.snapshotter.v1" and plugin.id == name]
    if not found:
        raise HostFault(f'containerd on this machine has no snapshotter "{name}"')
    if found[0].HasField("init_err"):
        raise HostFault(f'containerd\'s snapshotter "{name}" does not work here: {found[0].init_err.message}')


def limits_of(path: Path) -> Limits:
    """
    Limits of the process that listens on the socket at *path*. Local and quick (some 0.1 ms), blocking.

    Raises: Unavailable: nobody listens.
    """
    pid = _listener(path)
    fields = proc.status(pid)
    if not fields:
        raise Unavailable(f"containerd at {path} has just ended")
    may_raise = bool(int(fields["CapEff"], 16) >> _CAP_SYS_RESOURCE & 1)
    hard = dict(_hard_limits(pid))
    ceiling = int(Path("/proc/sys/fs/nr_open").read_text())
    return Limits(
        open_files=min(WANTED_OPEN_FILES, ceiling if may_raise else hard["Max open files"]),
        memlock_unlimited=may_raise or hard["Max locked memory"] == _UNLIMITED,
    )


def _listener(path: Path) -> int:
    """Introspection tells containerd's process only from 1.7 on; the kernel always does."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except OSError as error:
            raise Unavailable(f"containerd at {path} does not answer: {error.strerror or error}") from error
        credentials = probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", credentials)[0])


def _hard_limits(pid: int) -> Iterator[tuple[str, int]]:
    for line in Path(f"/proc/{pid}/limits").read_text().splitlines()[1:]:
        name, _, hard = (part.strip() for part in (line[:26], line[26:47], line[47:68]))
        yield name, _UNLIMITED if hard == "unlimited" else int(hard)


def processes_for_one_container() -> int:
    """Three quarters of what the machine can have: the rest is for those who must stop what forks for ever."""
    found = [int(Path(f"/proc/sys/kernel/{name}").read_text()) for name in ("pid_max", "threads-max")]
    return min(found) * 3 // 4


def check_systemd(cgroup_version: int, booted: Path = _BOOTED) -> None:
    """
    Whether systemd can make cgroups here. On version 1 nobody has tried.

    Raises: HostFault with what to set instead.
    """
    if not booted.is_dir():
        raise HostFault(
            f'cgroup_driver is "systemd", and systemd does not run this machine ({booted} is not there); '
            'set cgroup_driver = "cgroupfs"'
        )
    if cgroup_version != 2:
        raise HostFault(
            'cgroup_driver is "systemd", which needs cgroup version 2, and this machine has version 1; '
            'set cgroup_driver = "cgroupfs"'
        )


def findings_of_systemd(dev: Path = Path("/dev")) -> Iterator[str]:
    """
    systemd knows a device by its link in /dev/char, which NVIDIA's driver does not make: it forgets that a container
    may open it as soon as its configuration is read again.
    """
    for node in sorted((*dev.glob("nvidia*"), *dev.glob("nvidia-caps*/*"))):
        info = node.stat()
        link = dev / "char" / f"{os.major(info.st_rdev)}:{os.minor(info.st_rdev)}"
        if stat.S_ISCHR(info.st_mode) and not link.exists():
            yield (
                f'cgroup_driver is "systemd", and {link} is not there: workers lose {node} at the next '
                "systemctl daemon-reload; run nvidia-ctk system create-dev-char-symlinks --create-all"
            )
            return


def findings(limits: Limits) -> Iterator[str]:
    """Sentences for a person, each with its fix."""
    if limits.open_files < WANTED_OPEN_FILES:
        yield (
            f"containerd can give programs at most {limits.open_files} open files; "
            f"set LimitNOFILE={WANTED_OPEN_FILES} in its unit, or give it CAP_SYS_RESOURCE"
        )
    if not limits.memlock_unlimited:
        yield (
            "containerd can't give programs unlimited locked memory; RDMA works through IPC_LOCK meanwhile; "
            "set LimitMEMLOCK=infinity in its unit, or give it CAP_SYS_RESOURCE"
        )
