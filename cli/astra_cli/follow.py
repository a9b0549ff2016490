"""
Watch a run, or one worker's log, through restarts of the coordinator.

Both read again from where they were: nothing is shown twice, nothing is left out. A coordinator that stays away for
longer than `PATIENCE_S` ends the watching, never the run.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

from astra_agent.errors import AstraError, Conflict, DeadlineExceeded, InvalidRequest, NotFound, Unavailable, first_of
from astra_cli.client import Client, Unreachable
from astra_cli.documents import ENDED, Event, Job

Json = dict[str, Any]
News = tuple[Event, Json]
"""What happened, and the coordinator's own document of it."""

PATIENCE_S = 600.0
POLL_S = 0.1
RETRY_S = 0.5
DRAIN_S = 10.0
"""How long a log may take to end after its run has ended."""

_WROTE = ("Running", "Stopping", "Completed", "Failed", "Stopped")
"""Worker states in which its attempt has, or may have, a log."""

_AWAY = (Unavailable, DeadlineExceeded)


class Narrator(Protocol):
    """Who tells the person what is going on."""

    def phase(self, job: Job, document: Json) -> None: ...

    def event(self, event: Event, document: Json) -> None: ...

    def log(self, line: str) -> None: ...

    def note(self, sentence: str) -> None: ...


@dataclass(slots=True)
class Patience:
    """
    Waits for what is away, and says so once.

    Attributes:
        known: The coordinator has answered before. One that never did is not waited for.
        of_coordinator: Also says when it is the coordinator that is away. Of two that wait for it, one does.
    """

    narrator: Narrator
    known: bool = False
    of_coordinator: bool = True
    away_since: float | None = None
    told: bool = False

    def met(self) -> None:
        """It is there."""
        if self.told:
            self.narrator.note("going on")
        self.known, self.away_since, self.told = True, None, False

    async def wait(self, error: AstraError) -> None:
        """Pause before the next try. Raises *error* when patience is at its end, or has no reason to begin."""
        self.known = self.known or not isinstance(error, Unreachable) or error.broke_off
        if not self.known:
            raise error
        now = time.monotonic()
        self.away_since = self.away_since if self.away_since is not None else now
        if not self.told and (self.of_coordinator or not isinstance(error, Unreachable)):
            self.told = True
            self.narrator.note(_waiting_for(error))
        if now - self.away_since > PATIENCE_S:
            raise error
        await asyncio.sleep(RETRY_S)


def _waiting_for(error: AstraError) -> str:
    if isinstance(error, Unreachable):
        return "the coordinator does not answer; the run goes on without it, waiting for it to be back"
    return f"{error}; waiting for that to change"


@dataclass(slots=True)
class Lines:
    """Bytes in, whole lines out; *partial* is what has no end yet."""

    partial: bytes = b""

    def feed(self, piece: bytes) -> list[str]:
        *whole, self.partial = (self.partial + piece).split(b"\n")
        return [line.decode(errors="replace").rstrip("\r") for line in whole]

    def rest(self) -> list[str]:
        rest, self.partial = self.partial, b""
        return [rest.decode(errors="replace")] if rest else []


def happened_before(job: Job, events: list[Event]) -> int:
    """
    How many of *events* belong before the document, which was read first: those up to the one that told its reason, or
    none.
    """
    reason = job.status.reason
    quoted = [i for i, e in enumerate(events) if reason and (reason in e.sentence or reason.startswith(e.sentence))]
    return quoted[-1] + 1 if quoted else 0


async def follow_log(
    client: Client, name: str, rank: int, attempt: int | None, patience: Patience
) -> AsyncIterator[bytes]:
    """A worker's output until its attempt has ended."""
    shown = 0
    while True:
        skip = shown
        try:
            async for piece in client.logs(name, rank, attempt=attempt, follow=True):
                patience.met()
                new = piece[skip:]
                skip = max(0, skip - len(piece))
                shown += len(new)
                if new:
                    yield new
            patience.met()
            return
        except _AWAY as error:
            await patience.wait(error)


