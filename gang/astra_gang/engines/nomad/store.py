"""
The records in Nomad Variables: `astra_gang.store.Store` on single-item check-and-set.

A commit writes one document, the head, with everything that it changes; only then it is recorded. The documents find
their own places afterwards. Whoever begins a term writes the head, so a coordinator of an older term can write nothing
any more: it hears `Stale` and ends.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Iterable
from dataclasses import replace
from typing import TypeVar

from pydantic import TypeAdapter, ValidationError

from astra_agent.errors import Conflict, InvalidRequest, Stale, Unavailable
from astra_gang.engines.nomad.journal import (
    BOOK,
    ENTRIES,
    EVENT_LISTS,
    EVENTS,
    HEAD,
    HEADS,
    RECORDS,
    RUNS,
    SCHEMA,
    Contents,
    Head,
    Pending,
    changes,
    events_path,
    next_head,
    number_of,
    touched,
)
from astra_gang.engines.nomad.shelf import NONE, Kept, Shelf
from astra_gang.store import EVENTS_KEPT, Batch, Loaded, RunEvent

_log = logging.getLogger(__name__)

CARRIED_MAX = 32 * 1024
"""Bytes of documents that the head carries before they are put in their own places."""
PATIENCE_S = 8.0
"""
How long a commit asks what became of it before it is given up: longer than one writing may take (`api.WRITTEN_S`), so
that what is told is why.
"""
_READING = 16
"""Documents that are read at the same time."""
_T = TypeVar("_T")


class NomadStore:
    """
    Used by the one coordinator that holds the office (`office`); `run` puts documents in their places meanwhile.

    Args:
        prefix: Of all paths, without a slash at its end.
    """

    def __init__(
        self, shelf: Shelf, prefix: str, *, carried_max: int = CARRIED_MAX, patience_s: float = PATIENCE_S
    ) -> None:
        self._shelf = shelf
        self._prefix = prefix
        self._carried_max = carried_max
        self._patience_s = patience_s
        self._head = Head()
        self._head_kept = NONE
        self._written = 0
        self._nonce = secrets.token_hex(4)
        """Two coordinators that begin a term at the same moment name their writings differently."""
        self._kept: dict[str, Kept] = {}
        self._contents = Contents()
        self._tails: dict[str, tuple[RunEvent, ...]] = {}
        """The newest document of events of each run that has been added to, by path."""
        self._writing = asyncio.Lock()
        self._full = asyncio.Event()

    # The port --------------------------------------------------------------------------------------------------------

    async def begin_term(self) -> int:
        async with self._writing:
            for _ in range(_CONTENDERS):
                kept = await self._shelf.read(self._at(HEAD))
                found = _checked(self._parse(HEADS, HEAD, kept.text)) if kept.index else Head()
                head = replace(found, term=found.term + 1, written=0)
                try:
                    self._head_kept = await self._put_head(head, kept)
                except Conflict:
                    continue
                self._head, self._written = head, 0
                return head.term
        raise Unavailable("other coordinators begin terms as fast as this one: start one of them only")

    async def load(self) -> Loaded:
        async with self._writing:
            # What the head carries is newer than what is in its place, or the same.
            carried = self._head.pending
            await self._shelf.tidy(f"{self._prefix}/")
            paths = {path.removeprefix(f"{self._prefix}/") for path in await self._shelf.paths(f"{self._prefix}/")}
            wanted = {path for path in paths if path.partition("/")[0] in (RUNS, BOOK)}
            await self._read_all(wanted - set(carried))
            texts = {path: kept.text for path, kept in self._kept.items()} | carried
            runs = [self._parse(RECORDS, p, text) for p, text in _under(RUNS, texts)]
            book = {p: self._parse(ENTRIES, p, text) for p, text in _under(BOOK, texts)}
            self._contents = Contents(
                book={p.partition("/")[2]: {entry.slot: entry for entry in entries} for p, entries in book.items()},
                **await self._numbers(paths, carried),
            )
            self._kept = {path: replace(kept, text="") for path, kept in self._kept.items()}
        entries = [entry for of_run in book.values() for entry in of_run]
        return Loaded(
            readings=self._head.readings,
            runs=tuple(sorted(runs, key=lambda run: (run.state.submitted_at, run.state.uid))),
            last_event=dict(self._contents.last_event),
            book=tuple(sorted(entries, key=lambda entry: entry.slot)),
        )

    async def commit(self, batch: Batch) -> None:
        """Raises also `Stale`: another coordinator has begun a term, so this one must end."""
        async with self._writing:
            tails = {path: await self._events_at(path) for path in touched(batch)}
            contents = self._contents.copy()
            pending = self._head.pending | changes(batch, contents, tails)
            self._written += 1  # also by a writing whose answer is lost: no two have the same number
            head = next_head(self._head, batch, pending, self._written)
            self._head_kept = await self._surely(head)
            self._head, self._contents = head, contents
            self._remember_tails(batch)
        if _size(pending) > self._carried_max:
            self._full.set()
        if _size(pending) > _FULL_FACTOR * self._carried_max:
            await self._put_away()

    async def events(self, uid: str, after: int, limit: int) -> tuple[RunEvent, ...]:
        last = self._contents.last_event.get(uid, 0)
        after = max(after, last - EVENTS_KEPT)
        found: list[RunEvent] = []
        for number in range(number_of(after + 1), number_of(last) + 1 if last else 0):
            found += [e for e in await self._events_at(events_path(uid, number)) if e.id > after]
            if len(found) >= limit:
                break
        return tuple(found[:limit])

    # Its life --------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Put documents in their places when the head carries too many, until cancelled. Raises: Stale."""
        while True:
            await self._full.wait()
            self._full.clear()
            try:
                await self._put_away()
            except Unavailable as error:
                _log.warning("documents_carried bytes=%d reason=%r", _size(self._head.pending), str(error))
                await asyncio.sleep(1.0)
                self._full.set()

    async def _put_away(self) -> None:
        """Every document that the head carries goes to its own place; the next head carries it no more."""
        async with self._writing:
            for path, text in list(self._head.pending.items()):
                await self._put(path, text)
                pending = {p: t for p, t in self._head.pending.items() if p != path}
                self._head = replace(self._head, pending=pending)

    async def _put(self, path: str, text: str | None) -> None:
        before = self._kept.pop(path, None) or await self._shelf.read(self._at(path))
        written = self._name(self._head.term, self._written)
        try:
            await self._put_over(before, path, text, written)
        except Conflict:
            # It is of a writing of ours whose answer was lost, or the last one of the coordinator before us.
            await self._still_ours()
            await self._put_over(await self._shelf.read(self._at(path)), path, text, written)

    async def _put_over(self, before: Kept, path: str, text: str | None, written: str) -> None:
        if text is not None:
            kept = await self._shelf.write(self._at(path), text, before, written)
            self._kept[path] = replace(kept, text="")
        elif before.index:
            await self._shelf.delete(self._at(path), before)

    # The head --------------------------------------------------------------------------------------------------------

    async def _surely(self, head: Head) -> Kept:
        """
        Write it, and know that it is written.

        Raises:
            Unavailable: It is not, or nobody can be asked any more. The next writing leaves nothing of it.
            Stale: Somebody else's is there.
        """
        trouble: Unavailable | None = None
        try:
            async with asyncio.timeout(self._patience_s):
                while True:
                    try:
                        return await self._put_head(head, self._head_kept)
                    except Conflict:
                        found = await self._still_ours()
                        if found.written == head.written:
                            return self._head_kept
                    except Unavailable as error:
                        trouble = error
                        await asyncio.sleep(_AGAIN_S)
        except TimeoutError:
            raise Unavailable(f"nothing is recorded: {trouble or 'Nomad does not answer'}") from trouble

    async def _put_head(self, head: Head, before: Kept) -> Kept:
        text = HEADS.dump_json(head).decode()
        return await self._shelf.write(self._at(HEAD), text, before, self._name(head.term, head.written))

    async def _still_ours(self) -> Head:
        """
        The head as it is now, which the next writing replaces.

        Raises:
            Stale: It is of another term.
        """
        kept = await self._shelf.read(self._at(HEAD))
        found = self._parse(HEADS, HEAD, kept.text) if kept.index else Head()
        if found.term != self._head.term:
            raise Stale(
                f"another coordinator has taken over (term {found.term}, this one had {self._head.term}): "
                "this one ends; workers go on"
            )
        self._head_kept = kept
        return found

    # Reading ---------------------------------------------------------------------------------------------------------

    async def _events_at(self, path: str) -> tuple[RunEvent, ...]:
        if (tail := self._tails.get(path)) is not None:
            return tail
        carried = path in self._head.pending
        text = self._head.pending[path] if carried else (await self._shelf.read(self._at(path))).text
        return self._parse(EVENT_LISTS, path, text) if text else ()

    def _remember_tails(self, batch: Batch) -> None:
        """Only the newest document of a run is added to."""
        for uid in {event.uid for event in batch.events} | set(batch.forget_runs):
            self._tails = {p: events for p, events in self._tails.items() if not p.startswith(f"{EVENTS}/{uid}/")}
        for path in touched(batch):
            text = self._head.pending.get(path)
            if text is not None and path == self._tail_of(path):
                self._tails[path] = self._parse(EVENT_LISTS, path, text)

    def _tail_of(self, path: str) -> str:
        uid = path.split("/")[1]
        return events_path(uid, number_of(self._contents.last_event.get(uid, 1)))

    async def _numbers(self, paths: set[str], carried: Pending) -> dict[str, dict[str, int]]:
        """First documents and last events of all runs, from the paths and the newest documents."""
        there = (paths | {p for p, text in carried.items() if text}) - {p for p, text in carried.items() if not text}
        numbers: dict[str, list[int]] = {}
        for path in there:
            if path.startswith(f"{EVENTS}/"):
                _, uid, number = path.split("/")
                numbers.setdefault(uid, []).append(int(number))
        tails = await _at_once([self._events_at(events_path(uid, max(of_run))) for uid, of_run in numbers.items()])
        last = {uid: events[-1].id for uid, events in zip(numbers, tails, strict=True) if events}
        first = {uid: min(of_run) for uid, of_run in numbers.items() if uid in last}
        return {"last_event": last, "first_document": first}

    async def _read_all(self, paths: Iterable[str]) -> None:
        names = sorted(paths)
        found = await _at_once([self._shelf.read(self._at(path)) for path in names])
        self._kept = {path: kept for path, kept in zip(names, found, strict=True) if kept.index}

    def _parse(self, adapter: TypeAdapter[_T], path: str, text: str) -> _T:
        try:
            return adapter.validate_json(text)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            raise InvalidRequest(
                f"variable {self._at(path)} can't be read ({where}: {first['msg']}): "
                "it was written by another version, or by hand"
            ) from error

    def _name(self, term: int, written: int) -> str:
        return f"{term}-{written}-{self._nonce}"

    def _at(self, path: str) -> str:
        return f"{self._prefix}/{path}"


_CONTENDERS = 20
_AGAIN_S = 0.3
_FULL_FACTOR = 8
"""Beyond so many times what a head should carry, a commit waits until it carries less."""


def _checked(head: Head) -> Head:
    if head.schema > SCHEMA:
        raise InvalidRequest(
            f"the records were written by a newer version (schema {head.schema}; this one reads {SCHEMA}): "
            "start that version, or use another [engine] prefix",
            field="engine.prefix",
        )
    return head


def _under(folder: str, texts: Pending) -> list[tuple[str, str]]:
    return [(p, text) for p, text in sorted(texts.items()) if p.startswith(f"{folder}/") and text is not None]


def _size(pending: Pending) -> int:
    return sum(len(text or "") for text in pending.values())


async def _at_once(calls: Iterable[Awaitable[_T]]) -> list[_T]:
    """The results, in order, of a bounded number of calls at the same time."""
    room = asyncio.Semaphore(_READING)

    async def one(call: Awaitable[_T]) -> _T:
        async with room:
            return await call

    return list(await asyncio.gather(*(one(call) for call in calls)))
