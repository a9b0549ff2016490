"""A store in memory, which fails when it is told to and can be looked at after every commit."""

from __future__ import annotations

from collections.abc import Callable

from astra_agent.errors import Unavailable
from astra_gang.clock import Reading
from astra_gang.engines.book import BookEntry
from astra_gang.store import Batch, Loaded, RunEvent, RunRecord


class MemoryStore:
    """
    Outlives the coordinator that uses it: give it to the next one.

    Attributes:
        failing: A sentence while every commit is refused with it.
        commits: How many have been made.
        book: The engine's entries, by slot.
        before_commit, after_commit: Called around each, with its number; may raise.
    """

    def __init__(self) -> None:
        self.failing: str | None = None
        self.commits = 0
        self.before_commit: Callable[[int], None] = lambda _: None
        self.after_commit: Callable[[int], None] = lambda _: None
        self.terms = 0
        self._readings: dict[str, Reading] = {}
        self._runs: dict[str, RunRecord] = {}
        self._events: dict[str, dict[int, RunEvent]] = {}
        self.book: dict[str, BookEntry] = {}

    async def begin_term(self) -> int:
        self.terms += 1
        return self.terms

    async def load(self) -> Loaded:
        return Loaded(
            readings=tuple(sorted(self._readings.values(), key=lambda reading: reading.seconds)),
            runs=tuple(sorted(self._runs.values(), key=lambda run: run.state.submitted_at)),
            last_event={uid: max(events) for uid, events in self._events.items() if events},
            book=tuple(entry for _, entry in sorted(self.book.items())),
        )

    async def commit(self, batch: Batch) -> None:
        if self.failing is not None:
            raise Unavailable(self.failing)
        self.before_commit(self.commits + 1)
        self._readings[batch.reading.boot] = batch.reading
        self._runs.update((run.state.uid, run) for run in batch.runs)
        for event in batch.events:
            self._events.setdefault(event.uid, {})[event.id] = event
        self.book.update((entry.slot, entry) for entry in batch.book)
        for uid in batch.forget_runs:
            self._runs.pop(uid, None)
            self._events.pop(uid, None)
        for slot in batch.forget_slots:
            self.book.pop(slot, None)
        self.commits += 1
        self.after_commit(self.commits)

    async def events(self, uid: str, after: int, limit: int) -> tuple[RunEvent, ...]:
        events = self._events.get(uid, {})
        return tuple(events[number] for number in sorted(events) if number > after)[:limit]
