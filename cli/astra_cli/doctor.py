"""
What this machine lacks to be an agent or a dev cluster. Each finding has its fix; trying beats reading where both work.

Everything that is made to try something is made in a network namespace and a folder of its own, and removed.
"""

from __future__ import annotations

import ctypes
import os
import platform
import re
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import aiohttp

import astra_agent
from astra_agent import namespaces
from astra_agent.errors import AstraError
from astra_agent.inventory import Inventory
from astra_cli.dev import commands, ports
from astra_cli.dev.plan import API_PORT

Level = Literal["ok", "warning", "missing"]

OLDEST = {"containerd": (1, 6), "runc": (1, 1)}
PACKAGES = {
    "containerd": "containerd", "containerd-shim-runc-v2": "containerd", "runc": "runc", "ip": "iproute2",
    "tc": "iproute2", "nsenter": "util-linux", "umount": "mount",
}  # fmt: skip
CONTROLLERS = ("cpu", "cpuset", "memory", "pids")
WANTED_FILES = 65536
"""Open files of a worker: a data loader with many processes runs out of the usual 1024 at once."""
WANTED_DISK_BYTES = 5 << 30
CAP_SYS_RESOURCE = 24
TIME_ERROR = 5
TIMEX_BYTES = 208
"""Of `struct timex` on 64-bit Linux; only the call's result is used."""


@dataclass(frozen=True, slots=True)
class Finding:
    """*fix* is empty for what is in order."""

    level: Level
    subject: str
    sentence: str
    fix: str = ""


def examine(state: Path) -> list[Finding]:
    """Everything that can be seen without an agent. Blocks for a second or two. *state*: where its data would lie."""
    checks: tuple[Callable[[], Iterator[Finding]], ...] = (
        root, programs, versions, file_systems, cgroups, network, limits, port, clock, lambda: disk(state), init,
    )  # fmt: skip
    return [finding for check in checks for finding in check()]


def root() -> Iterator[Finding]:
    if os.geteuid() == 0:
        yield Finding("ok", "root", "runs as root")
    else:
        yield Finding(
            "missing", "root", f"runs as user {os.geteuid()}, who may not make namespaces and mounts", "use sudo"
        )


def programs() -> Iterator[Finding]:
    found = []
    for name, package in PACKAGES.items():
        if shutil.which(name, path=_path()):
            found.append(name)
        else:
            yield Finding("missing", name, f"{name} is not installed", f"apt-get install {package}")
    if found:
        yield Finding("ok", "programs", f"installed: {', '.join(found)}")


def versions() -> Iterator[Finding]:
    for name, oldest in OLDEST.items():
        path = shutil.which(name, path=_path())
        if path is None:
            continue
        text = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=10, check=False).stdout
        wanted = ".".join(map(str, oldest))
        version = parse_version(text)
        if version is None:
            yield Finding(
                "warning",
                name,
                f"{name} does not say its version: {text.strip()[:60]!r}",
                f"it should be {wanted} or later",
            )
        elif version[:2] < oldest:
            told = ".".join(map(str, version))
            yield Finding(
                "missing", name, f"{name} is {told}, older than {wanted}", f"install {name} {wanted} or later"
            )
        else:
            yield Finding("ok", name, f"{name} {'.'.join(map(str, version))}")


def parse_version(text: str) -> tuple[int, ...] | None:
    """The first `N.N.N` in what a program says of itself."""
    match = re.search(r"(\d+)\.(\d+)\.(\d+)", text)
    return tuple(int(part) for part in match.groups()) if match else None


def file_systems() -> Iterator[Finding]:
    known = Path("/proc/filesystems").read_text().split()
    if "overlay" in known or _modprobe("overlay"):
        yield Finding("ok", "overlay", "overlay file systems work")
    else:
        yield Finding(
            "missing",
            "overlay",
            "the kernel has no overlay file system",
            "modprobe overlay, or a kernel with CONFIG_OVERLAY_FS",
        )


