"""What the core wants done. All but `Tell` are outstanding until an event shows them done, and may be done twice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from astra_gang.core.state import Assignment


@dataclass(frozen=True, slots=True)
class Place:
    """
    Find machines for *ranks*: whole, or none. Answered by `Placed` or `NotPlaced` with the same *reservation*.

    Attributes:
        keep: Machines that the run holds: the new ones belong to the same domain.
        avoid: Machines that must not be chosen.
        spares: How many machines more, as whole as the rest.
    """

    reservation: int
    ranks: tuple[int, ...]
    keep: tuple[str, ...]
    avoid: tuple[str, ...]
    spares: int = 0


@dataclass(frozen=True, slots=True)
class Reserve:
    """Ask the engine for exactly these. Answered by `Reserved` or `NotReserved`."""

    reservation: int
    assignments: tuple[Assignment, ...]


@dataclass(frozen=True, slots=True)
class Prove:
    """Measure the network between *machines*, those of *slots*. Answered by `Proved` with the same *slots*."""

    slots: tuple[str, ...]
    machines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Arm:
    """Create the attempt in this slot. Shown done by a `SlotSeen` with this attempt armed or beyond, or arm_failed."""

    slot: str
    machine: str
    rank: int
    attempt: int


@dataclass(frozen=True, slots=True)
class Start:
    slot: str
    machine: str
    attempt: int


@dataclass(frozen=True, slots=True)
class Stop:
    """Stop this attempt and every older one in the slot."""

    slot: str
    machine: str
    attempt: int
    grace_s: float


@dataclass(frozen=True, slots=True)
class GiveBack:
    """The slot ends; the engine has its machine again. *code* is how the worker ended, for the engine's own record."""

    slot: str
    machine: str
    code: int
    reason: str


@dataclass(frozen=True, slots=True)
class Tell:
    """
    A sentence for the user, with what it is about. *level*: `info`, `warning` or `error`.

    Attributes:
        slots: Whether it is also for who looks at the run's slots through the engine, which shows a few only.
    """

    sentence: str
    rank: int | None = None
    attempt: int | None = None
    level: str = "info"
    slots: Literal["no", "if it lasts", "at once"] = "no"


@dataclass(frozen=True, slots=True)
class Ignore:
    """The event did not apply any more; for the coordinator's log only."""

    reason: str


Decision = Place | Reserve | Prove | Arm | Start | Stop | GiveBack | Tell | Ignore
