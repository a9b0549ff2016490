"""
The engine on Nomad: the book first, then one batch job for each reservation, exactly on the machines that were chosen.

Nomad is asked whether all were placed and believed only when the list of allocations says so too. What is not whole is
given back. Its event stream wakes, queries decide; what a machine has comes from its agent's link.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from astra_agent.errors import AstraError, InvalidRequest, NoCapacity, Unavailable
from astra_agent.wire import MachineFacts
from astra_gang.clock import Clock
from astra_gang.engine import Held, Machine, SlotOffer
from astra_gang.engines.book import BookEntry, Hold, free
from astra_gang.engines.keeping import Keeping
from astra_gang.engines.nomad import placing
from astra_gang.engines.nomad.answers import Allocation, Node
from astra_gang.engines.nomad.api import NomadApi
from astra_gang.engines.nomad.clearing import Agents, Clearing, JobKey, job_of
from astra_gang.engines.nomad.job import META_RUN, Seat, Terms, build, shares_per_core
from astra_gang.engines.nomad.machines import Sighting, leaving, machine, others_by_node
from astra_gang.engines.nomad.wake import Wake, Wakes
from astra_gang.roster import Roster
from astra_gang.store import Store

_log = logging.getLogger(__name__)

HAND_OVER_S = 60.0
"""From the registration of a job until every agent has its slot: about 1 s where all is well."""
LOOK_S = 30.0
"""How often nodes and jobs are looked at when nothing wakes us."""
_SETTLE_S = 0.5
"""Every report of a client is an event of its whole node: of a burst the first is enough."""


@dataclass(frozen=True, slots=True)
class _Cluster:
    """What Nomad said last. *nodes*: by machine."""

    nodes: dict[str, Node]
    live: tuple[Allocation, ...]


class NomadEngine:
    """
    Implements `astra_gang.engine.Engine`. `run` must be running for slots that leave to become free.

    Args:
        book: What the store had.
        term: Of this coordinator.
        namespaces: Of the workspaces.
    """

    def __init__(
        self,
        *,
        api: NomadApi,
        store: Store,
        clock: Clock,
        roster: Roster,
        terms: Terms,
        term: int,
        book: Iterable[BookEntry] = (),
        namespaces: Iterable[str] = ("default",),
        hand_over_s: float = HAND_OVER_S,
        look_s: float = LOOK_S,
    ) -> None:
        self._api = api
        self._roster = roster
        self._terms = terms
        self._hand_over_s = hand_over_s
        self._look_s = look_s
        self._cluster = _Cluster({}, ())
        self._busy: defaultdict[JobKey, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._woken: defaultdict[JobKey, asyncio.Event] = defaultdict(asyncio.Event)
        self._cut_short: dict[str, asyncio.Event] = {}
        self._waiting: dict[str, placing.Waiting] = {}
        """By reservation."""
        self._to_clear: asyncio.Queue[JobKey] = asyncio.Queue()
        self._look = asyncio.Event()
        self._strays: set[JobKey] = set()
        """As they were found at the last look."""
        self._keeping = Keeping(store=store, clock=clock, entries=book, left=self._on_left)
        self._clearing = Clearing(
            api=api, keeping=self._keeping, clock=clock, roster=roster, term=term,
            nodes=lambda: self._cluster.nodes, busy=self._busy.__getitem__,
        )  # fmt: skip
        self.wakes = tuple(Wakes(api.transport, self._on_wake, namespace=name) for name in sorted(set(namespaces)))
        self.heard: list[Callable[[Wake], None]] = []
        """Called with each event; must not wait."""
        roster.arrivals.append(lambda machine: self._wake_all())

    # The port --------------------------------------------------------------------------------------------------------

    async def machines(self) -> tuple[Machine, ...]:
        await self._refresh()
        found = (self._room(name, self._keeping.on(name)) for name in sorted(self._cluster.nodes))
        return tuple(machine for machine in found if machine is not None)

    async def reserve(self, reservation: str, offers: tuple[SlotOffer, ...]) -> None:
        await self._refresh()
        is_adopted = any(offer.request.engine_ref for offer in offers)
        await self._keeping.hold(reservation, offers, self._emptied if is_adopted else self._room)
        try:
            if is_adopted:
                self._check_there(offers)
            else:
                await self._place(reservation, offers)
        except (NoCapacity, Unavailable) as error:
            await self._keeping.leave([offer.request.slot for offer in offers], 143, "the reservation failed")
            raise error

    async def give_back(self, slot: str, code: int, reason: str) -> None:
        await self._keeping.give_back(slot, code, reason)

    async def held(self) -> tuple[Held, ...]:
        return self._keeping.held()

    def trouble(self, reservation: str) -> str | None:
        waiting = self._waiting.get(reservation)
        return waiting.trouble or None if waiting is not None else None

    # Its life --------------------------------------------------------------------------------------------------------

    async def open(self) -> frozenset[str]:
        """
        Look at the cluster for the first time. The names of the machines that are expected to have a link soon.

        Raises:
            Unavailable: Nomad can't be asked.
        """
        await self._refresh()
        ready = (node for node in self._cluster.nodes.values() if node.status == "ready")
        return frozenset(node.machine for node in ready)

    async def run(self, agents: Agents) -> None:
        """Clear what leaves, follow what happens, until cancelled."""
        async with asyncio.TaskGroup() as group:
            for wakes in self.wakes:
                group.create_task(wakes.run())
            group.create_task(self._keeping.run())
            group.create_task(self._look_around())
            being_cleared: set[JobKey] = set()
            while True:
                key = await self._to_clear.get()
                if key not in being_cleared:
                    being_cleared.add(key)
                    group.create_task(self._clear(key, agents, being_cleared))

    async def _clear(self, key: JobKey, agents: Agents, being_cleared: set[JobKey]) -> None:
        await self._clearing.clear(key, agents, self._woken[key])
        being_cleared.discard(key)
        self._woken.pop(key, None)
        if not self._busy[key].locked():
            del self._busy[key]

    async def _look_around(self) -> None:
        """Nodes that were drained, jobs that nobody has any more; woken by events, and now and then by the clock."""
        while True:
            before = self._cluster
            try:
                await self._refresh()
                self._tell_drained()
                await self._stop_strays()
            except AstraError as error:
                _log.warning("not_looked reason=%r", str(error))
            if self._cluster != before:
                self._roster.announce()
            try:
                async with asyncio.timeout(self._look_s):
                    await self._look.wait()
            except TimeoutError:
                pass
            await asyncio.sleep(_SETTLE_S)
            self._look.clear()

    # Placing ---------------------------------------------------------------------------------------------------------

    async def _place(self, reservation: str, offers: tuple[SlotOffer, ...]) -> None:
        """Until every agent has its slot, a slot is given back, or time is over."""
        seats = tuple(self._seat(offer) for offer in offers)
        if len({seat.node.id for seat in seats}) < len(seats):
            raise NoCapacity("two workers of one reservation can't share a machine: one worker has one machine")
        waiting = self._waiting[reservation] = placing.Waiting()
        cut_short = asyncio.Event()
        self._cut_short.update((offer.request.slot, cut_short) for offer in offers)
        try:
            async with asyncio.timeout(self._hand_over_s):
                ended = await _unless(cut_short, self._bring_to_life(reservation, seats, waiting))
        except TimeoutError as error:
            raise Unavailable(waiting.over(self._hand_over_s)) from error
        except InvalidRequest as error:
            raise NoCapacity(str(error)) from error
        finally:
            self._waiting.pop(reservation, None)
            for offer in offers:
                self._cut_short.pop(offer.request.slot, None)
        if not ended:
            given = next(o.request.slot for o in offers if not self._keeping.is_held(o.request.slot))
            raise NoCapacity(f"slot {given} was given back while it was being reserved")

    def _seat(self, offer: SlotOffer) -> Seat:
        """The book has taken the offer, so its node and its machine's facts are there."""
        seen = self._roster.get(offer.machine)
        uuids = {gpu.index: gpu.uuid for gpu in seen.facts.gpus} if seen is not None else {}
        gpus = tuple(uuids[index] for index in offer.request.gpus if index in uuids)
        return Seat(offer.request, self._cluster.nodes[offer.machine], gpus)

    async def _bring_to_life(self, reservation: str, seats: tuple[Seat, ...], waiting: placing.Waiting) -> None:
        document = build(reservation, seats, self._terms)
        key = JobKey(document["Namespace"], document["ID"])
        async with self._busy[key]:
            # Its last word is waited for whatever happens: a job that comes to life late would outlive its stop.
            registering = asyncio.ensure_future(placing.register(self._api, document, waiting))
            try:
                job = await asyncio.shield(registering)
            except asyncio.CancelledError:
                await asyncio.wait([registering], timeout=self._hand_over_s)
                registering.cancel()
                raise
        await placing.placed(self._api, job, len(seats))
        await placing.accepted(self._api, job, seats, waiting)

    # Jobs that are adopted -------------------------------------------------------------------------------------------

    def _emptied(self, name: str, entries: Sequence[BookEntry]) -> Machine | None:
        """Nomad has given the slot its room, and its agent has taken it."""
        seen = self._roster.get(name)
        if seen is None:
            return None
        return free(seen.facts.model_copy(update={"out_of_use": None}), (), connected=seen.connected)

    def _check_there(self, offers: tuple[SlotOffer, ...]) -> None:
        live = {allocation.id for allocation in self._cluster.live if allocation.is_live}
        for offer in offers:
            if offer.request.engine_ref.partition("/")[0] not in live:
                raise NoCapacity(f"slot {offer.request.slot} on {offer.machine} has ended in Nomad")

    def is_known(self, slot: str) -> bool:
        """The book has it, or has had it."""
        return self._keeping.get(slot) is not None

    def is_clearing(self, key: JobKey) -> bool:
        """Slots of the job are being ended by agents that can be reached; who can't has its own bound."""
        return any(
            entry.hold is not Hold.GONE and job_of(entry) == key and self._roster.is_connected(entry.machine or "")
            for entry in self._keeping.all()
        )

    def ref_of(self, slot: str) -> str | None:
        """What Nomad calls a slot that is held."""
        entry = self._keeping.get(slot)
        if entry is None or entry.hold is not Hold.HELD or entry.request is None:
            return None
        return entry.request.engine_ref or None

    def reaches(self, slot: str) -> bool:
        """The agent of its machine has a link."""
        entry = self._keeping.get(slot)
        return entry is not None and self._roster.is_connected(entry.machine or "")

    def machine_of(self, node: str) -> str | None:
        """Its name, by the node's ID."""
        return next((name for name, found in self._cluster.nodes.items() if found.id == node), None)

    def facts_of(self, node: str) -> MachineFacts | None:
        """Of a machine whose agent has a link, by its node's ID."""
        name = self.machine_of(node)
        seen = self._roster.get(name) if name is not None else None
        return seen.facts if seen is not None and seen.connected else None

    def with_resources(self, allocation: Allocation) -> Allocation:
        """The same as the last look at the cluster had it, which says what it was given."""
        return next((found for found in self._cluster.live if found.id == allocation.id), allocation)

    def shares_per_core(self, nodes: Iterable[str]) -> float:
        """The fewest of these nodes; 0: none of them says."""
        wanted = set(nodes)
        return min((shares_per_core(node) for node in self._cluster.nodes.values() if node.id in wanted), default=0.0)

    async def look(self) -> None:
        """Raises: Unavailable."""
        await self._refresh()

    # The cluster -----------------------------------------------------------------------------------------------------

    async def _refresh(self) -> None:
        """
        Raises:
            Unavailable: Nomad can't be asked.
        """
        async with asyncio.TaskGroup() as group:
            nodes = group.create_task(_outcome(self._api.nodes(self._terms.node_pool)))
            live = group.create_task(_outcome(self._api.live_allocations()))
        for outcome in (nodes.result(), live.result()):
            if isinstance(outcome, AstraError):
                raise outcome
        found: Sequence[Node] = nodes.result()
        self._cluster = _Cluster({node.machine: node for node in found}, live.result())

    def _room(self, name: str, entries: Sequence[BookEntry]) -> Machine | None:
        node = self._cluster.nodes.get(name)
        if node is None:
            return None
        ours = {key for entry in self._keeping.all() if entry.hold is not Hold.GONE and (key := job_of(entry))}
        mine = {a.id: a for a in self._cluster.live if JobKey(a.namespace, a.job) in ours}
        others = others_by_node(self._cluster.live, mine).get(node.id, [])
        seen = self._roster.get(name)
        return machine(
            Sighting(
                node=node,
                facts=seen.facts if seen is not None else None,
                connected=seen is not None and seen.connected,
                silent=self._roster.is_silent(name),
                entries=tuple(entries),
                others=tuple(others),
            )
        )

    def _tell_drained(self) -> None:
        """What runs on these machines has to go elsewhere."""
        for name, node in sorted(self._cluster.nodes.items()):
            self._roster.withdraw(name, leaving(node))

    async def _stop_strays(self) -> None:
        """
        Jobs of ours that no slot of the book belongs to: of a book that was lost, or registered at the moment when the
        coordinator was killed. An ended one may be pending for a moment, while Nomad looks at it again.
        """
        known = {job_of(entry) for entry in self._keeping.all() if entry.hold is not Hold.GONE}
        found = {
            JobKey(job.namespace, job.id): job.status
            for job in await self._api.jobs_with(META_RUN)
            if not job.stopped and job.status != "dead"
        }
        strays = {key for key in found if key not in known and not self._is_busy(key)}
        for key in strays:
            if found[key] == "running" or key in self._strays:
                _log.warning("stray_job job=%s namespace=%s", key.id, key.namespace)
                await self._api.deregister(key.id, key.namespace)
        self._strays = strays

    def _is_busy(self, key: JobKey) -> bool:
        return key in self._busy and self._busy[key].locked()

    # What wakes us ---------------------------------------------------------------------------------------------------

    def _on_left(self, entry: BookEntry) -> None:
        if (cut_short := self._cut_short.get(entry.slot)) is not None:
            cut_short.set()
        if (key := job_of(entry)) is not None:
            self._to_clear.put_nowait(key)
            self._woken[key].set()

    def _on_wake(self, wake: Wake) -> None:
        for called in self.heard:
            called(wake)
        if not wake.topic:
            self._wake_all()
        elif wake.job and (woken := self._woken.get(JobKey(wake.namespace, wake.job))) is not None:
            woken.set()
        if wake.topic in ("", "Node", "Job"):
            self._look.set()

    def _wake_all(self) -> None:
        self._look.set()
        for woken in self._woken.values():
            woken.set()


async def _unless(stopped: asyncio.Event, work: Coroutine[Any, Any, None]) -> bool:
    """Do *work* until it is done (True) or *stopped* is set (False)."""
    working = asyncio.ensure_future(work)
    stopping = asyncio.ensure_future(stopped.wait())
    try:
        await asyncio.wait((working, stopping), return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopping.cancel()
        if not working.done():
            working.cancel()
            await asyncio.wait([working])
    if working.cancelled():
        return False
    working.result()
    return True


async def _outcome(work: Coroutine[Any, Any, Any]) -> Any:
    """What it returns, or its error: one that fails does not hide the other's."""
    try:
        return await work
    except AstraError as error:
        return error
