"""
Giving slots back: each ends by its agent's hand, with its own exit code; the job is stopped when that is not enough.

A slot's machine is free once its agent has said that nothing of it is left and Nomad holds no live allocation for it.
Neither a status of the job nor `lost` says that: a machine that is cut off may still run it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from astra_agent import wire
from astra_agent.errors import AstraError, Conflict, Unavailable
from astra_gang.clock import Clock
from astra_gang.engines.book import BookEntry, Hold
from astra_gang.engines.keeping import Keeping
from astra_gang.engines.nomad.answers import Allocation, Node
from astra_gang.engines.nomad.api import NomadApi
from astra_gang.engines.nomad.job import job_id, swapped
from astra_gang.engines.nomad.machines import closed
from astra_gang.roster import Roster

_log = logging.getLogger(__name__)

BY_ITSELF_S = 10.0
"""How long slots have to end by their agents' hands before the job is stopped."""


class Agents(Protocol):
    def send(self, machine: str, directive: wire.Directive) -> bool:
        """As `astra_gang.performer.Agents`."""
        ...


@dataclass(frozen=True, slots=True)
class JobKey:
    namespace: str
    id: str


def job_of(entry: BookEntry) -> JobKey | None:
    """The job that an entry's slot is in; None for one that this book did not hand out."""
    if entry.request is None:
        return None
    if entry.request.engine_ref:  # of a job that was adopted: it has the run's name
        return JobKey(entry.request.run.workspace, entry.request.run.name)
    return JobKey(entry.request.run.workspace, job_id(entry.reservation, entry.request.run))


def adopted_allocation(entry: BookEntry) -> str | None:
    """The allocation of a slot that came with a job of its user's; None for any other."""
    ref = entry.request.engine_ref if entry.request is not None else ""
    return ref.partition("/")[0] or None


@dataclass(slots=True)
class _Known:
    """What has been done for one job, and the last trouble that was told."""

    stopped: bool = False
    said: str = ""


