"""
The port between slots and what runs containers. `astra_agent.containerd` is the real adapter, `tests/fakes` has the
other one; both pass `tests/contract/test_runtime.py`.

The words of containerd (snapshot, lease, task, shim) stop at the adapter. A *container* here is one attempt of one
slot: its ID is `<slot>-a<attempt>`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol


@dataclass(frozen=True, slots=True)
class RuntimeFacts:
    """What the runtime is and lacks. *findings* are sentences for `astra doctor`, each with its fix."""

    version: str
    cgroup_version: Literal[1, 2]
    memlock_unlimited: bool
    """Whether a container's RLIMIT_MEMLOCK can be raised to unlimited."""
    findings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ImageConfig:
    """What an image brings along. For `host`: empty, but for a PATH."""

    env: Mapping[str, str] = field(default_factory=dict)
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    working_dir: str = "/"
    user: str = ""


@dataclass(frozen=True, slots=True)
class PreparedImage:
    """An image that is unpacked on this machine. *handle* means something to the adapter only; it survives restarts."""

    reference: str
    handle: str
    config: ImageConfig


@dataclass(frozen=True, slots=True)
class BindMount:
    source: str
    target: str
    read_only: bool = False


@dataclass(frozen=True, slots=True)
class MemoryMount:
    """An empty file system in memory; *size_bytes* 0: half of the machine's."""

    target: str
    size_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Device:
    """*path* is where it is in the container, *permissions* are letters of `rwm`."""

    path: str
    kind: Literal["b", "c"]
    major: int
    minor: int
    permissions: str = "rwm"


@dataclass(frozen=True, slots=True)
class ContainerPlan:
    """All that the adapter needs to create one container: complete, nothing is looked up or merged any more."""

    id: str
    labels: Mapping[str, str]
    image: PreparedImage
    args: tuple[str, ...]
    env: Mapping[str, str]
    working_dir: str
    hostname: str
    log_path: str
    """stdout and stderr, appended to one file; without stderr where *error_log_path* is set."""
    netns: str
    """Path of the network namespace to join."""
    cgroup_path: str
    """Absolute in the cgroup hierarchy, one for each container."""
    mounts: tuple[BindMount, ...] = ()
    uid: int = 0
    gid: int = 0
    groups: tuple[int, ...] = ()
    cpu_cores: float = 0.0
    memory_bytes: int = 0
    shm_bytes: int = 0
    """0: the adapter's default, half of the memory."""
    error_log_path: str | None = None
    memory_mounts: tuple[MemoryMount, ...] = ()
    devices: tuple[Device, ...] = ()
    cap_add: tuple[str, ...] = ()
    """Without the prefix CAP_; added to the adapter's usual ones after *cap_drop*. Either may be `ALL`."""
    cap_drop: tuple[str, ...] = ()
    rlimits: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Soft and hard limits by name, such as `memlock`; -1: unlimited."""
    read_only_root: bool = False
    cpu_shares: int = 0
    """Weight, 1024 for a core; 0: by *cpu_cores*."""
    cpus: str = ""
    memory_reserved_bytes: int = 0
    spec_edits: Callable[[dict[str, object]], dict[str, object]] | None = None
    """Attachments: a pure change of the OCI spec, applied last."""


@dataclass(frozen=True, slots=True)
class ExitStatus:
    """How a container ended. *code* None: it ended, how is not known."""

    code: int | None
    oom: bool = False


@dataclass(frozen=True, slots=True)
class ContainerStatus:
    state: Literal["absent", "created", "running", "stopped"]
    exit: ExitStatus | None = None
    """Set when stopped."""
    pid: int = 0
    """Of the container's first process on the machine; 0 when it has none."""


@dataclass(frozen=True, slots=True)
class FoundContainer:
    id: str
    labels: Mapping[str, str]
    status: ContainerStatus


@dataclass(frozen=True, slots=True)
class Usage:
    """Counters since the container's start; what the machine does not count is 0."""

    cpu_user_ns: int = 0
    cpu_system_ns: int = 0
    throttled_periods: int = 0
    throttled_ns: int = 0
    memory_bytes: int = 0
    memory_rss_bytes: int = 0
    memory_cache_bytes: int = 0
    memory_peak_bytes: int = 0
    memory_kernel_bytes: int = 0
    memory_swap_bytes: int = 0


