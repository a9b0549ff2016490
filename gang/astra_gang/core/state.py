"""
What the coordinator remembers of one run. Frozen throughout: a step makes a new state, a refused event changes nothing.

Times are seconds on the cluster's clock (`astra_gang.clock`), which never jumps.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum


class StartPolicy(StrEnum):
    GANG = "Gang"
    MIN_AVAILABLE = "MinAvailable"
    INDEPENDENT = "Independent"


class OnFailure(StrEnum):
    RESTART_JOB = "RestartJob"
    RESTART_TASK = "RestartTask"
    FAIL_JOB = "FailJob"


class Phase(StrEnum):
    """
    PENDING: no machines; a placement is being looked for.
    RESERVING: the engine has been asked for exactly these machines.
    ASSEMBLING: the barrier of the current attempt: slots get ready, are armed, older attempts stop.
    STARTING: the barrier is open: every member has been told to start.
    RUNNING: every member has started.
    REQUEUEING: everything is given back, then PENDING.
    ENDING: everything stops and is given back, then ENDED with `outcome`.
    """

    PENDING = "pending"
    RESERVING = "reserving"
    ASSEMBLING = "assembling"
    STARTING = "starting"
    RUNNING = "running"
    REQUEUEING = "requeueing"
    ENDING = "ending"
    ENDED = "ended"


class Outcome(StrEnum):
    COMPLETED = "Completed"
    FAILED = "Failed"
    STOPPED = "Stopped"


@dataclass(frozen=True, slots=True)
class Policy:
    """What the spec says of starting, failing and waiting, with the settings of the coordinator. Times in seconds."""

    start: StartPolicy = StartPolicy.GANG
    on_failure: OnFailure = OnFailure.RESTART_JOB
    time_limit_s: float | None = None
    """For a worker's running time in one attempt."""
    spares: int = 0
    """Slots beside the workers', prepared and waiting, each to take over the rank of one whose machine fails."""
    preflight: bool = False
    """The network between the machines is proved in the barrier: of the first attempt, and after every swap."""
    stop_grace_s: float = 30.0
    """SIGTERM to SIGKILL."""
    barrier_timeout_s: float = 900.0
    """How long a ready worker waits for one that has not arrived (the seed page: 15 minutes)."""
    prepare_timeout_s: float = 3600.0
    """How long all workers together may take until the first is ready: an image that no machine manages to pull."""
    prove_s: float = 20.0
    """How long one try to prove a network may take."""
    prove_wait_s: float = 100.0
    """How long it may be put off: by proofs of other runs on these machines, a coordinator that starts again, tries."""
    reserve_timeout_s: float = 120.0
    arm_timeout_s: float = 120.0
    """Arming takes 0.1 s; a containerd that is being restarted half a minute."""
    start_timeout_s: float = 120.0
    stop_timeout_s: float = 60.0
    """After the grace time: a process that has not died by then is stuck in the kernel."""
    return_timeout_s: float = 20.0
    """How long a slot that its engine has ended may take to come back: a restart of its task takes a second or two."""
    silence_s: float = 360.0
    """For how long an agent may be silent about a stop: longer than the disconnect limit and its margin."""
    backoff_first_s: float = 10.0
    backoff_max_s: float = 300.0
    budget: int = 10
    """Failures that one worker may have."""
    earn_back_s: float = 600.0
    """A worker that has run this long has its whole budget back."""
    place_retry_s: float = 10.0
    """A pending run is planned again this often even when nothing is known to have changed."""
    avoid_s: float = 600.0
    """A machine that failed this run is left out of its placements for this long."""
    faults_limit: int = 8
    """Attempts in a row that may fail before any program ran, by faults of machines."""


@dataclass(frozen=True, slots=True)
class AttemptSeen:
    """The newest that an agent has reported of one attempt in a slot. Only ever moves forward through *state*."""

    attempt: int
    state: str
    """`arming`, `armed`, `running`, `stopping`, `exited`, in this order."""
    code: int | None = None
    code_unknown: bool = False
    oom: bool = False
    detail: str = ""
    fault: str | None = None
    """`machine`: the agent ended it by itself, as when it was cut off; it costs no budget."""


@dataclass(frozen=True, slots=True)
class Slot:
    """A worker's place on a machine. *rev* is the newest report's; older ones only add what is monotone."""

    id: str
    machine: str
    gpus: tuple[int, ...] = ()
    asked_at: float = 0.0
    rev: int = -1
    phase: str = "asked"
    """`asked`, `preparing`, `ready`, `failed`, in this order (then `finished`)."""
    detail: str = ""
    fault: str | None = None
    ready_at: float | None = None
    address: str | None = None
    port: int | None = None
    attempts: tuple[AttemptSeen, ...] = ()
    arm_failed: int | None = None
    stuck: str | None = None
    withdrawn: str = ""
    """A sentence when its machine has to be left, such as one that is drained: its worker may end in order."""
    lost: bool = False
    """Its machine is lost, or came back without it."""
    leaving_why: str = ""
    """Why it is given back."""
    left_at: float = 0.0
    incarnation: str = ""
    """Tells uses of the slot apart: its engine may end it and put it again, as when its task is restarted there."""
    ended_at: float | None = None
    """When its engine had ended it and nothing of it was left; it may come back as another incarnation."""
    accepted: bool = False
    """The engine has durably taken it back. It stays in the state until nothing of it can run any more."""