class Clearing:
    """
    Args:
        nodes: By machine, as they were last read.
        busy: A lock for each job: it is not stopped while its registration is under way.
    """

    def __init__(
        self,
        *,
        api: NomadApi,
        keeping: Keeping,
        clock: Clock,
        roster: Roster,
        term: int,
        nodes: Callable[[], Mapping[str, Node]],
        busy: Callable[[JobKey], asyncio.Lock],
    ) -> None:
        self._api = api
        self._keeping = keeping
        self._clock = clock
        self._roster = roster
        self._term = term
        self._nodes = nodes
        self._busy = busy
        self._gone: set[str] = set()
        """Slots that are leaving and that their agents have said they do not have."""
        roster.departures.append(self._on_gone)

    async def clear(self, key: JobKey, agents: Agents, woken: asyncio.Event) -> None:
        """Returns once no slot of the job is leaving. *woken* is set when something of it has happened."""
        known = _Known()
        pause_s = 0.05
        while leaving := self._entries(key, Hold.LEAVING):
            try:
                async with self._busy(key):
                    await self._once(key, leaving, agents, known)
            except AstraError as error:
                if str(error) != known.said:
                    known.said = str(error)
                    _log.warning("job_leaving job=%s reason=%r", key.id, known.said)
            try:
                async with asyncio.timeout(pause_s):
                    await woken.wait()
                woken.clear()
                await asyncio.sleep(0.02)  # of a burst of events the first is enough
            except TimeoutError:
                pause_s = min(pause_s * 2, 2.0)

    def _on_gone(self, machine: str, slot: str) -> None:
        entry = self._keeping.get(slot)
        if entry is not None and entry.hold is Hold.LEAVING and entry.machine == machine:
            self._gone.add(slot)

    def _entries(self, key: JobKey, hold: Hold) -> tuple[BookEntry, ...]:
        return tuple(entry for entry in self._keeping.all() if entry.hold is hold and job_of(entry) == key)

    async def _once(self, key: JobKey, leaving: tuple[BookEntry, ...], agents: Agents, known: _Known) -> None:
        for entry in leaving:
            finish = wire.Finish(slot=entry.slot, term=self._term, code=entry.code, reason=entry.reason)
            agents.send(entry.machine or "", finish)
        allocations = (await self._api.allocations(key.id, key.namespace)).value
        if any(adopted_allocation(entry) for entry in leaving):
            if not known.stopped and self._must_give_back(leaving, allocations):
                known.stopped = await self._give_back(key)
        elif self._entries(key, Hold.HELD):
            await self._take_off(key, leaving)
        elif not known.stopped and self._must_stop(leaving, allocations):
            await self._api.deregister(key.id, key.namespace)
            known.stopped = True
            allocations = (await self._api.allocations(key.id, key.namespace)).value
        for entry in leaving:
            if self._is_gone(entry, allocations):
                await self._keeping.set_free(entry.slot)
                self._gone.discard(entry.slot)
                self._roster.announce()

    def _must_stop(self, leaving: Iterable[BookEntry], allocations: tuple[Allocation, ...]) -> bool:
        """
        Slots that end by themselves leave a job that has completed or failed, as its workers did. It is stopped when
        one of them never had a place, is on a machine that can't be reached, or takes its time.
        """
        seen = {allocation.node for allocation in allocations if allocation.is_live}
        over = {allocation.node for allocation in allocations if allocation.is_over}
        for entry in leaving:
            node = self._nodes().get(entry.machine or "")
            if node is None or node.id not in seen | over:
                return True
            late = self._clock.now() >= entry.since + BY_ITSELF_S
            away = not self._roster.is_connected(entry.machine or "")
            if node.id in seen and (late or away):
                return True
        return False

    def _must_give_back(self, leaving: Iterable[BookEntry], allocations: tuple[Allocation, ...]) -> bool:
        """As `_must_stop`, of a job that was adopted: while nothing of it is a later run's."""
        entries = {adopted_allocation(entry): entry for entry in leaving}
        live = [allocation for allocation in allocations if allocation.is_live]
        if not live or any(allocation.id not in entries for allocation in live):
            return False
        return any(
            self._clock.now() >= entries[a.id].since + BY_ITSELF_S
            or not self._roster.is_connected(entries[a.id].machine or "")
            for a in live
        )

    async def _give_back(self, key: JobKey) -> bool:
        """To nothing, under its own ID: it is its user's to stop."""
        job = await self._api.job(key.id, key.namespace)
        if job is not None and not job.stopped:
            for group in job.groups:
                if group.count:
                    await self._api.scale(key.id, key.namespace, group.name, 0, "its gang is given back")
        return True

    async def _take_off(self, key: JobKey, leaving: Iterable[BookEntry]) -> None:
        """
        While others of the job go on: a machine that can't end its slot now is taken off the job's list, so that Nomad
        does not start it there again by itself.
        """
        for entry in leaving:
            node = self._nodes().get(entry.machine or "")
            if node is None:
                continue
            if self._roster.is_connected(entry.machine or "") and closed(node, node.machine) is None:
                continue
            job = await self._api.job(key.id, key.namespace)
            document = swapped(job, out=node.id) if job is not None and not job.stopped else None
            if job is None or document is None:
                continue
            try:
                await self._api.register(document, modify_index=job.modify_index)
            except Conflict as error:
                raise Unavailable(str(error)) from error
            _log.info("machine_taken_off job=%s machine=%s", key.id, entry.machine)

    def _is_gone(self, entry: BookEntry, allocations: Iterable[Allocation]) -> bool:
        """
        Its agent has answered a finish with it, so an allocation that Nomad calls over is over; a machine that Nomad
        does not know any more has nobody to ask.
        """
        node = self._nodes().get(entry.machine or "")
        if node is None:
            return all(allocation.is_over for allocation in allocations)
        own = adopted_allocation(entry)
        on_it = [a for a in allocations if a.node == node.id and own in (None, a.id)]
        if any(not allocation.is_over for allocation in on_it):
            return False
        return entry.slot in self._gone
