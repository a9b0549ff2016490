"""
The embedded engine: its book in the coordinator's own store, its hands the unix sockets of a few agents.

Order of everything: the book first (durable), then the agent. A slot that is given back takes its resources until its
agent has answered that nothing of it is left, so no GPU, core or port has two holders (rule 3). The agent is asked
again, with growing pauses, for as long as it takes; a restart of either side changes nothing: both have it in writing.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Protocol

from astra_agent.errors import AstraError, Conflict, InvalidRequest, NoCapacity, Unavailable
from astra_agent.wire import SlotRequest
from astra_gang.clock import Clock
from astra_gang.engine import Held, Machine, SlotOffer
from astra_gang.engines.book import TOMBSTONE_KEPT_S, BookEntry, Hold, free, lack
from astra_gang.roster import Roster
from astra_gang.store import Batch, Store

_log = logging.getLogger(__name__)

HAND_OVER_S = 30.0
"""How long one `reserve` keeps asking an agent that does not answer. It restarts within seconds."""
_AT_ONCE = 64
"""Agents that are asked at the same time."""


class Door(Protocol):
    """An agent's socket; `agent_socket.AgentSocket` says what each raises."""

    async def put(self, request: SlotRequest) -> None: ...

    async def finish(self, slot: str, code: int, reason: str) -> None: ...

    async def is_gone(self, slot: str) -> bool: ...


