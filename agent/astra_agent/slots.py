"""
A slot: prepared once, holding attempts one after the other, finished once. It judges directives by their fences, writes
down what they want and wakes whoever does it.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from astra_agent import attachments, endings, planning, plans
from astra_agent.attempts import Attempt
from astra_agent.errors import AstraError, HostFault, InvalidRequest, Stale
from astra_agent.fifos import relayed
from astra_agent.lease import now
from astra_agent.prepare import prepare
from astra_agent.promises import Promise
from astra_agent.records import AttemptRecord, Ending, SlotRecord, StopWish
from astra_agent.runtime import ContainerPlan
from astra_agent.status import Seen, slot_status
from astra_agent.tools import Tools
from astra_agent.wire import Arm, Fault, SlotRequest, SlotStatus, Start, Stop, Tell

log = logging.getLogger(__name__)

_PROGRESS_EVERY_S = 1.0
_SAVE_AGAIN_S = 2.0
_CLEAN_AGAIN_S = 5.0


class Slot:
    """
    Args:
        record: As it was last saved.
        changed: Called with this slot after each change that others may want to know.
        next_rev: The revision of its next status.
    Attributes:
        ended: Set when nothing is left of the slot.
    """

    def __init__(
        self, record: SlotRecord, tools: Tools, changed: Callable[[Slot], None], next_rev: Callable[[], int]
    ) -> None:
        self.record = record
        self.ended = asyncio.Event()
        self._tools = tools
        self._changed = changed
        self._next_rev = next_rev
        self._rev = next_rev()
        self._progress = ""
        self._progress_s = float("-inf")
        self._telling: asyncio.TimerHandle | None = None
        self._finishing = asyncio.Event()
        self._news = asyncio.Event()
        self._group: asyncio.TaskGroup | None = None
        self._attempts = {one.number: Attempt(one.number, self, tools) for one in record.attempts}
        if record.ending is not None:
            self._begin_finish()

    @property
    def id(self) -> str:
        return self.record.request.slot

    @property
    def stuck(self) -> str | None:
        return next((attempt.stuck for attempt in self._attempts.values() if attempt.stuck), None)

    def status(self) -> SlotStatus:
        stopping = frozenset(attempt.number for attempt in self._attempts.values() if attempt.stopping)
        away = self._tools.patience.sentence()
        return slot_status(self.record, Seen(self._rev, self._progress, away, stopping, self.stuck))

    def growing_logs(self) -> Iterator[Path]:
        for attempt in self.record.attempts:
            if attempt.exit is None:
                yield from self._tools.logs.paths(self.id, attempt.number)

    def kept_logs(self) -> Iterator[Path]:
        for attempt in self.record.attempts:
            yield from self._tools.logs.paths(self.id, attempt.number)

    def is_running(self, attempt: int) -> bool:
        """Whether more may still be written to its log."""
        found = self.record.attempt(attempt)
        return found is not None and found.exit is None

    def running_container(self) -> str | None:
        """Of the newest attempt that has started and not ended."""
        for attempt in reversed(self.record.attempts):
            if attempt.started and attempt.exit is None:
                return plans.container_id(self.id, attempt.number)
        return None

    # Directives: each raises `Stale` when it is older than what has been seen, and does nothing when it is done already

    def arm(self, directive: Arm) -> None:
        self._check_term(directive.term)
        number = directive.attempt
        if number <= self.record.stopped_through:
            raise Stale(f"attempt {number} of {self.id} was stopped before")
        if number < self.record.newest:
            raise Stale(f"attempt {number} of {self.id} is older than {self.record.newest}, which is armed")
        if number == self.record.newest:
            self._remember(directive.term)
            return
        if self.record.phase != "ready" or self.record.ending is not None:
            raise Stale(f"slot {self.id} is {self.status().phase}, not ready")
        attempt = AttemptRecord(
            number, directive.env, directive.hosts, directive.names, directive.placed, directive.worker
        )
        record = replace(self.record, term=directive.term, newest=number, detail="", fault=None)
        self.save(record.with_attempt(attempt))
        if directive.names is not None:
            self._tools.names.publish(self.id, directive.names)
        self._attempts[number] = Attempt(number, self, self._tools)
        self._attend(self._attempts[number])

    def start(self, directive: Start) -> None:
        self._check_term(directive.term)
        number = directive.attempt
        attempt = self.record.attempt(number)
        if number != self.record.newest or attempt is None:
            raise Stale(f"attempt {number} of {self.id} can't be started: the newest is {self.record.newest}")
        if attempt.start_wanted or attempt.stop is not None or attempt.failed is not None:
            self._remember(directive.term)
            return
        # With its container seen waiting, one write says both: that it is wanted, and that it may have begun.
        begun = self._attempts[number].waits and self.broken(attempt.ports) is None
        told = replace(attempt, start_wanted=True, start_begun=begun or attempt.start_begun)
        self.save(replace(self.record, term=directive.term).with_attempt(told))
        self._attempts[number].wake()

    def stop(self, directive: Stop) -> None:
        self._check_term(directive.term)
        self._stop_through(directive.attempt, _wish(directive.grace_s), term=directive.term)

    def tell(self, directive: Tell) -> None:
        self._check_term(directive.term)
        if directive.sentence != self.record.told:
            self.save(replace(self.record, term=directive.term, told=directive.sentence))

    def finish(self, ending: Ending, term: int | None = None, grace_s: float | None = None, signal: str = "") -> None:
        """
        The first ending stands, the sooner of two deadlines wins. Raises: HostFault, and nothing has changed.

        Args:
            term: None: the machine's own engine wants it, who is never stale.
            grace_s: None: the slot's own.
        """
        if term is not None:
            self._check_term(term)
        wish = _wish(self.record.request.stop_grace_s if grace_s is None else grace_s, signal=signal)
        if self.record.ending is not None:
            self._stop_through(self.record.newest, wish, term=self.record.term)
            return
        term = self.record.term if term is None else term
        self._stop_through(self.record.newest, wish, term=term, ending=ending)
        self._begin_finish()

    def reuse(self, request: SlotRequest) -> None:
        """The same slot, under a newer name of its engine's. Raises: HostFault, and nothing has changed."""
        if request.incarnation != self.record.request.incarnation:
            renamed = self.record.request.model_copy(update={"incarnation": request.incarnation})
            self.save(replace(self.record, request=renamed))

    def stop_alone(self, why: str) -> None:
        """The agent itself ends what runs, at once: somebody else may take its place the next moment."""
        self._stop_through(self.record.newest, _wish(0.0, why), term=self.record.term)

    def lose(self, why: str) -> None:
        """What its programs had is gone from the machine: what runs is ended, and no other attempt can start here."""
        self.stop_alone(why)
        record = self.record
        # One that starts by itself ends with its program, whose end says why.
        if record.phase != "failed" and record.ending is None and record.request.starts == "when_told":
            self._save_or_go_on(replace(record, phase="failed", detail=why, fault="machine"), must_go_on=True)

    def _check_term(self, term: int) -> None:
        if term < self.record.term:
            raise Stale(f"term {term} is older than {self.record.term}, which slot {self.id} has obeyed")

    def _remember(self, term: int) -> None:
        if term > self.record.term:
            self.save(replace(self.record, term=term))

    def _stop_through(self, number: int, wish: StopWish, *, term: int, ending: Ending | None = None) -> None:
        record = replace(
            self.record,
            term=term,
            stopped_through=max(number, self.record.stopped_through),
            ending=ending or self.record.ending,
        )
        for attempt in self.record.attempts:
            if attempt.number <= number and attempt.exit is None:
                record = record.with_attempt(_with_stop(attempt, wish))
        if record != self.record:
            self._save_or_go_on(record, must_go_on=bool(wish.why))
        for attempt in record.attempts:
            self._attempts[attempt.number].wake()

    def _save_or_go_on(self, record: SlotRecord, *, must_go_on: bool) -> None:
        """A full disk must not keep alive what others take for dead; an agent after this one comes to the same end."""
        try:
            self.save(record)
        except HostFault:
            if not must_go_on:
                raise
            self.record = record
            self.publish()

    # Its life -----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Returns when the slot has ended and nothing of it is left. May be cancelled; another agent goes on."""
        async with relayed(self._tools, self), asyncio.TaskGroup() as group:
            self._group = group
            working = [group.create_task(self._prepare())]
            if self.record.request.starts == "when_ready":
                working.append(group.create_task(self._see_to_itself()))
            for attempt in self._attempts.values():
                self._attend(attempt)
            await self._finishing.wait()
            for task in working:
                task.cancel()
        await self._clean()
        log.info("slot_ended run=%s slot=%s", self.record.request.run.name, self.id)
        self.ended.set()

    def inventory_changed(self) -> None:
        """What an attempt was told may no longer be so."""
        for attempt in self._attempts.values():
            attempt.wake()

    def acknowledge(self, number: int) -> None:
        """The exit of this attempt has arrived at the coordinator."""
        if number in self._attempts:
            self._attempts[number].acknowledge()

    async def _prepare(self) -> None:
        if self.record.phase != "preparing":
            return
        request = self.record.request
        changes: dict[str, Any] = {"request": request.model_copy(update={"registry_auth": None})}
        try:
            prepared = await prepare(request, self._tools, self._say_progress)
        except AstraError as error:
            fault: Fault = "user" if isinstance(error, InvalidRequest) else "machine"
            log.warning("slot_failed run=%s slot=%s fault=%s reason=%r", request.run.name, self.id, fault, str(error))
            changes |= {"phase": "failed", "detail": str(error), "fault": fault}
        else:
            log.info("slot_ready run=%s slot=%s port=%s", request.run.name, self.id, prepared.port)
            changes |= {"phase": "ready", "detail": "", "prepared": prepared}
        finally:
            if self._telling is not None:
                self._telling.cancel()
        self._progress = ""
        if self.record.phase != "preparing":
            changes = {"request": changes["request"]}  # it has lost what it was prepared for
        await self._save_patiently(changes)

    async def _save_patiently(self, changes: dict[str, Any]) -> None:
        """Make *changes* of the record; a disk that can't be written is tried until it can."""
        while True:
            try:
                self.save(replace(self.record, **changes))
            except HostFault as error:
                log.error("record_not_written slot=%s reason=%r", self.id, str(error))
                self._changed(self)
                await asyncio.sleep(_SAVE_AGAIN_S)
            else:
                return

    async def _see_to_itself(self) -> None:
        """Nobody tells this slot anything: it starts its attempt once it is ready, and ends with that."""
        while (ending := endings.own_ending(self.record)) is None:
            try:
                if self.record.phase == "ready" and self.record.newest < self.record.first:
                    self._start_alone()
            except HostFault as error:
                log.error("record_not_written slot=%s reason=%s", self.id, error)
                await asyncio.sleep(_SAVE_AGAIN_S)
                continue
            self._news.clear()
            await self._news.wait()
        await self._end_alone(ending)

    def _start_alone(self) -> None:
        number = self.record.first
        attempt = AttemptRecord(number, {}, {}, start_wanted=True)
        self.save(replace(self.record, newest=number).with_attempt(attempt))
        self._attempts[number] = Attempt(number, self, self._tools)
        self._attend(self._attempts[number])

    async def _end_alone(self, ending: Ending) -> None:
        while True:
            try:
                self.finish(ending)
            except HostFault as error:
                log.error("record_not_written slot=%s reason=%s", self.id, error)
                await asyncio.sleep(_SAVE_AGAIN_S)
            else:
                return

    def _say_progress(self, sentence: str) -> None:
        """Told at most once a second: reports of progress are many, and only the newest is worth a message."""
        self._progress = sentence
        if self._telling is None:
            pause_s = max(0.0, self._progress_s + _PROGRESS_EVERY_S - now())
            self._telling = asyncio.get_running_loop().call_later(pause_s, self._tell_progress)

    def _tell_progress(self) -> None:
        self._telling = None
        self._progress_s = now()
        self.publish()

    def _attend(self, attempt: Attempt) -> None:
        if self._group is not None:
            self._group.create_task(attempt.run(), name=f"{self.id}-a{attempt.number}")

    def _begin_finish(self) -> None:
        for attempt in self._attempts.values():
            attempt.acknowledge()
        self._finishing.set()

    async def _clean(self) -> None:
        """Network, files and record go; the tombstone comes last, so that a crash before it cleans once more."""
        while True:
            try:
                self._tools.names.withdraw(self.id)
                await self._tools.networks.tear_down(self.id)
                shutil.rmtree(self._tools.slot_folder(self.id), ignore_errors=True)
                self._tools.book.bury(self.id, endings.tombstone(self.record))
            except HostFault as error:
                log.warning("slot_not_cleaned slot=%s reason=%r", self.id, str(error))
                await asyncio.sleep(_CLEAN_AGAIN_S)
            else:
                return

    # What its attempts need ---------------------------------------------------------------------------------------

    def save(self, record: SlotRecord) -> None:
        """Durable, remembered and told, in this order. Raises: HostFault, and nothing has changed."""
        self._tools.book.save(record)
        self.record = record
        self._news.set()
        self.publish()

    def publish(self) -> None:
        self._rev = self._next_rev()
        self._changed(self)

    async def plan(self, attempt: AttemptRecord) -> tuple[ContainerPlan, Promise]:
        """The plan of the attempt's container, and what its program is promised; its files are written."""
        return await planning.plan(self._tools, self.record, attempt, self.files(attempt.number))

    def broken(self, ports: Sequence[str]) -> str | None:
        """Why a program that was told to use *ports* must not start."""
        return attachments.why_down(self._tools.lookout.inventory, ports)

    def files(self, attempt: int) -> Path:
        return self._tools.slot_folder(self.id) / f"a{attempt}"


def _wish(grace_s: float, why: str = "", signal: str = "") -> StopWish:
    return StopWish(grace_s, now() + grace_s, why, signal)


def _with_stop(attempt: AttemptRecord, wish: StopWish) -> AttemptRecord:
    """The sooner of two stops wins; the first reason stays."""
    if attempt.stop is None:
        return replace(attempt, stop=wish)
    if attempt.stop.deadline_s <= wish.deadline_s:
        return attempt
    return replace(attempt, stop=replace(wish, why=attempt.stop.why or wish.why))


def is_same_request(one: SlotRequest, other: SlotRequest) -> bool:
    """
    Credentials aside, which may be newer and are forgotten once the image is there, and what the engine calls this use
    of the slot.
    """
    aside = {"registry_auth": None, "incarnation": ""}
    return one.model_copy(update=aside) == other.model_copy(update=aside)
