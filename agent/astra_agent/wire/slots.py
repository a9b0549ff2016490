"""A slot: what is asked for, what has become of it, and the agent's unix socket, which the driver on Nomad calls."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from astra_agent.wire.base import SlotId, Wire


class RunRef(Wire):
    workspace: str
    name: str
    uid: str
    """Tells two runs of one name apart; set once by the coordinator."""


class DriveMount(Wire):
    """A drive of the cluster, by name; where it lies on this machine is the agent's configuration."""

    name: str
    mount_path: str
    read_only: bool = False


class HostMount(Wire):
    """A path of this machine. Whoever asks has seen to it that it may be asked for."""

    source: str
    mount_path: str
    read_only: bool = False


class TmpfsMount(Wire):
    mount_path: str
    size_bytes: int = 0
    """0: half of the machine's memory."""


class DeviceNode(Wire):
    """A device node of this machine."""

    source: str
    device_path: str
    permissions: str = "rwm"


class LogFifos(Wire):
    """
    Where the engine listens to what the programs say, besides the agent's own logs. Two FIFOs of this machine; the
    agent opens each once, for writing, and holds it until the slot has ended.
    """

    stdout: str
    stderr: str


class Dns(Wire):
    """Stands instead of the machine's own resolv.conf."""

    servers: tuple[str, ...] = ()
    searches: tuple[str, ...] = ()
    options: tuple[str, ...] = ()


class JoinedNetwork(Wire):
    """A network namespace that the engine has made for this slot, and keeps."""

    netns: str
    address: str = ""
    """Of the slot, in there; empty: the agent looks."""


class RegistryAuth(Wire):
    username: str
    password: str


class SlotRequest(Wire):
    """A worker's place on a machine, asked for by an engine (through the driver on Nomad). Idempotent by *slot*."""

    slot: SlotId
    run: RunRef
    worker: str
    """The worker's name, `<run>-<rank>`: host name of its container."""
    image: str
    """`host`, an image reference, or `oci-archive:/path.tar`."""
    command: tuple[str, ...] = ()
    """Program and arguments; empty: the image's own entrypoint and command."""
    args: tuple[str, ...] = ()
    """With an empty *command*: arguments for the image's entrypoint, instead of its command."""
    env: dict[str, str] = Field(default_factory=dict)
    """The user's own variables: they win over the image's and over every one that Astraeus sets."""
    drives: tuple[DriveMount, ...] = ()
    cpu_cores: float = 0.0
    """0: no limit."""
    memory_bytes: int = 0
    """0: no limit."""
    gpus: tuple[int, ...] = ()
    """Indexes of this machine's GPUs, exclusively this slot's."""
    shm_bytes: int = 0
    """Size of /dev/shm; 0: half of the memory limit, or of the machine's memory without one."""
    stop_grace_s: float = 30.0
    """From SIGTERM to SIGKILL."""
    user: str | None = None
    """`uid[:gid]` or a name of the image; None: the image's."""
    working_dir: str | None = None
    registry_auth: RegistryAuth | None = None
    called: SlotId | None = None
    """What the coordinator calls this slot, where the engine has an ID of its own for it. Statuses repeat it."""

    starts: Literal["when_told", "when_ready"] = "when_told"
    """
    `when_told`: a coordinator arms and starts attempts, and finishes the slot. `when_ready`: the agent starts the one
    attempt by itself as soon as the slot is ready, and the slot ends with its program.
    """
    engine_ref: str = ""
    """What the engine calls this slot. Statuses repeat it; it means nothing to the agent."""
    incarnation: str = ""
    """Tells uses of one slot ID apart that follow each other: an ended slot's ID may be used anew by another one."""
    mounts: tuple[HostMount, ...] = ()
    tmpfs: tuple[TmpfsMount, ...] = ()
    devices: tuple[DeviceNode, ...] = ()
    cap_add: tuple[str, ...] = ()
    """Capabilities such as `IPC_LOCK`, or `ALL`; added to the usual ones after *cap_drop*."""
    cap_drop: tuple[str, ...] = ()
    ulimits: dict[str, tuple[int, int]] = Field(default_factory=dict)
    """Soft and hard limits by name, such as `memlock`; -1: unlimited."""
    read_only_root: bool = False
    cpu_shares: int = 0
    """Weight against others, 1024 for one core; 0: by *cpu_cores*."""
    cpus: str = ""
    """The only processors that it may run on, such as `2,3`; empty: all."""
    memory_reserved_bytes: int = 0
    """What it keeps when memory is short, of *memory_bytes*; 0: no such promise."""
    fifos: LogFifos | None = None
    network: JoinedNetwork | None = None
    dns: Dns | None = None
    hosts: dict[str, str] = Field(default_factory=dict)
    """Names to addresses for /etc/hosts, besides those that an attempt is told."""


