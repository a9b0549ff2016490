"""
Who keeps the book: every change is committed before anybody acts on it (rule 5), one change at a time.

Both engines keep theirs here; how a slot comes to life and how it ends is each engine's own.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from astra_agent.errors import NoCapacity, Unavailable
from astra_gang.clock import Clock
from astra_gang.engine import Held, Machine, SlotOffer
from astra_gang.engines.book import TOMBSTONE_KEPT_S, BookEntry, Hold, lack
from astra_gang.store import Batch, Store

_log = logging.getLogger(__name__)

Room = Callable[[str, Sequence[BookEntry]], Machine | None]
"""What a machine has left beside these entries, by its name; None when it is not known."""


class Keeping:
    """
    Every change raises `Unavailable` when it can't be recorded, and nothing has changed then.

    Args:
        entries: What the store had.
        left: Called with each entry that has begun to leave, those of *entries* too; must not wait.
    """

    def __init__(
        self, *, store: Store, clock: Clock, entries: Iterable[BookEntry], left: Callable[[BookEntry], None]
    ) -> None:
        self._store = store
        self._clock = clock
        self._book = {entry.slot: entry for entry in entries}
        self._left = left
        self._writing = asyncio.Lock()

    # Reading ---------------------------------------------------------------------------------------------------------

    def get(self, slot: str) -> BookEntry | None:
        return self._book.get(slot)

    def all(self) -> tuple[BookEntry, ...]:
        """Those that are gone, too; by slot."""
        return tuple(entry for _, entry in sorted(self._book.items()))

    def on(self, machine: str) -> tuple[BookEntry, ...]:
        return tuple(entry for entry in self.all() if entry.machine == machine)

    def leaving(self) -> tuple[BookEntry, ...]:
        return tuple(entry for entry in self.all() if entry.hold is Hold.LEAVING)

    def held(self) -> tuple[Held, ...]:
        """As `astra_gang.engine.Engine.held`."""
        return tuple(
            Held(entry.slot, entry.machine, leaving=entry.hold is Hold.LEAVING)
            for entry in self.all()
            if entry.hold is not Hold.GONE and entry.machine is not None
        )

    def is_held(self, slot: str) -> bool:
        entry = self._book.get(slot)
        return entry is not None and entry.hold is Hold.HELD

    # Writing ---------------------------------------------------------------------------------------------------------

    async def hold(self, reservation: str, offers: Sequence[SlotOffer], room: Room) -> None:
        """
        Write all of *offers* as held; what is held already stays.

        Raises:
            NoCapacity: One of them does not fit, or was given back; none of them is held then.
        """
        async with self._writing:
            known = [entry for offer in offers if (entry := self._book.get(offer.request.slot)) is not None]
            over = next((entry for entry in known if entry.hold is not Hold.HELD), None)
            if over is not None:
                await self._leave([entry.slot for entry in known], over.code, over.reason)
                raise NoCapacity(f"slot {over.slot} of this reservation has been given back")
            fresh: dict[str, BookEntry] = {}
            for offer in offers:
                if offer.request.slot not in self._book:
                    self._check(offer, fresh.values(), room)
                    fresh[offer.request.slot] = BookEntry(
                        offer.request.slot, offer.machine, reservation, offer.request, Hold.HELD, self._clock.now()
                    )
            await self._write(fresh.values())

    async def leave(self, slots: Iterable[str], code: int, reason: str) -> None:
        """Those that are held begin to leave. Idempotent."""
        async with self._writing:
            await self._leave(slots, code, reason)

    async def give_back(self, slot: str, code: int, reason: str) -> None:
        """As `leave`; a slot that is not known never comes to life."""
        async with self._writing:
            if slot in self._book:
                await self._leave([slot], code, reason)
            else:
                await self._write([BookEntry(slot, None, "", None, Hold.GONE, self._clock.now(), code, reason)])

    async def take_in(self, machine: str, slots: Iterable[str], reason: str) -> None:
        """Slots that this book did not hand out begin to leave, so that their machine is not used before."""
        async with self._writing:
            strangers = [
                BookEntry(slot, machine, "", None, Hold.LEAVING, self._clock.now(), 143, reason)
                for slot in sorted(slots)
                if (entry := self._book.get(slot)) is None or entry.hold is Hold.GONE
            ]
            await self._write(strangers)
        for entry in strangers:
            _log.warning("stranger slot=%s machine=%s reason=%r", entry.slot, machine, reason)
            self._left(entry)

    async def set_free(self, slot: str) -> None:
        """Nothing of it is left: its resources are free."""
        async with self._writing:
            entry = self._book[slot]
            await self._write([replace(entry, hold=Hold.GONE, since=self._clock.now())])
        _log.info("slot_free slot=%s machine=%s", slot, entry.machine)

    async def run(self) -> None:
        """Say what is leaving already; then forget old tombstones now and then, until cancelled."""
        for entry in self.leaving():
            self._left(entry)
        while True:
            before = self._clock.now() - TOMBSTONE_KEPT_S
            async with self._writing:
                old = tuple(e.slot for e in self._book.values() if e.hold is Hold.GONE and e.since < before)
                try:
                    if old:
                        await self._store.commit(Batch(self._clock.reading(), forget_slots=old))
                    for slot in old:
                        del self._book[slot]
                except Unavailable as error:
                    _log.warning("tombstones_kept reason=%r", str(error))
            await self._clock.sleep_until(self._clock.now() + TOMBSTONE_KEPT_S / 24)

    def _check(self, offer: SlotOffer, earlier: Iterable[BookEntry], room: Room) -> None:
        entries = [*self.on(offer.machine), *(entry for entry in earlier if entry.machine == offer.machine)]
        machine = room(offer.machine, entries)
        if machine is None:
            raise NoCapacity(f"{offer.machine} is not connected")
        missing = lack(machine, offer)
        if missing is not None:
            raise NoCapacity(missing)

    async def _leave(self, slots: Iterable[str], code: int, reason: str) -> None:
        now = self._clock.now()
        held = [entry for slot in slots if (entry := self._book[slot]).hold is Hold.HELD]
        leaving = [replace(e, hold=Hold.LEAVING, since=now, code=code, reason=reason) for e in held]
        await self._write(leaving)
        for entry in leaving:
            self._left(entry)

    async def _write(self, entries: Iterable[BookEntry]) -> None:
        """The caller holds `_writing`."""
        changed = tuple(entries)
        if changed:
            await self._store.commit(Batch(self._clock.reading(), book=changed))
            self._book.update((entry.slot, entry) for entry in changed)
