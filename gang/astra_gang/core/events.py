"""What may happen to a run. Every event may come late, twice, or out of order; the core takes what still applies."""

from __future__ import annotations

from dataclasses import dataclass

from astra_gang.core.state import SPARE, Assignment, AttemptSeen


@dataclass(frozen=True, slots=True)
class Placed:
    """
    The answer to `Place`: a machine for every rank and every spare that was asked for. For a pending run whose spec
    leaves its shape open there may be more or fewer ranks, from 0 on.

    Attributes:
        channel: The run's IMEX channel, in an NVLink domain.
    """

    reservation: int
    assignments: tuple[Assignment, ...]
    tier: str
    domain: str
    why: str
    channel: int = 0

    @property
    def workers(self) -> int:
        """How many ranks have a machine, without the spares."""
        return sum(assignment.rank != SPARE for assignment in self.assignments)


@dataclass(frozen=True, slots=True)
class NotPlaced:
    """The answer to `Place`. *reason* is one sentence with what would let it start."""

    reservation: int
    reason: str


@dataclass(frozen=True, slots=True)
class Reserved:
    """The engine holds every machine of the reservation, and has asked their agents to prepare the slots."""

    reservation: int


@dataclass(frozen=True, slots=True)
class NotReserved:
    """The engine could not get all of them; what it got must be given back."""

    reservation: int
    reason: str


@dataclass(frozen=True, slots=True)
class Proved:
    """The answer to `Prove`. *verdict*, *sentence*, *blamed* as in `Proof`."""

    slots: tuple[str, ...]
    verdict: str
    sentence: str
    blamed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SlotSeen:
    """What an agent says of a slot, whole. *rev* grows with every report of a slot."""

    slot: str
    rev: int
    phase: str
    detail: str = ""
    fault: str | None = None
    address: str | None = None
    port: int | None = None
    attempts: tuple[AttemptSeen, ...] = ()
    arm_failed: int | None = None
    stuck: str | None = None
    incarnation: str = ""


@dataclass(frozen=True, slots=True)
class SlotGone:
    """
    The machine is there and does not have this slot (any more): it was booted, or its agent's state was removed.

    Attributes:
        for_good: Its engine has said so: it does not come back either.
    """

    slot: str
    for_good: bool = False


@dataclass(frozen=True, slots=True)
class MachineLost:
    """The machine was cut off for longer than the disconnect limit: its agent has stopped its workers by itself."""

    machine: str


@dataclass(frozen=True, slots=True)
class MachineWithdrawn:
    """The machine is there, and what runs on it has to go elsewhere. *why*: a sentence."""

    machine: str
    why: str


@dataclass(frozen=True, slots=True)
class GivenBack:
    """The engine has durably taken the slot back: it frees the machine's resources once its processes are gone."""

    slot: str


@dataclass(frozen=True, slots=True)
class StopAsked:
    by: str = "the user"


@dataclass(frozen=True, slots=True)
class ClusterChanged:
    """Machines came, or resources became free: a pending run may fit now."""


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed; sent at `deadline(state)`."""


Event = (
    Placed | NotPlaced | Reserved | NotReserved | Proved | SlotSeen | SlotGone | MachineLost | MachineWithdrawn
    | GivenBack | StopAsked | ClusterChanged | Tick
)  # fmt: skip