class SlotShare(Wire):
    """What differs from slot to slot of one reservation."""

    slot: SlotId
    worker: str
    gpus: tuple[int, ...] = ()


class Reservation(Wire):
    """
    All slots of one reservation as one document, for an engine that has one place to write them down, not one for each
    machine: on Nomad the task of the job, which the driver of every machine reads.

    Attributes:
        common: The request of any of them.
        shares: What is a machine's own, by the engine's ID of the machine.
    """

    common: SlotRequest
    shares: dict[str, SlotShare]

    def request(self, machine: str) -> SlotRequest:
        """What is asked of this machine. Raises KeyError when it is not in the reservation."""
        share = self.shares[machine]
        return self.common.model_copy(update={"slot": share.slot, "worker": share.worker, "gpus": share.gpus})


AttemptState = Literal["arming", "armed", "running", "stopping", "exited"]

SlotPhase = Literal["preparing", "ready", "failed", "finished"]

Fault = Literal["user", "machine"]
"""Whose fault a failure is: the user's (an image or command that is not there) or the machine's."""


class AttemptStatus(Wire):
    attempt: int
    state: AttemptState
    code: int | None = None
    """Exit code, 128 + n for a program killed by signal n; None until exited, and when *code_unknown*."""
    code_unknown: bool = False
    """It ended while nobody could see how: neither success nor a code."""
    oom: bool = False
    detail: str = ""
    fault: Fault | None = None
    """`machine`: the agent ended it by itself, as when it was cut off for too long; it costs the user no budget."""


class SlotStatus(Wire):
    """The whole of what an agent knows of a slot. A report carries it; so do the hello and the socket's answers."""

    slot: SlotId
    rev: int
    """Grows with every change of this slot, across restarts of the agent: a receiver drops what is older."""
    run: RunRef
    worker: str
    phase: SlotPhase
    detail: str = ""
    """A sentence: what it is doing (`Pulling busybox:1.36: 43 %`), or why it failed."""
    fault: Fault | None = None
    """Set with phase `failed`, and when an attempt failed to arm or to start."""
    address: str | None = None
    """Where peers reach this worker; set from `ready` on."""
    port: int | None = None
    """A TCP port, from 29500 up, that nothing on this machine uses and that is held for this slot; from `ready` on."""
    term: int = 0
    attempts: tuple[AttemptStatus, ...] = ()
    """In order of attempt. Ended attempts stay until the slot is finished, the last few of them."""
    arm_failed: int | None = None
    """The attempt that could not be armed or started; *detail* and *fault* say why."""
    stuck: str | None = None
    """A sentence while a process of an old attempt does not die: `process 4711 of llama-1 does not die (…)`."""
    called: SlotId | None = None
    """As in the request."""
    engine_ref: str = ""
    incarnation: str = ""
    starts: Literal["when_told", "when_ready"] = "when_told"
    told: str = ""
    """The newest sentence of the coordinator's, see `Tell`."""


class SlotEnding(Wire):
    """How a slot has ended. Nothing of it is left on the machine but its logs."""

    code: int
    """The program's, where nobody has said otherwise; 125 for a program that never ran."""
    reason: str
    oom: bool = False


class StopRequest(Wire):
    """The engine ends the slot, with the code of its program."""

    grace_s: float
    """From the signal to SIGKILL."""
    signal: str = ""
    """`SIGINT`; empty: SIGTERM, to whom the agent asks at every stop."""
    reason: str = "Stopped"


class SignalRequest(Wire):
    signal: str
    """`SIGHUP`; to the program of the newest attempt, SIGKILL to all its processes."""


class SlotUsage(Wire):
    """What the newest attempt has used and uses now; all counters from its start."""

    cpu_user_ns: int = 0
    cpu_system_ns: int = 0
    throttled_periods: int = 0
    throttled_ns: int = 0
    memory_bytes: int = 0
    """All that counts against its limit."""
    memory_rss_bytes: int = 0
    memory_cache_bytes: int = 0
    memory_peak_bytes: int = 0
    memory_kernel_bytes: int = 0
    memory_swap_bytes: int = 0


class AgentHealth(Wire):
    """`GET /v1/health`. Read leniently by whoever may meet another version: *protocol* is there in each."""

    version: str
    protocol: int
    boot: str
    runtime: dict[str, object] | None
    """None while containerd does not answer."""
    findings: tuple[str, ...]
