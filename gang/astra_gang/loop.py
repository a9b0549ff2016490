"""
The one place that awaits for the runs: events in, step, record, act; outcomes come back as events.

Everything that happens goes through one inbox. A turn takes all that is in it, makes a draft, commits the draft as one
batch, and only then tells anybody: agents, engine, callers. When the records can't be written nothing happens at all:
clients are refused with the reason, everything else waits and the turn is made again.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from astra_agent.errors import AstraError, DeadlineExceeded, Unavailable
from astra_agent.wire import Hello, SlotStatus
from astra_gang.clock import Clock
from astra_gang.core import Event, RunState, SlotGone, StopAsked
from astra_gang.core.slots import find_slot
from astra_gang.engine import Engine
from astra_gang.foyer import Foyer, is_unasked
from astra_gang.ledger import Draft, Ledger
from astra_gang.performer import Agents, Performer
from astra_gang.planner import Planner
from astra_gang.prover import Prover
from astra_gang.publisher import Publisher
from astra_gang.roster import Roster
from astra_gang.sightings import is_on, slot_seen, watched
from astra_gang.store import Batch, RunRecord, Store
from astra_gang.telling import Teller
from astra_gang.watch import Watch

_log = logging.getLogger(__name__)

INBOX_MAX = 4096
"""Entries that wait for a turn; who brings more waits."""
CLIENT_WAIT_S = 20.0
"""How long a caller waits for its request to be recorded."""
_READING_EVERY_S = 30.0
"""The clock is recorded at least this often: what an idle cluster loses of it over a boot."""
_WRITE_AGAIN_S = 1.0


@dataclass(frozen=True, slots=True)
class Settings:
    """
    Attributes:
        term: Of this coordinator.
        disconnect_limit_s, lost_margin_s, runs_kept: As in `astra_gang.config.Config`.
        tells_slots: The engine shows its users what slots are told.
    """

    term: int
    disconnect_limit_s: float
    lost_margin_s: float
    runs_kept: int
    tells_slots: bool = False


@dataclass(frozen=True, slots=True)
class _Entry:
    """Something for the next turn. *recorded* is done when it is durable, or refused."""

    apply: Callable[[Draft], None]
    recorded: asyncio.Future[None]
    client: bool


class Loop:
    """
    Takes reports from the links, requests from the API, and time. `run` must be running for anything to happen.

    Args:
        machines: Names of those that are expected to be there.
    """

    def __init__(
        self,
        *,
        clock: Clock,
        store: Store,
        engine: Engine,
        roster: Roster,
        ledger: Ledger,
        settings: Settings,
        machines: Collection[str] = (),
    ) -> None:
        self.ledger = ledger
        self.trouble: str | None = None
        """A sentence while the records can't be written."""
        self.watch = Watch(roster, settings.disconnect_limit_s, settings.lost_margin_s)
        self.foyer = Foyer()
        self.adopted_changes: list[Callable[[], None]] = []
        """Called when an adopted run has changed; must not wait."""
        self._clock = clock
        self._store = store
        self._engine = engine
        self._roster = roster
        self._settings = settings
        self._inbox: deque[_Entry] = deque()
        self._room = asyncio.Semaphore(INBOX_MAX)
        self._woken = asyncio.Event()
        self._changed = asyncio.Event()
        self._cluster_changed = False
        self._read_at = clock.now()
        versions = itertools.count(1)
        self._publisher = Publisher(settings.term, versions)
        self._agents: Agents | None = None
        self._prover: Prover | None = None
        self._teller: Teller | None = None
        self._performer = Performer(
            clock=clock, engine=engine, roster=roster, post=self.post, term=settings.term, versions=versions
        )
        self._planner = Planner(
            clock=clock, engine=engine, roster=roster, ledger=ledger, post_all=self.post_all, expected=machines
        )
        roster.changes.append(self._on_cluster_change)

    # What others bring -----------------------------------------------------------------------------------------------

    async def submit(self, run: RunRecord) -> None:
        """
        Returns once the run is recorded.

        Raises:
            Conflict: A run of its name has not ended.
            Unavailable: The records can't be written; the run does not exist.
            DeadlineExceeded: No answer in time; it may exist.
        """
        await self._client(lambda draft: draft.add(run))

    async def stop(self, uid: str, by: str) -> None:
        """Returns once the wish is recorded. Idempotent. Raises as `submit`."""
        await self._client(lambda draft: draft.feed(uid, StopAsked(by)))

    async def hello(self, hello: Hello) -> None:
        """Everything an agent knows, and so also what it does not. Returns once recorded."""
        await self.reports(hello.slots)
        self._performer_forgets(hello.facts.name)

    async def reports(self, statuses: Iterable[SlotStatus]) -> None:
        """Returns once recorded: they may be acknowledged."""
        taken = tuple(statuses)

        def apply(draft: Draft) -> None:
            for status in taken:
                draft.feed(_run_of(status, draft), slot_seen(status))

        await self._record(apply)
        self.foyer.see(taken)

    async def slot_gone(self, slot: str) -> None:
        """An agent was told something about a slot that it does not have."""
        self.foyer.gone(slot)

        def apply(draft: Draft) -> None:
            for run in draft.live():
                if any(held.id == slot for held in watched(run.state)):
                    draft.feed(run.state.uid, SlotGone(slot))

        await self._record(apply)

    async def post(self, uid: str, event: Event) -> None:
        """An outcome for a run. Returns once recorded."""
        await self._record(lambda draft: draft.feed(uid, event))

    async def post_all(self, events: Iterable[tuple[str, Event]]) -> None:
        """Outcomes for several runs, recorded together."""
        taken = tuple(events)

        def apply(draft: Draft) -> None:
            for uid, event in taken:
                draft.feed(uid, event)

        await self._record(apply)

    def wake(self) -> None:
        """Something that deadlines hang on has changed, such as a link that broke."""
        self._woken.set()

    def next_turn(self) -> asyncio.Event:
        """Set at the end of the next turn that changes a run. Take it before looking, wait after: nothing is missed."""
        return self._changed

    def held_up(self, state: RunState) -> str | None:
        """A sentence, while nothing can happen to a run for a reason that is no fact of it."""
        if self.trouble is not None:
            return self.trouble
        if state.assignments:
            return self._engine.trouble(f"{state.uid}/{state.reservation}")
        return self._planner.trouble if state.wants_place else None

    # The loop --------------------------------------------------------------------------------------------------------

    async def run(self, agents: Agents, prover: Prover) -> None:
        """Until cancelled. Starts with what is outstanding: there is no other recovery."""
        self._agents, self._prover = agents, prover
        if self._settings.tells_slots:
            self._teller = Teller(clock=self._clock, term=self._settings.term, send=agents.send, state=self._state_of)
        async with asyncio.TaskGroup() as group:
            group.create_task(prover.run())
            group.create_task(self._performer.run(agents))
            group.create_task(self._planner.run())
            await self._give_back_strays()
            self._act(self.ledger.live())
            while True:
                await self._wait()
                await self._turn(self._take())

    async def _wait(self) -> None:
        """For an entry, a wake-up, or the next moment at which something is due."""
        if not self._woken.is_set():
            sleeping = asyncio.ensure_future(self._clock.sleep_until(self._next_due()))
            waiting = asyncio.ensure_future(self._woken.wait())
            try:
                await asyncio.wait((sleeping, waiting), return_when=asyncio.FIRST_COMPLETED)
            finally:
                sleeping.cancel()
                waiting.cancel()
        self._woken.clear()

    def _take(self) -> list[_Entry]:
        taken = list(self._inbox)
        self._inbox.clear()
        for _ in taken:
            self._room.release()
        return taken

    async def _turn(self, entries: list[_Entry]) -> None:
        cluster_changed, self._cluster_changed = self._cluster_changed, False
        while True:
            draft = Draft(self.ledger, self._clock, self._settings.runs_kept)
            entries = _apply(entries, draft)
            self.watch.pass_time(draft, cluster_changed)
            batch = draft.batch() or self._only_the_clock()
            if batch is None:
                break
            try:
                await self._store.commit(batch)
            except Unavailable as error:
                entries = self._refuse_clients(entries, error)
                await asyncio.sleep(_WRITE_AGAIN_S)
                entries += self._take()
                continue
            self._accept(batch)
            if batch.runs:
                self._publish()
            break
        for entry in entries:
            if not entry.recorded.done():
                entry.recorded.set_result(None)
        self._act(self._due_runs(batch))
        if self._teller is not None:  # last: nobody waits for a sentence
            self._teller.hear(draft.said if batch is not None else ())
            self._teller.pass_time()

    def _accept(self, batch: Batch) -> None:
        if self.trouble is not None:
            _log.warning("records_written_again after=%r", self.trouble)
            self.trouble = None
        self._read_at = batch.reading.seconds
        self.ledger.accept(batch)
        for event in batch.events:
            about = self.ledger.get(event.uid)
            _log.log(
                _LEVELS.get(event.level, logging.INFO),
                "run=%s uid=%s rank=%s attempt=%s sentence=%r",
                about.state.name if about else "-", event.uid, event.rank, event.attempt, event.sentence,
            )  # fmt: skip
        self._changed.set()
        self._changed = asyncio.Event()

    def _refuse_clients(self, entries: list[_Entry], error: Unavailable) -> list[_Entry]:
        if str(error) != self.trouble:
            self.trouble = str(error)
            _log.error("records_not_written reason=%r", self.trouble)
        for entry in entries:
            if entry.client and not entry.recorded.done():
                entry.recorded.set_exception(Unavailable(str(error)))
        return [entry for entry in entries if not entry.client]

    def _due_runs(self, batch: Batch | None) -> list[RunRecord]:
        uids = [run.state.uid for run in batch.runs] if batch is not None else []
        uids += [uid for uid in self._performer.due(self._clock.now()) if uid not in uids]
        return [run for uid in uids if (run := self.ledger.get(uid)) is not None]

    def _publish(self) -> None:
        if self._agents is not None:
            self._publisher.look((run.state for run in self.ledger.live()), self._agents.tell)

    def _act(self, runs: Iterable[RunRecord]) -> None:
        for run in runs:
            self._performer.look(run)
            if self._prover is not None:
                self._prover.look(run)
            if run.state.adopted:
                for called in self.adopted_changes:
                    called()
            elif run.state.wants_place:
                self._planner.wake()

    async def _give_back_strays(self) -> None:
        """Slots that the engine holds for runs that do not have them: of a state directory that was put back, say."""
        known = {slot.id for run in self.ledger.live() for slot in watched(run.state)}
        for held in await self._engine.held():
            if held.slot not in known and not held.leaving:
                _log.warning("stray slot=%s machine=%s", held.slot, held.machine)
                try:
                    await self._engine.give_back(held.slot, 143, "no run has it any more")
                except Unavailable as error:
                    _log.error("stray_stays slot=%s reason=%r", held.slot, str(error))

    # Time ------------------------------------------------------------------------------------------------------------

    def _next_due(self) -> float:
        dues = (self._performer.next_due(), self.watch.next_due(self.ledger), self._read_at + _READING_EVERY_S)
        told = self._teller.next_due() if self._teller is not None else None
        return min(due for due in (*dues, told) if due is not None)

    def _only_the_clock(self) -> Batch | None:
        reading = self._clock.reading()
        return Batch(reading) if reading.seconds >= self._read_at + _READING_EVERY_S else None

    def _state_of(self, uid: str) -> RunState | None:
        run = self.ledger.get(uid)
        return run.state if run is not None else None

    # The inbox -------------------------------------------------------------------------------------------------------

    def _on_cluster_change(self) -> None:
        self._cluster_changed = True
        self._woken.set()

    def _performer_forgets(self, machine: str) -> None:
        self._performer.forget_tries(machine)
        self._publisher.forget(machine)
        self._publish()
        self._act(run for run in self.ledger.live() if is_on(run.state, machine))

    async def _record(self, apply: Callable[[Draft], None], client: bool = False) -> None:
        recorded: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        await self._room.acquire()
        self._inbox.append(_Entry(apply, recorded, client))
        self._woken.set()
        await recorded

    async def _client(self, apply: Callable[[Draft], None]) -> None:
        try:
            async with asyncio.timeout(CLIENT_WAIT_S):
                await self._record(apply, client=True)
        except TimeoutError as error:
            raise DeadlineExceeded(
                f"it was not recorded within {CLIENT_WAIT_S:g} s and may yet be: look before you ask again"
            ) from error


_LEVELS = {"info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def _run_of(status: SlotStatus, draft: Draft) -> str:
    """The uid of the run that a slot is of; an agent does not know it where the slot came before the run."""
    if is_unasked(status):
        for run in draft.live():
            if run.state.adopted and find_slot(run.state, status.slot) is not None:
                return run.state.uid
    return status.run.uid


def _apply(entries: list[_Entry], draft: Draft) -> list[_Entry]:
    """Put into *draft* what is still wanted and allowed; the rest has had its answer."""
    applied = []
    for entry in entries:
        if entry.client and entry.recorded.done():
            continue
        try:
            entry.apply(draft)
            applied.append(entry)
        except AstraError as error:
            entry.recorded.set_exception(error)
    return applied
