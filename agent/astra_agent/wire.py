"""
What crosses the agent's borders: the models of its unix socket and of its link to the coordinator.

Other parts may import this module of the agent and no other. Every model is frozen and refuses unknown fields, so a
newer or older peer is found out at the first message, by `PROTOCOL` in the hello, not by a field that was dropped.
All durations are seconds, all sizes bytes.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

PROTOCOL = 3

Tier = Literal["machine", "nvlink", "infiniband", "rdma", "ethernet"]
"""How close machines are, tightest first."""

SlotId = Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")]


class Wire(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


# What a machine has -----------------------------------------------------------------------------------------------


class GpuFacts(Wire):
    index: int
    uuid: str
    memory_bytes: int = 0
    model: str = ""
    """`H200`, `NVIDIA-H100-80GB-HBM3`; empty: not known."""
    pci_bus_id: str = ""
    """`0000:3b:00.0`; empty: not known."""
    numa_node: int | None = None
    fault: str | None = None
    """A sentence when nothing new may use it, else None."""


class PortFacts(Wire):
    """A network port that training may use."""

    name: str
    tier: Literal["infiniband", "rdma", "ethernet"]
    gbps: float
    up: bool = True


class FindingFacts(Wire):
    """A sentence for the operator about *subject* (`mlx5_3:1`, `GPU 5`, `IMEX`); *fix* is empty where none is known."""

    level: Literal["fault", "warning", "note"]
    subject: str
    sentence: str
    fix: str = ""


class MachineFacts(Wire):
    """
    What a machine offers. *domains* names, for each tier above `machine`, the domain that this machine is in: machines
    with the same tier and domain name reach each other over it.
    """

    name: str
    address: str
    cpu_cores: float
    memory_bytes: int
    gpus: tuple[GpuFacts, ...] = ()
    ports: tuple[PortFacts, ...] = ()
    domains: dict[Literal["nvlink", "infiniband", "rdma", "ethernet"], str] = {}
    drives: tuple[str, ...] = ()
    slot_network: Literal["host", "own"] = "host"
    out_of_use: str | None = None
    """A sentence when no new slot may come here, such as a process that does not die; else None."""
    imex_channels: int = 0
    """IMEX channels, from 0, of which each run in the NVLink domain has one of its own; 0: all share channel 0."""
    findings: tuple[FindingFacts, ...] = ()
    """What does not work as it should."""


# Slots -------------------------------------------------------------------------------------------------------------


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
    address: str
    """Of the slot, in there."""


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
    env: dict[str, str] = {}
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
    ulimits: dict[str, tuple[int, int]] = {}
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
    hosts: dict[str, str] = {}
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


# Link: coordinator to agent -----------------------------------------------------------------------------------------


class Placed(Wire):
    """
    Where the run was placed: what a worker gets of its machine's networks follows from it. By default nothing.

    *domain* None: no domain is held against the machine's own.
    """

    tier: Tier = "machine"
    domain: str | None = None
    min_gbps: float = 0.0
    """What each port has to carry; 0: whatever it does."""
    channel: int = 0
    """The run's IMEX channel, with tier `nvlink`."""


class RunNames(Wire):
    """What the workers of a run are called now. Of two, the one of the higher *term*, then *version*, is the newer."""

    workspace: str
    run: str
    addresses: dict[str, tuple[str, ...]]
    """By worker's name; none while it has no address yet."""
    leader: str = ""
    """The worker that the run's own name stands for; empty while there is none."""
    port: int = 0
    """Where the leader listens."""
    attempt: int = 0
    world_size: int = 0
    term: int = 0
    version: int = 0


class Arm(Wire):
    """Create attempt *attempt* in the slot and let it wait before its first instruction. Older ones may still run."""

    kind: Literal["arm"] = "arm"
    slot: SlotId
    term: int
    attempt: int
    env: dict[str, str]
    hosts: dict[str, str]
    """Names to addresses, for the container's /etc/hosts where the machine has no name server."""
    names: RunNames | None = None
    """The attempt is armed only once the machine's name server answers for these; they are taken back with the slot."""
    placed: Placed = Placed()
    worker: str = ""
    """What the worker is called in this attempt, where its slot was made before anybody knew; empty: the request's."""


class Names(Wire):
    """
    Runs of the workspaces that have slots on this machine. What is not spoken of stays as it is, unless *whole*. Names
    that an Arm brought stay until its slot has ended, or newer ones come.
    """

    kind: Literal["names"] = "names"
    term: int
    whole: bool = False
    runs: tuple[RunNames, ...] = ()
    gone: tuple[tuple[str, str], ...] = ()
    """Workspace and run of those that have ended."""


class Start(Wire):
    kind: Literal["start"] = "start"
    slot: SlotId
    term: int
    attempt: int


class Stop(Wire):
    """Stop this attempt and every older one: SIGTERM, *grace_s*, SIGKILL."""

    kind: Literal["stop"] = "stop"
    slot: SlotId
    term: int
    attempt: int
    grace_s: float


class Finish(Wire):
    """The slot ends: stop what still runs, clean, and answer the engine's wait with *code*."""

    kind: Literal["finish"] = "finish"
    slot: SlotId
    term: int
    code: int
    reason: str = ""


class Tell(Wire):
    """A sentence for whoever looks at this slot through its engine: `Gang restart: llama-1 failed.`"""

    kind: Literal["tell"] = "tell"
    slot: SlotId
    term: int
    sentence: str


Directive = Annotated[Arm | Start | Stop | Finish | Tell, Field(discriminator="kind")]


class DirectiveMessage(Wire):
    kind: Literal["directive"] = "directive"
    directive: Directive