class EmbeddedEngine:
    """
    Implements `astra_gang.engine.Engine`. `run` must be running for slots that leave to become free.

    Args:
        doors: The agents' sockets by machine: exactly these machines are the cluster.
        book: What the store had.
    """

    def __init__(
        self,
        *,
        store: Store,
        clock: Clock,
        roster: Roster,
        doors: Mapping[str, Door],
        book: Iterable[BookEntry] = (),
        hand_over_s: float = HAND_OVER_S,
    ) -> None:
        self._store = store
        self._clock = clock
        self._roster = roster
        self._doors = dict(doors)
        self._book = {entry.slot: entry for entry in book}
        self._hand_over_s = hand_over_s
        self._writing = asyncio.Lock()
        self._talking: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._asking = asyncio.Semaphore(_AT_ONCE)
        self._to_clear: asyncio.Queue[str] = asyncio.Queue()
        self._arrived: asyncio.Queue[str] = asyncio.Queue()
        roster.arrivals.append(self._arrived.put_nowait)
        for entry in self._book.values():
            if entry.hold is Hold.LEAVING:
                self._to_clear.put_nowait(entry.slot)

    # The port --------------------------------------------------------------------------------------------------------

    async def machines(self) -> tuple[Machine, ...]:
        return tuple(machine for name in sorted(self._doors) if (machine := self._machine(name)) is not None)

    async def reserve(self, reservation: str, offers: tuple[SlotOffer, ...]) -> None:
        async with self._writing:
            await self._record(reservation, offers)
        async with asyncio.TaskGroup() as group:
            asked = [group.create_task(self._hand_over(offer)) for offer in offers]
        failed = [error for task in asked if (error := task.result()) is not None]
        if not failed:
            return
        async with self._writing:
            await self._leave([offer.request.slot for offer in offers], 143, "the reservation failed")
        raise failed[0]

    async def give_back(self, slot: str, code: int, reason: str) -> None:
        async with self._writing:
            if slot in self._book:
                await self._leave([slot], code, reason)
            else:
                await self._write([BookEntry(slot, None, "", None, Hold.GONE, self._clock.now(), code, reason)])

    async def held(self) -> tuple[Held, ...]:
        return tuple(
            Held(entry.slot, entry.machine, leaving=entry.hold is Hold.LEAVING)
            for _, entry in sorted(self._book.items())
            if entry.hold is not Hold.GONE and entry.machine is not None
        )

    async def run(self) -> None:
        """Clear what leaves, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._watch_arrivals())
            group.create_task(self._forget_tombstones())
            while True:
                slot = await self._to_clear.get()
                group.create_task(self._clear(slot))

    # The book --------------------------------------------------------------------------------------------------------

    def _machine(self, name: str) -> Machine | None:
        seen = self._roster.get(name)
        if seen is None:
            return None
        return free(seen.facts, self._on(name), connected=seen.connected)

    def _on(self, machine: str) -> list[BookEntry]:
        return [entry for entry in self._book.values() if entry.machine == machine]

    async def _record(self, reservation: str, offers: tuple[SlotOffer, ...]) -> None:
        """Write all of *offers* as held, or raise `NoCapacity` and hold none of them."""
        known = [entry for offer in offers if (entry := self._book.get(offer.request.slot)) is not None]
        over = next((entry for entry in known if entry.hold is not Hold.HELD), None)
        if over is not None:
            await self._leave([entry.slot for entry in known], over.code, over.reason)
            raise NoCapacity(f"slot {over.slot} of this reservation has been given back")
        fresh: dict[str, BookEntry] = {}
        for offer in offers:
            if offer.request.slot not in self._book:
                self._check(offer, fresh.values())
                fresh[offer.request.slot] = BookEntry(
                    offer.request.slot, offer.machine, reservation, offer.request, Hold.HELD, self._clock.now()
                )
        await self._write(fresh.values())

    def _check(self, offer: SlotOffer, earlier: Iterable[BookEntry]) -> None:
        seen = self._roster.get(offer.machine)
        if offer.machine not in self._doors or seen is None:
            raise NoCapacity(f"{offer.machine} is not connected")
        entries = [*self._on(offer.machine), *(entry for entry in earlier if entry.machine == offer.machine)]
        missing = lack(free(seen.facts, entries, connected=seen.connected), offer)
        if missing is not None:
            raise NoCapacity(missing)

    async def _leave(self, slots: Iterable[str], code: int, reason: str) -> None:
        now = self._clock.now()
        held = [entry for slot in slots if (entry := self._book[slot]).hold is Hold.HELD]
        await self._write([replace(e, hold=Hold.LEAVING, since=now, code=code, reason=reason) for e in held])
        for entry in held:
            self._to_clear.put_nowait(entry.slot)

    async def _write(self, entries: Iterable[BookEntry]) -> None:
        """The caller holds `_writing`."""
        changed = tuple(entries)
        if changed:
            await self._store.commit(Batch(self._clock.reading(), book=changed))
            self._book.update((entry.slot, entry) for entry in changed)

    async def _forget_tombstones(self) -> None:
        """Now and then, until cancelled."""
        while True:
            before = self._clock.now() - TOMBSTONE_KEPT_S
            async with self._writing:
                old = tuple(e.slot for e in self._book.values() if e.hold is Hold.GONE and e.since < before)
                try:
                    await self._store.commit(Batch(self._clock.reading(), forget_slots=old))
                    for slot in old:
                        del self._book[slot]
                except Unavailable as error:
                    _log.warning("tombstones_kept reason=%r", str(error))
            await self._clock.sleep_until(self._clock.now() + TOMBSTONE_KEPT_S / 24)

    # The agents ------------------------------------------------------------------------------------------------------

    async def _hand_over(self, offer: SlotOffer) -> NoCapacity | Unavailable | None:
        """Ask the agent to prepare the slot, until it agrees; else why not."""
        slot, why = offer.request.slot, "it has not been asked"
        try:
            async with asyncio.timeout(self._hand_over_s), self._talking[slot]:
                for pause_s in _pauses():
                    if self._book[slot].hold is not Hold.HELD:
                        return NoCapacity(f"slot {slot} was given back while it was being reserved")
                    try:
                        async with self._asking:
                            await self._doors[offer.machine].put(offer.request)
                        return None
                    except Unavailable as error:
                        why = str(error)
                    await asyncio.sleep(pause_s)
        except (Conflict, InvalidRequest) as error:
            return NoCapacity(str(error))
        except TimeoutError:
            pass
        return Unavailable(f"slot {slot} could not be handed to {offer.machine} in {self._hand_over_s:g} s: {why}")

    async def _clear(self, slot: str) -> None:
        """Have the agent end the slot and wait until nothing of it is left; then its resources are free."""
        entry = self._book[slot]
        door = self._doors.get(entry.machine or "")
        if door is None:
            _log.error("slot_stays slot=%s machine=%s reason=%r", slot, entry.machine, "not in [agents]")
            return
        told, said = False, ""
        async with self._talking[slot]:
            for pause_s in _pauses():
                try:
                    async with self._asking:
                        if not told:
                            await door.finish(slot, entry.code, entry.reason)
                            told = True
                        if await door.is_gone(slot):
                            await self._set_free(entry)
                            break
                except AstraError as error:
                    if str(error) != said:
                        said = str(error)
                        _log.warning("slot_leaving slot=%s machine=%s reason=%r", slot, entry.machine, said)
                await asyncio.sleep(pause_s)
        self._talking.pop(slot, None)
        self._roster.slot_gone(entry.machine or "", slot)
        self._roster.announce()

    async def _set_free(self, entry: BookEntry) -> None:
        async with self._writing:
            await self._write([replace(entry, hold=Hold.GONE, since=self._clock.now())])
        _log.info("slot_free slot=%s machine=%s", entry.slot, entry.machine)

    async def _watch_arrivals(self) -> None:
        """
        An agent that arrives with a slot that the book does not hold (the state directory is a new one, or an older
        copy) has to end it before its machine is used.
        """
        while True:
            name = await self._arrived.get()
            seen = self._roster.get(name)
            if seen is None or name not in self._doors:
                continue
            for pause_s in _pauses():
                try:
                    await self._adopt(name, seen.slots)
                    break
                except Unavailable as error:
                    _log.error("strangers_not_recorded machine=%s reason=%r", name, str(error))
                await asyncio.sleep(pause_s)

    async def _adopt(self, machine: str, slots: Iterable[str]) -> None:
        now, reason = self._clock.now(), "this coordinator did not hand it out"
        async with self._writing:
            strangers = [
                BookEntry(slot, machine, "", None, Hold.LEAVING, now, 143, reason)
                for slot in sorted(slots)
                if (entry := self._book.get(slot)) is None or entry.hold is Hold.GONE
            ]
            await self._write(strangers)
        for entry in strangers:
            _log.warning("stranger slot=%s machine=%s reason=%r", entry.slot, machine, reason)
            self._to_clear.put_nowait(entry.slot)


def _pauses() -> Iterator[float]:
    """Seconds between two questions: short at first, 2 s in the end."""
    pause_s = 0.05
    while True:
        yield pause_s
        pause_s = min(pause_s * 2, 2.0)