def cgroups() -> Iterator[Finding]:
    mount = Path("/sys/fs/cgroup")
    unified = mount / "cgroup.controllers"
    if unified.exists():
        there, how = set(unified.read_text().split()), "v2"
        fix = "echo '+cpu +cpuset +memory +pids' > /sys/fs/cgroup/cgroup.subtree_control"
    else:
        there = {name for entry in mount.glob("*") if entry.is_dir() for name in entry.name.split(",")}
        how, fix = "v1", "mount them, or boot with systemd.unified_cgroup_hierarchy=1"
    missing = [name for name in CONTROLLERS if name not in there]
    if missing:
        yield Finding("missing", "cgroups", f"cgroup {how} has no controllers {', '.join(missing)}", fix)
    else:
        yield Finding("ok", "cgroups", f"cgroup {how} with {', '.join(CONTROLLERS)}")


def network() -> Iterator[Finding]:
    """Made for real, in a namespace that is gone afterwards."""
    if os.geteuid() != 0 or not shutil.which("ip", path=_path()) or not shutil.which("nsenter", path=_path()):
        return
    with tempfile.TemporaryDirectory(prefix="astra-doctor-") as folder:
        netns = Path(folder, "net")
        try:
            namespaces.make(netns)
        except AstraError as error:
            yield Finding(
                "missing", "namespaces", str(error), "a kernel with CONFIG_NET_NS, and a sandbox that allows it"
            )
            return
        try:
            yield from (_try(netns, *attempt) for attempt in _ATTEMPTS)
        finally:
            namespaces.remove(netns)


_VETH = ("ip", "link", "add", "astra-a", "type", "veth", "peer", "name", "astra-b")
_BRIDGE = ("ip", "link", "add", "astra-br", "type", "bridge")
_TBF = ("tc", "qdisc", "add", "dev", "astra-a", "root", "tbf", "rate", "1mbit", "burst", "16k", "latency", "50ms")
_ATTEMPTS: tuple[tuple[str, tuple[str, ...], str, Level], ...] = (
    ("veth pairs", _VETH, "modprobe veth", "missing"),
    ("bridges", _BRIDGE, "modprobe bridge", "missing"),
    ("shaped links", _TBF, "modprobe sch_tbf; without it `astra dev link --rate` does not work", "warning"),
)


def _try(netns: Path, subject: str, words: tuple[str, ...], fix: str, level: Level) -> Finding:
    path = shutil.which(words[0], path=_path()) or words[0]
    command = ["nsenter", f"--net={netns}", path, *words[1:]]
    result = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    if result.returncode:
        return Finding(level, subject, f"{subject} can't be made: {' '.join(result.stderr.split())}", fix)
    return Finding("ok", subject, f"{subject} can be made")


def limits() -> Iterator[Finding]:
    """A containerd that is started from here has these, and so have its workers."""
    may_raise = has_capability(Path("/proc/self/status").read_text(), CAP_SYS_RESOURCE)
    _, files = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files != resource.RLIM_INFINITY and files < WANTED_FILES:
        fix = f"ulimit -Hn {WANTED_FILES}, or LimitNOFILE={WANTED_FILES} in the service"
        yield Finding("warning", "open files", f"a worker may open {files} files at most", fix)
    _, locked = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if locked != resource.RLIM_INFINITY and not may_raise:
        fix = "ulimit -l unlimited, or LimitMEMLOCK=infinity in the service; RDMA needs it"
        yield Finding(
            "warning",
            "locked memory",
            f"workers may lock {locked >> 10} KiB at most, and nothing here may raise that",
            fix,
        )
    if not may_raise:
        fix = "give the service CAP_SYS_RESOURCE"
        yield Finding("warning", "capabilities", "limits can't be raised without CAP_SYS_RESOURCE", fix)


def has_capability(status: str, number: int) -> bool:
    """Whether `/proc/<pid>/status` shows that effective capability."""
    match = re.search(r"^CapEff:\s*([0-9a-f]+)$", status, re.MULTILINE)
    return bool(match and int(match[1], 16) >> number & 1)


def port() -> Iterator[Finding]:
    if ports.is_free(API_PORT):
        yield Finding("ok", "port", f"port {API_PORT} of 127.0.0.1 is free")
    else:
        sentence = f"port {API_PORT} of 127.0.0.1 is in use, by a dev cluster or by something else"
        yield Finding("warning", "port", sentence, "nothing: `astra dev` takes the next free one and says so")


