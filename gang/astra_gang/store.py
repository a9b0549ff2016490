"""
The port to the coordinator's records: everything it must find again after it was killed at any moment.

Adapter: `astra_gang.sqlite_store`, and Nomad's Variables later. `tests/contract/test_store.py` is the suite of both.
Values are frozen dataclasses; how they are written is the adapter's affair.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from astra_gang.clock import Reading
from astra_gang.core import RunState
from astra_gang.engines.book import BookEntry
from astra_gang.spec import Spec

EVENTS_KEPT = 10_000
"""Of one run; the oldest are forgotten beyond that."""


@dataclass(frozen=True, slots=True)
class RunRecord:
    """A run as it was submitted, and where it stands."""

    spec: Spec
    state: RunState


@dataclass(frozen=True, slots=True)
class RunEvent:
    """
    A sentence about a run, for its users.

    Attributes:
        uid: Of the run.
        id: From 1, without gaps, in the order in which things happened to this run.
        at: Seconds on the cluster's clock.
        level: `info`, `warning` or `error`.
    """

    uid: str
    id: int
    at: float
    level: str
    sentence: str
    rank: int | None = None
    attempt: int | None = None


@dataclass(frozen=True, slots=True)
class Batch:
    """What becomes durable together, or not at all. Writing the same batch twice leaves what writing it once does."""

    reading: Reading
    runs: tuple[RunRecord, ...] = ()
    events: tuple[RunEvent, ...] = ()
    book: tuple[BookEntry, ...] = ()
    forget_runs: tuple[str, ...] = ()
    """Uids: the run and its events are removed."""
    forget_slots: tuple[str, ...] = ()
    """Book entries to remove."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """
    Attributes:
        readings: The newest of each boot, oldest boot first.
        runs: In order of submission.
        last_event: The highest event ID of each run, by uid; a run without events is absent.
    """

    readings: tuple[Reading, ...]
    runs: tuple[RunRecord, ...]
    last_event: dict[str, int]
    book: tuple[BookEntry, ...]


class Store(Protocol):
    """Every method raises `Unavailable` when the records can't be reached; nothing is then half done."""

    async def begin_term(self) -> int:
        """A number higher than every one before, recorded before it is returned: what is older may not act (rule 4)."""
        ...

    async def load(self) -> Loaded: ...

    async def commit(self, batch: Batch) -> None: ...

    async def events(self, uid: str, after: int, limit: int) -> tuple[RunEvent, ...]:
        """At most *limit* events of a run with an ID above *after*, in order."""
        ...
