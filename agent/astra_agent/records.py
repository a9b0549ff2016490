"""What the agent remembers of a slot across its own death. Values only; `astra_agent.book` keeps them in files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from astra_agent.runtime import PreparedImage
from astra_agent.wire import Fault, Placed, RunNames, SlotRequest

ENDED_ATTEMPTS_KEPT = 8


@dataclass(frozen=True, slots=True)
class ExitRecord:
    """
    How an attempt ended. *code* None with *never_started*: its program never ran; else: nobody could see how.

    Attributes:
        killed: SIGKILL was needed after the grace time.
    """

    code: int | None
    oom: bool = False
    never_started: bool = False
    killed: bool = False


@dataclass(frozen=True, slots=True)
class StopWish:
    """
    Attributes:
        deadline_s: When SIGTERM turns into SIGKILL, on the clock of `astra_agent.lease.now`.
        why: A sentence when the agent itself wants it; empty: it was told to.
        signal: Instead of SIGTERM, to the program alone; empty: SIGTERM.
    """

    grace_s: float
    deadline_s: float
    why: str = ""
    signal: str = ""


@dataclass(frozen=True, slots=True)
class AttemptRecord:
    """
    Attributes:
        placed: Where its run was placed.
        worker: Its name in this attempt; empty: the slot's.
        ports: That its program was told to use; set with *armed*.
        armed: Its container has been there, waiting.
        start_wanted: Start was told.
        start_begun: The container may have been started: from here on, a container that is not there has ended.
        started: The runtime has said so.
        failed: Why it could not be armed or started.
        removed: Its container is gone for good.
    """

    number: int
    env: Mapping[str, str]
    hosts: Mapping[str, str]
    names: RunNames | None = None
    placed: Placed = field(default_factory=Placed)
    worker: str = ""
    ports: tuple[str, ...] = ()
    armed: bool = False
    start_wanted: bool = False
    start_begun: bool = False
    started: bool = False
    stop: StopWish | None = None
    failed: str | None = None
    exit: ExitRecord | None = None
    removed: bool = False


@dataclass(frozen=True, slots=True)
class Prepared:
    """All that a slot has once it is ready; every attempt of it uses the same."""

    image: PreparedImage
    args: tuple[str, ...]
    working_dir: str
    uid: int
    gid: int
    groups: tuple[int, ...]
    address: str
    port: int
    name_server: str = ""
    """The address that its containers ask for names; empty: the machine's own servers, and hosts files."""
    ports: tuple[str, ...] = ()
    """Training ports that were up when the slot came: what its run was placed by."""


@dataclass(frozen=True, slots=True)
class Ending:
    """*code* None: the one that the program ends with."""

    code: int | None
    reason: str
    oom: bool = False


@dataclass(frozen=True, slots=True)
class Tombstone:
    """
    What is left of a slot.

    Attributes:
        newest: Its highest attempt; what uses the ID again counts on from there.
    """

    code: int
    reason: str
    oom: bool = False
    incarnation: str = ""
    newest: int = -1


@dataclass(frozen=True, slots=True)
class SlotRecord:
    """
    Attributes:
        term: The highest of any directive for it.
        newest: The highest attempt that was ever armed; -1: none.
        first: The first attempt's number, of a slot that starts by itself.
        stopped_through: Attempts up to this one are stopped, armed yet or not; -1: none.
        arm_failed: The newest attempt that could not be armed or started.
    """

    request: SlotRequest
    boot: str
    phase: Literal["preparing", "ready", "failed"] = "preparing"
    detail: str = ""
    fault: Fault | None = None
    prepared: Prepared | None = None
    term: int = 0
    newest: int = -1
    first: int = 0
    stopped_through: int = -1
    arm_failed: int | None = None
    told: str = ""
    attempts: tuple[AttemptRecord, ...] = ()
    ending: Ending | None = None

    def request_of(self, attempt: AttemptRecord) -> SlotRequest:
        """The request under the name that the worker has in this attempt."""
        return self.request.model_copy(update={"worker": attempt.worker}) if attempt.worker else self.request

    def attempt(self, number: int) -> AttemptRecord | None:
        return next((attempt for attempt in self.attempts if attempt.number == number), None)

    def with_attempt(self, attempt: AttemptRecord) -> SlotRecord:
        """With *attempt* in the place of the one of its number, or added; the oldest that are gone are dropped."""
        others = [other for other in self.attempts if other.number != attempt.number]
        kept = sorted([*others, attempt], key=lambda one: one.number)
        while len(kept) > ENDED_ATTEMPTS_KEPT and kept[0].removed:
            kept.pop(0)
        return replace(self, attempts=tuple(kept))


@dataclass(frozen=True, slots=True)
class AgentRecord:
    """*epoch* grows with each start of the agent, *term* is the highest of any coordinator that it obeyed."""

    boot: str = ""
    epoch: int = 0
    term: int = 0
