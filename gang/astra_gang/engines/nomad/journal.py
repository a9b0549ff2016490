"""
What a batch makes of the documents: values in, values out.

The head is the one document that a commit writes: it holds every document that has changed and is not known to be in
its own place yet. So a batch is there whole or not at all, and whoever reads next finishes what was cut short.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from pydantic import TypeAdapter

from astra_gang.clock import Reading
from astra_gang.engines.book import BookEntry
from astra_gang.store import EVENTS_KEPT, Batch, RunEvent, RunRecord

SCHEMA = 1
EVENTS_EACH = 100
"""Events in one document: one that is full is never written again."""
READINGS_KEPT = 32
"""Boots of machines that coordinators have run on."""

Path = str
Pending = dict[Path, str | None]
"""Documents that have changed, by path: their text, or None for one that is removed."""

RUNS, EVENTS, BOOK, HEAD = "runs", "events", "book", "head"
RECORDS = TypeAdapter(RunRecord)
EVENT_LISTS = TypeAdapter(tuple[RunEvent, ...])
ENTRIES = TypeAdapter(tuple[BookEntry, ...])


@dataclass(frozen=True, slots=True)
class Head:
    """
    Attributes:
        term: Of the coordinator that wrote it.
        written: Number of this writing within the term; no two have the same.
        readings: The newest of each boot, oldest first.
    """

    term: int = 0
    written: int = 0
    readings: tuple[Reading, ...] = ()
    pending: Pending = field(default_factory=dict)
    schema: int = SCHEMA


HEADS = TypeAdapter(Head)


@dataclass(slots=True)
class Contents:
    """
    What is in the documents, as far as a commit needs it.

    Attributes:
        book: Entries by slot, by name of their document.
        last_event: By uid.
        first_document: Number of the oldest document of events that is kept, by uid.
    """

    book: dict[str, dict[str, BookEntry]] = field(default_factory=dict)
    last_event: dict[str, int] = field(default_factory=dict)
    first_document: dict[str, int] = field(default_factory=dict)

    def copy(self) -> Contents:
        book = {name: dict(entries) for name, entries in self.book.items()}
        return Contents(book, dict(self.last_event), dict(self.first_document))


def with_reading(readings: Iterable[Reading], new: Reading) -> tuple[Reading, ...]:
    """The newest of each boot, in order of the cluster's clock."""
    kept = {reading.boot: reading for reading in readings} | {new.boot: new}
    return tuple(sorted(kept.values(), key=lambda reading: reading.seconds))[-READINGS_KEPT:]


def changes(batch: Batch, contents: Contents, tails: Mapping[Path, tuple[RunEvent, ...]]) -> Pending:
    """
    What *batch* makes of the documents; *contents* is brought up to date.

    Args:
        tails: The documents of events that it adds to, as they are: see `touched`.
    """
    pending: Pending = {}
    for run in batch.runs:
        pending[f"{RUNS}/{run.state.uid}"] = RECORDS.dump_json(run).decode()
    pending |= _events(batch, contents, tails)
    pending |= _book(batch, contents)
    for uid in batch.forget_runs:
        pending |= _forgotten(uid, contents)
    return pending


def touched(batch: Batch) -> tuple[Path, ...]:
    """Paths of the documents that the batch's events go into."""
    return tuple(sorted({events_path(event.uid, number_of(event.id)) for event in batch.events}))


def number_of(event: int) -> int:
    """Of the document that an event is in."""
    return (event - 1) // EVENTS_EACH


def events_path(uid: str, number: int) -> Path:
    return f"{EVENTS}/{uid}/{number}"


def _events(batch: Batch, contents: Contents, tails: Mapping[Path, tuple[RunEvent, ...]]) -> Pending:
    added: defaultdict[Path, dict[int, RunEvent]] = defaultdict(dict)
    for event in batch.events:
        path = events_path(event.uid, number_of(event.id))
        if path not in added:
            added[path] = {known.id: known for known in tails.get(path, ())}
        added[path][event.id] = event
        contents.last_event[event.uid] = max(event.id, contents.last_event.get(event.uid, 0))
        contents.first_document.setdefault(event.uid, number_of(event.id))
    pending: Pending = {
        path: EVENT_LISTS.dump_json(tuple(events[number] for number in sorted(events))).decode()
        for path, events in added.items()
    }
    for uid in {event.uid for event in batch.events}:
        oldest = number_of(max(1, contents.last_event[uid] - EVENTS_KEPT + 1))
        for number in range(contents.first_document[uid], oldest):
            pending[events_path(uid, number)] = None
        contents.first_document[uid] = max(oldest, contents.first_document[uid])
    return pending


def _book(batch: Batch, contents: Contents) -> Pending:
    """One document for the slots of one run: a reservation is one writing, however many slots it has."""
    changed: set[str] = set()
    place = {slot: name for name, entries in contents.book.items() for slot in entries}
    for entry in batch.book:
        name = place.get(entry.slot) or (entry.reservation.rpartition("/")[0] or NO_RUN)
        contents.book.setdefault(name, {})[entry.slot] = entry
        place[entry.slot] = name
        changed.add(name)
    for slot in batch.forget_slots:
        if (found := place.get(slot)) is not None:
            contents.book[found].pop(slot, None)
            changed.add(found)
    pending: Pending = {}
    for name in changed:
        entries = contents.book[name]
        pending[f"{BOOK}/{name}"] = ENTRIES.dump_json(tuple(entries.values())).decode() if entries else None
        if not entries:
            del contents.book[name]
    return pending


NO_RUN = "given-back-first"
"""Document of the slots that were given back before they were reserved."""


def _forgotten(uid: str, contents: Contents) -> Pending:
    pending: Pending = {f"{RUNS}/{uid}": None}
    if uid in contents.last_event:
        first, last = contents.first_document[uid], number_of(contents.last_event[uid])
        pending |= {events_path(uid, number): None for number in range(first, last + 1)}
        del contents.last_event[uid], contents.first_document[uid]
    return pending


def next_head(head: Head, batch: Batch, pending: Pending, written: int) -> Head:
    return replace(head, written=written, readings=with_reading(head.readings, batch.reading), pending=pending)
