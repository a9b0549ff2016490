"""The link of agent and coordinator, a WebSocket that the agent dials: directives one way, reports the other."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from astra_agent.wire.base import PROTOCOL, SlotId, Wire
from astra_agent.wire.machine import MachineFacts, Tier
from astra_agent.wire.slots import SlotStatus
from astra_agent.wire.streams import StreamRequest

# Coordinator to agent -------------------------------------------------------------------------------------------------


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


ToAgent = Annotated[Welcome | LeaseAck | ReportAck | DirectiveMessage | Names | OpenStream, Field(discriminator="kind")]


# Agent to coordinator -------------------------------------------------------------------------------------------------


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