def clock() -> Iterator[Finding]:
    buffer = ctypes.create_string_buffer(TIMEX_BYTES)
    if ctypes.CDLL(None).adjtimex(buffer) == TIME_ERROR:
        fix = "apt-get install systemd-timesyncd or chrony; the times that machines report will not match until then"
        yield Finding("warning", "clock", "nothing keeps this machine's clock right", fix)


def disk(state: Path) -> Iterator[Finding]:
    there = next(folder for folder in (state, *state.parents) if folder.exists())
    free = shutil.disk_usage(there).free
    if free < WANTED_DISK_BYTES:
        fix = "make room, or choose another folder with --state"
        yield Finding("warning", "disk", f"{there} has {free >> 20} MiB free, images take gigabytes", fix)
    else:
        yield Finding("ok", "disk", f"{there} has {free >> 30} GiB free")
    kind = _file_system(there)
    if kind == "overlay":
        sentence = (
            f"{there} is itself an overlay, which can't hold the changes of the image `host`: they are kept in memory"
        )
        yield Finding("warning", "disk", sentence, "choose a folder on a disk with --state")


def init() -> Iterator[Finding]:
    path = Path(astra_agent.__file__).parent / "init" / "astra-init"
    if path.is_file():
        yield Finding("ok", "first process", f"{path.name} is built")
    elif shutil.which("cc") or shutil.which("gcc"):
        yield Finding("missing", "first process", f"{path} is not built", "make init")
    else:
        fix = "apt-get install gcc libc6-dev, then make init"
        yield Finding("missing", "first process", f"{path} is not built, and there is no C compiler", fix)


async def agent(path: Path) -> list[Finding]:
    """What the agent behind *path* says of itself and of its containerd."""
    try:
        connector = aiohttp.UnixConnector(path=str(path))
        timeout = aiohttp.ClientTimeout(total=10)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
            async with session.get("http://agent/v1/health") as response:
                health = await response.json()
    except (aiohttp.ClientError, OSError, ValueError, TimeoutError) as error:
        reason = str(getattr(error, "strerror", None) or error or type(error).__name__)
        fix = "start it: systemctl start astra-agent, or astra-agent --config agent.toml"
        return [Finding("missing", "agent", f"no agent answers on {path}: {reason}", fix)]
    found = [_told(sentence) for sentence in health.get("findings", [])]
    return found or [Finding("ok", "agent", f"the agent on {path} has nothing to complain about")]


def devices(inventory: Inventory) -> list[Finding]:
    """What is wrong with GPUs and network ports; a machine without any is in order."""
    found = [
        Finding("warning", finding.subject, f"{finding.subject}: {finding.sentence}", finding.fix)
        for finding in inventory.findings
        if finding.level != "note"
    ]
    if inventory.gpus or inventory.rdma:
        ports = len(inventory.training)
        sentence = f"{len(inventory.gpus)} GPUs, {ports} {inventory.transport} ports for training"
        found.insert(0, Finding("ok", "devices", sentence))
    return found


def _told(sentence: object) -> Finding:
    """A sentence of the agent's, which ends with its fix after the last semicolon."""
    what, _, fix = str(sentence).rpartition("; ")
    return Finding("warning", "agent", what or fix, fix if what else "")


def _modprobe(module: str) -> bool:
    path = shutil.which("modprobe", path=_path())
    if path is None:
        return False
    return subprocess.run([path, "--dry-run", "--quiet", module], timeout=10, check=False).returncode == 0


def _file_system(folder: Path) -> str:
    """The type of the file system that *folder* is on."""
    best, kind = Path("/"), ""
    with suppress(OSError):
        for line in Path("/proc/self/mountinfo").read_text().splitlines():
            words = line.split()
            point = Path(words[4])
            if folder.is_relative_to(point) and len(point.parts) >= len(best.parts):
                best, kind = point, words[words.index("-") + 1]
    return kind


def _path() -> str:
    return f"{os.environ.get('PATH', os.defpath)}:{commands.SBIN}"


def machine() -> str:
    return f"{platform.system()} {platform.release()} on {platform.machine()}, Python {sys.version.split()[0]}"