class Welcome(Wire):
    kind: Literal["welcome"] = "welcome"
    term: int
    protocol: int = PROTOCOL
    disconnect_limit_s: float
    """Without an answer from the coordinator for this long, the agent stops its gang workers by itself."""


def lease_every_s(disconnect_limit_s: float) -> float:
    """A fifth of the limit, and never so long that a machine is silent unnoticed."""
    return min(disconnect_limit_s / 5, 5.0)


class LeaseAck(Wire):
    kind: Literal["lease_ack"] = "lease_ack"
    n: int


class ReportAck(Wire):
    kind: Literal["report_ack"] = "report_ack"
    seq: int


class OpenStream(Wire):
    """Asks the agent to dial `GET /v1/agents/streams/<stream>` (a WebSocket) and to serve the request on it."""

    kind: Literal["open_stream"] = "open_stream"
    stream: str
    request: StreamRequest


class LogsRequest(Wire):
    """The agent sends binary messages with the log's bytes and closes at its end."""

    kind: Literal["logs"] = "logs"
    slot: SlotId
    attempt: int | None = None
    """None: the newest."""
    follow: bool = False
    """Go on until the attempt has ended and all its output is sent."""
    tail_bytes: int | None = None


class InventoryRequest(Wire):
    """The agent sends one text message, its machine's inventory as JSON, and closes."""

    kind: Literal["inventory"] = "inventory"


class LookAheadRequest(Wire):
    """
    The agent looks whether it could prepare *request*, sends one `LookAhead` as text and closes. Nothing is held by
    that, and its *slot* names nothing.
    """

    kind: Literal["look_ahead"] = "look_ahead"
    request: SlotRequest


class LookAhead(Wire):
    kind: Literal["looked_ahead"] = "looked_ahead"
    refusal: str = ""
    """One sentence when what the user asked for is not there; empty: nothing speaks against it, as far as was seen."""
    field: str | None = None
    """Of the request, that *refusal* is about."""


class ExecRequest(Wire):
    """
    Binary messages: towards the agent standard input, from it one byte (1 stdout, 2 stderr) and then output.
    Text messages: towards the agent `Resize` or `StdinEnd`, from it one `ExecExit`, then it closes.
    """

    kind: Literal["exec"] = "exec"
    slot: SlotId
    command: tuple[str, ...]
    tty: bool = False
    stdin: bool = False
    width: int = 80
    height: int = 24


DnsName = Annotated[str, Field(max_length=254, pattern=r"^([!-\-/-~]{1,63}\.)*[!-\-/-~]{1,63}\.?$")]
RecordType = Literal["A", "AAAA", "CNAME", "MX", "NS", "PTR", "SOA", "SRV", "TXT"]


class LookupRequest(Wire):
    """The agent asks its name server what the slot's workers would be told, sends one `Lookup` as text and closes."""

    kind: Literal["lookup"] = "lookup"
    slot: SlotId
    name: DnsName
    type: RecordType = "A"


class LookupRecord(Wire):
    name: str
    type: str
    ttl_s: int
    data: str


class Lookup(Wire):
    """*error* is a sentence when nobody could be asked; nothing else is said then."""

    kind: Literal["lookup_done"] = "lookup_done"
    server: str = ""
    """The address that the slot's workers ask."""
    rcode: str = ""
    took_s: float = 0.0
    records: tuple[LookupRecord, ...] = ()
    error: str = ""


class ProbeRequest(Wire):
    """
    The machine takes part in a probe of the network: each text message towards the agent is a question of
    `astra_netprobe.messages`, from it the answer. Whatever it does for the probe ends with the stream.
    """

    kind: Literal["probe"] = "probe"


StreamRequest = Annotated[
    LogsRequest | ExecRequest | LookupRequest | InventoryRequest | LookAheadRequest | ProbeRequest,
    Field(discriminator="kind"),
]


class Resize(Wire):
    kind: Literal["resize"] = "resize"
    width: int
    height: int


class StdinEnd(Wire):
    kind: Literal["stdin_end"] = "stdin_end"


class ExecExit(Wire):
    kind: Literal["exec_exit"] = "exec_exit"
    code: int
    error: str = ""


ToAgent = Annotated[Welcome | LeaseAck | ReportAck | DirectiveMessage | Names | OpenStream, Field(discriminator="kind")]


# Link: agent to coordinator -----------------------------------------------------------------------------------------


class Hello(Wire):
    """First message on a link, with everything the agent knows: the coordinator has missed nothing after it."""

    kind: Literal["hello"] = "hello"
    protocol: int = PROTOCOL
    version: str
    boot: str
    """Changes when the machine boots: slots of an earlier boot are gone."""
    facts: MachineFacts
    slots: tuple[SlotStatus, ...]


class Lease(Wire):
    """Sent every `lease_every_s`. The agent counts from when it sent the last one that was answered."""

    kind: Literal["lease"] = "lease"
    n: int


class Report(Wire):
    """Sent again, in order, after a reconnect until it is acknowledged."""

    kind: Literal["report"] = "report"
    seq: int
    status: SlotStatus


class SlotGone(Wire):
    """A directive named a slot that this agent does not have (any more)."""

    kind: Literal["slot_gone"] = "slot_gone"
    slot: SlotId


class FactsChanged(Wire):
    kind: Literal["facts"] = "facts"
    facts: MachineFacts


class Refused(Wire):
    """A directive that is older than what the agent has seen (rule 4); told for the coordinator's log."""

    kind: Literal["refused"] = "refused"
    slot: SlotId
    reason: str


ToCoordinator = Annotated[Hello | Lease | Report | SlotGone | FactsChanged | Refused, Field(discriminator="kind")]

OpenStream.model_rebuild()