@dataclass(frozen=True, slots=True)
class Worker:
    rank: int
    name: str
    group: str | None = None
    group_index: int = 0
    slot: Slot | None = None
    attempt: int = -1
    """The newest attempt that this worker is a member of."""
    failures: int = 0
    """Of its budget."""


@dataclass(frozen=True, slots=True)
class Member:
    """A worker in one attempt, for the record that `astra ranks --attempt` shows."""

    rank: int
    name: str
    slot: str
    machine: str
    address: str | None = None
    started_at: float | None = None
    ended_at: float | None = None
    code: int | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One go of the gang. *members* holds all ranks for a whole restart, or those that RestartTask restarts."""

    number: int
    members: tuple[Member, ...]
    recorded_at: float
    opened_at: float | None = None
    """When the barrier opened."""
    ended_at: float | None = None
    ended_why: str = ""


@dataclass(frozen=True, slots=True)
class Proof:
    """
    What the network between the machines of these slots is like: asked for, then known.

    Attributes:
        slots: Of all workers, in order of rank.
        verdict: Empty until it is known; then `sound`, `sick`, `below` or `unmeasured`.
        blamed: Machines that another one has to take the place of.
    """

    slots: tuple[str, ...]
    asked_at: float
    verdict: str = ""
    sentence: str = ""
    blamed: tuple[str, ...] = ()


SPARE = -1
"""In the place of a rank: of a machine that no worker has yet."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """
    One worker's machine and GPUs in a placement, or a spare's.

    Attributes:
        rank: The worker's, or `SPARE`.
        slot: Set by the core, a new one for each assignment; given where the slot is there already.
        ref: What the engine calls a slot that is there already.
    """

    rank: int
    machine: str
    gpus: tuple[int, ...] = ()
    slot: str = ""
    ref: str = ""


@dataclass(frozen=True, slots=True)
class RunState:
    workspace: str
    name: str
    uid: str
    policy: Policy
    workers: tuple[Worker, ...]
    submitted_at: float
    adopted: bool = False
    """Its slots come by themselves, out of a plain job of the engine's: all together, and never one by one."""
    phase: Phase = Phase.PENDING
    phase_since: float = 0.0
    reason: str = ""
    """The sentence that `astra status` shows."""
    attempt: int = 0
    """The attempt that is being assembled, started or run."""
    members: tuple[int, ...] = ()
    """Ranks of the current attempt: all, or those that RestartTask restarts."""
    recorded: bool = False
    """All members were ready and the attempt is in *attempts*: agents may be told to arm it."""
    start_at: float = 0.0
    """End of the back-off: the barrier does not open before."""
    reservation: int = 0
    """Number of the placement that is asked for or held; an answer about another one is stale."""
    wants_place: bool = True
    """A placement, or a replacement for the workers without a slot, is being asked for."""
    place_again_at: float | None = None
    assignments: tuple[Assignment, ...] = ()
    """Of the reservation that is not answered yet."""
    tier: str = ""
    domain: str = ""
    channel: int = 0
    """The run's IMEX channel in `channel_domain`; its own until it has another one or has ended."""
    channel_domain: str = ""
    """The NVLink domain that it was last placed in: something of it may run there after it is given back."""
    spares: tuple[Slot, ...] = ()
    """Slots that are held for workers whose own fail; no attempt is armed in them."""
    next_slot: int = 0
    leaving: tuple[Slot, ...] = ()
    """Slots that are being given back, or in which something may still run."""
    avoid: tuple[tuple[str, float], ...] = ()
    """Machines that failed this run, each with the time until which it is left out."""
    faults: int = 0
    """Attempts in a row that failed before they ran, by faults of machines."""
    late_swapped: bool = False
    """Late workers have been swapped at this barrier once; the next time every worker is requeued."""
    proof: Proof | None = None
    """The newest, with `preflight`; it says nothing of slots that are not in it."""
    charged: int | None = None
    """The rank whose failure led to this attempt: paid back when it turns out that a machine was lost."""
    attempts: tuple[Attempt, ...] = ()
    """The record, oldest first; the last `ATTEMPTS_KEPT`."""
    outcome: Outcome | None = None
    refused: bool = False
    """
    It failed before any program of the user ran, by what the user asked for, or by what no machine could provide, such
    as an image whose registry does not answer: exit status 2.
    """
    ended_at: float | None = None

    @property
    def leader(self) -> Worker:
        return self.workers[0]


ATTEMPTS_KEPT = 64


def begin(
    *,
    workspace: str,
    name: str,
    uid: str,
    policy: Policy,
    workers: tuple[Worker, ...],
    now: float,
    adopted: bool = False,
) -> RunState:
    """
    A run that has just been submitted: Pending, and a placement is outstanding.

    Args:
        workers: In order of rank, from 0, without slots.
    """
    if [worker.rank for worker in workers] != list(range(len(workers))) or not workers:
        raise ValueError("workers must be given in order of rank, from 0")
    return RunState(
        workspace=workspace,
        name=name,
        uid=uid,
        policy=policy,
        workers=tuple(replace(worker, attempt=0) for worker in workers),
        submitted_at=now,
        adopted=adopted,
        phase_since=now,
        members=tuple(worker.rank for worker in workers),
        reason="Looking for machines",
    )