class ExecSession(Protocol):
    """One `exec` in a running container. Closing it kills what still runs of it."""

    def output(self) -> AsyncIterator[tuple[Literal[1, 2], bytes]]:
        """Pieces of standard output (1) and standard error (2; never with a terminal), until both end."""
        ...

    async def write(self, data: bytes) -> None: ...

    async def close_stdin(self) -> None: ...

    async def resize(self, width: int, height: int) -> None: ...

    async def wait(self) -> int:
        """Exit code of the process."""
        ...

    async def close(self) -> None: ...


class Images(Protocol):
    async def look(self, reference: str, auth: tuple[str, str] | None, progress: Callable[[str], None]) -> int:
        """
        See that the image is there, without bringing it here. *progress* hears of a registry that is asked again.

        Returns: how many bytes `prepare` would have to bring; 0 when the image is on this machine.
        Raises: as `prepare`.
        """
        ...

    async def prepare(
        self, reference: str, auth: tuple[str, str] | None, progress: Callable[[str], None]
    ) -> PreparedImage:
        """
        Pull (or read) and unpack; at once when it is there already. *progress* gets short sentences.

        Raises:
            InvalidRequest: no such image, credentials refused, an archive that is none, a reference that is none.
            Unavailable: the registry does not answer. May be tried again.
            HostFault: the disk is full, or unpacking fails.
        """
        ...

    async def check_command(
        self,
        image: PreparedImage,
        args: tuple[str, ...],
        path: str,
        working_dir: str,
        user: str,
        mounts: tuple[BindMount, ...] = (),
    ) -> tuple[int, int, tuple[int, ...]]:
        """
        See that ``args[0]`` is there in the image (or in one of *mounts*) and may be executed, looked up along *path*;
        resolve *user* (`uid[:gid]`, a name, or empty for root) by the image's passwd and group files.

        Returns: uid, gid, additional gids.
        Raises:
            InvalidRequest: `command "x" is not in image "y": …`, `… is not executable`, `user "x" is not in …`.
        """
        ...


class Containers(Protocol):
    async def probe(self) -> RuntimeFacts:
        """Raises: Unavailable when the runtime does not answer; HostFault when it can't serve (too old, no overlay)."""
        ...

    async def create(self, plan: ContainerPlan) -> None:
        """
        Create; the program waits before its first instruction. Idempotent: a container with this ID and these labels is
        left as it is. Never cancelled half way by the caller's cancellation.

        Raises: InvalidRequest (what the user asked for can't be made), Unavailable, HostFault.
        """
        ...

    async def try_inside(self, container: str, trials: tuple[str, ...]) -> tuple[str, ...]:
        """
        Make *trials* (words of `init.c`) in a created container that waits, as its user, with its devices, limits and
        capabilities. An answer for each: `ok`, or the system's word for an error (`EPERM`).

        Raises: NotFound when there is no such container; Unavailable; HostFault when no answer comes.
        """
        ...

    async def start(self, container: str) -> None:
        """Start a created container. A running or stopped one is left as it is, never started a second time."""
        ...

    async def status(self, container: str) -> ContainerStatus: ...

    async def wait(self, container: str) -> ExitStatus:
        """
        Returns when the container has stopped, at once when it already has, also for a created one that is killed.
        Survives restarts of the runtime. An absent container gives ``ExitStatus(None)``.
        """
        ...

    async def terminate(self, container: str) -> None:
        """
        Ask the container's processes to end: SIGTERM to each process that has a handler for it, closest to the first
        one, and to everything else that no such process looks after. Absent or stopped: nothing happens.

        This, `kill` and `processes` are between this machine's kernel and us: the runtime may be away.
        """
        ...

    async def signal(self, container: str, number: int) -> None:
        """Send the program a signal; SIGKILL and SIGSTOP reach all its processes. Not running: nothing happens."""
        ...

    async def usage(self, container: str) -> Usage | None:
        """What it uses; None when it is not there. Asks nobody but the kernel."""
        ...

    async def kill(self, container: str) -> None:
        """SIGKILL to every process of the container. Absent or stopped: nothing happens."""
        ...

    async def processes(self, container: str) -> tuple[int, ...]:
        """Process IDs that are still in the container's cgroup; also when the runtime itself no longer knows it."""
        ...

    async def remove(self, container: str) -> None:
        """Clean everything of this container, running or not, whatever is left of it. Idempotent."""
        ...

    async def list(self) -> tuple[FoundContainer, ...]:
        """Every container of this machine's agent, with its labels."""
        ...

    async def exec(
        self, container: str, args: tuple[str, ...], tty: bool, stdin: bool, width: int, height: int
    ) -> ExecSession:
        """Raises: NotFound when it is not running; InvalidRequest when there is no such program in it."""
        ...