async def expect_log(client: Client, name: str, rank: int, attempt: int | None) -> None:
    """Of a followed log that was empty. Raises: NotFound when there never was one: the run ended before it started."""
    with suppress(*_AWAY):  # its end has been seen: nothing is to be waited for
        async for _ in client.logs(name, rank, attempt=attempt, tail_bytes=0):
            pass


async def follow_run(client: Client, name: str, narrator: Narrator) -> Job:
    """Tell of the run until it has ended, with rank 0's log; returns it as it ended."""
    watch = _Watch(client, name, narrator)
    try:
        async with asyncio.TaskGroup() as group:
            logs = group.create_task(watch.logs())
            job = await watch.until_ended()
            await logs
            return job
    except BaseExceptionGroup as group_error:
        raise first_of(group_error) from None


@dataclass(slots=True)
class _Watch:
    client: Client
    name: str
    narrator: Narrator
    attempts: asyncio.Queue[int | None] = field(default_factory=lambda: asyncio.Queue(maxsize=1024))
    """Attempts of rank 0 that have a log, in order; None: there will be no more."""
    drained: asyncio.Event = field(default_factory=asyncio.Event)
    """All of its logs have been told."""
    queued: int = -1
    told: int = 0
    """Id of the last event that was told."""

    async def until_ended(self) -> Job:
        patience = Patience(self.narrator, known=True)
        while True:
            try:
                document = await self.client.job(self.name)
                events = await self.client.events(self.name, self.told)
            except _AWAY as error:
                await patience.wait(error)
                continue
            patience.met()
            job = Job.model_validate(document)
            news = [(Event.model_validate(item), item) for item in events.get("items", [])]
            if job.ended:
                await self._tell_end(job, document, news)
                return job
            # Events of the end are newer than this document: they are told with the next one, which has ended, too.
            if not any(event.sentence in ENDED for event, _ in news):
                self._log_of(job)
                before = happened_before(job, [event for event, _ in news])
                self._tell(news[:before])
                self.narrator.phase(job, document)
                self._tell(news[before:])
            await asyncio.sleep(POLL_S)

    async def _tell_end(self, job: Job, document: Json, news: list[News]) -> None:
        """What led to it, the rest of the log, then the end."""
        self._log_of(job)
        self.attempts.put_nowait(None)
        ends = (job.status.reason, *ENDED)
        closing = next((i for i, (event, _) in enumerate(news) if event.sentence in ends), len(news))
        self._tell(news[:closing])
        await self.drained.wait()
        self._tell(news[closing:])
        self.narrator.phase(job, document)

    def _tell(self, news: list[News]) -> None:
        for event, document in news:
            if event.id > self.told:
                self.told = event.id
                self.narrator.event(event, document)

    def _log_of(self, job: Job) -> None:
        """Have the logs of rank 0's attempts told, each once: of those that ended between two polls as well."""
        leader = next((worker for worker in job.status.workers if worker.rank == 0), None)
        if leader is None or leader.attempt is None:
            return
        newest = leader.attempt if leader.state in _WROTE else leader.attempt - 1
        for attempt in range(self.queued + 1, newest + 1):
            self.queued = attempt
            self.attempts.put_nowait(attempt)

    async def logs(self) -> None:
        """One attempt's log after the other. One that does not end holds up the next no longer than `DRAIN_S`."""
        attempt = await self.attempts.get()
        while attempt is not None:
            async with asyncio.TaskGroup() as group:
                log = group.create_task(self._log(attempt))
                attempt = await self.attempts.get()
                await asyncio.wait({log}, timeout=DRAIN_S)
                log.cancel()
        self.drained.set()

    async def _log(self, attempt: int) -> None:
        patience = Patience(self.narrator, known=True, of_coordinator=False)
        lines = Lines()
        # A log that is not there (yet, or any more) is no reason to stop telling of the run.
        with suppress(NotFound, Conflict, InvalidRequest, *_AWAY):
            async for piece in follow_log(self.client, self.name, 0, attempt, patience):
                for line in lines.feed(piece):
                    self.narrator.log(line)
        for line in lines.rest():
            self.narrator.log(line)
