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
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from astra_agent.errors import AstraError, Conflict, InvalidRequest, NoCapacity, Unavailable
from astra_agent.wire import SlotRequest
from astra_gang.clock import Clock
from astra_gang.engine import Held, Machine, SlotOffer
from astra_gang.engines.book import BookEntry, free
from astra_gang.engines.keeping import Keeping
from astra_gang.engines.pauses import pauses
from astra_gang.roster import Roster
from astra_gang.store import Store

_log = logging.getLogger(__name__)

HAND_OVER_S = 30.0
"""How long one `reserve` keeps asking an agent that does not answer. It restarts within seconds."""
_AGAIN_FIRST_S = 0.05
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
        self._roster = roster
        self._doors = dict(doors)
        self._hand_over_s = hand_over_s
        self._talking: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._asking = asyncio.Semaphore(_AT_ONCE)
        self._to_clear: asyncio.Queue[BookEntry] = asyncio.Queue()
        self._arrived: asyncio.Queue[str] = asyncio.Queue()
        self._keeping = Keeping(store=store, clock=clock, entries=book, left=self._to_clear.put_nowait)
        roster.arrivals.append(self._arrived.put_nowait)

    # The port --------------------------------------------------------------------------------------------------------

    async def machines(self) -> tuple[Machine, ...]:
        found = (self._room(name, self._keeping.on(name)) for name in sorted(self._doors))
        return tuple(machine for machine in found if machine is not None)

    async def reserve(self, reservation: str, offers: tuple[SlotOffer, ...]) -> None:
        await self._keeping.hold(reservation, offers, self._room)
        async with asyncio.TaskGroup() as group:
            asked = [group.create_task(self._hand_over(offer)) for offer in offers]
        failed = [error for task in asked if (error := task.result()) is not None]
        if not failed:
            return
        await self._keeping.leave([offer.request.slot for offer in offers], 143, "the reservation failed")
        raise failed[0]

    async def give_back(self, slot: str, code: int, reason: str) -> None:
        await self._keeping.give_back(slot, code, reason)

    async def held(self) -> tuple[Held, ...]:
        return self._keeping.held()

    def trouble(self, reservation: str) -> str | None:
        return None

    async def run(self) -> None:
        """Clear what leaves, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._watch_arrivals())
            group.create_task(self._keeping.run())
            while True:
                group.create_task(self._clear(await self._to_clear.get()))

    def _room(self, name: str, entries: Sequence[BookEntry]) -> Machine | None:
        seen = self._roster.get(name)
        if name not in self._doors or seen is None:
            return None
        return free(seen.facts, entries, connected=seen.connected, silent=self._roster.is_silent(name))

    # The agents ------------------------------------------------------------------------------------------------------

    async def _hand_over(self, offer: SlotOffer) -> NoCapacity | Unavailable | None:
        """Ask the agent to prepare the slot, until it agrees; else why not."""
        slot, why = offer.request.slot, "it has not been asked"
        try:
            async with asyncio.timeout(self._hand_over_s), self._talking[slot]:
                for pause_s in pauses(_AGAIN_FIRST_S):
                    if not self._keeping.is_held(slot):
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

    async def _clear(self, entry: BookEntry) -> None:
        """Have the agent end the slot and wait until nothing of it is left; then its resources are free."""
        slot = entry.slot
        door = self._doors.get(entry.machine or "")
        if door is None:
            _log.error("slot_stays slot=%s machine=%s reason=%r", slot, entry.machine, "not in [agents]")
            return
        told, said = False, ""
        async with self._talking[slot]:
            for pause_s in pauses(_AGAIN_FIRST_S):
                try:
                    async with self._asking:
                        if not told:
                            await door.finish(slot, entry.code, entry.reason)
                            told = True
                        if await door.is_gone(slot):
                            await self._keeping.set_free(slot)
                            break
                except AstraError as error:
                    if str(error) != said:
                        said = str(error)
                        _log.warning("slot_leaving slot=%s machine=%s reason=%r", slot, entry.machine, said)
                await asyncio.sleep(pause_s)
        self._talking.pop(slot, None)
        self._roster.slot_gone(entry.machine or "", slot)
        self._roster.announce()

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
            for pause_s in pauses(_AGAIN_FIRST_S):
                try:
                    await self._keeping.take_in(name, seen.slots, "this coordinator did not hand it out")
                    break
                except Unavailable as error:
                    _log.error("strangers_not_recorded machine=%s reason=%r", name, str(error))
                await asyncio.sleep(pause_s)
