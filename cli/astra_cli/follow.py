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

from astra_agent.errors import AstraError, Conflict, DeadlineExceeded, InvalidRequest, NotFound, Unavailable
from astra_cli.client import Client
from astra_cli.documents import Event, Job

Json = dict[str, Any]

PATIENCE_S = 600.0
POLL_S = 0.1
RETRY_S = 0.5
DRAIN_S = 10.0
"""How long a log may take to end after its run has ended."""

_WROTE = ("Running", "Stopping", "Completed", "Failed")
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
    """How long somebody has been away, and whether that was said."""

    narrator: Narrator
    away_since: float | None = None

    def met(self) -> None:
        if self.away_since is not None:
            self.narrator.note("the coordinator answers again")
        self.away_since = None

    async def wait(self, error: AstraError) -> None:
        """Pause before the next try. Raises *error* when patience is at its end."""
        now = time.monotonic()
        if self.away_since is None:
            self.away_since = now
            self.narrator.note("the coordinator does not answer; the run goes on without it, waiting for it to be back")
        if now - self.away_since > PATIENCE_S:
            raise error
        await asyncio.sleep(RETRY_S)


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
            return
        except _AWAY as error:
            await patience.wait(error)


async def follow_run(client: Client, name: str, narrator: Narrator) -> Job:
    """Tell of the run until it has ended, with rank 0's log; returns it as it ended."""
    watch = _Watch(client, name, narrator)
    logs: asyncio.Task[None] | None = None
    try:
        async with asyncio.TaskGroup() as group:
            logs = group.create_task(watch.logs())
            job = await watch.until_ended()
            with suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(logs), DRAIN_S)
            logs.cancel()
            return job
    except BaseExceptionGroup as group_error:
        raise _first(group_error) from None


@dataclass(slots=True)
class _Watch:
    client: Client
    name: str
    narrator: Narrator
    attempts: asyncio.Queue[int | None] = field(default_factory=lambda: asyncio.Queue(maxsize=1024))
    """Attempts of rank 0 that have a log, in order; None: there will be no more."""
    queued: int = -1
    told: int = 0
    """Id of the last event that was told."""

    async def until_ended(self) -> Job:
        patience = Patience(self.narrator)
        while True:
            try:
                document = await self.client.job(self.name)
                events = await self.client.events(self.name, self.told)
            except _AWAY as error:
                await patience.wait(error)
                continue
            patience.met()
            job = Job.model_validate(document)
            self._tell(job, document, events)
            if job.ended:
                self.attempts.put_nowait(None)
                return job
            await asyncio.sleep(POLL_S)

    def _tell(self, job: Job, document: Json, events: Json) -> None:
        for item in events.get("items", []):
            event = Event.model_validate(item)
            if event.id > self.told:
                self.told = event.id
                self.narrator.event(event, item)
        self.narrator.phase(job, document)
        leader = next((worker for worker in job.status.workers if worker.rank == 0), None)
        if leader is None or leader.attempt is None or leader.state not in _WROTE:
            return
        if leader.attempt > self.queued:
            self.queued = leader.attempt
            self.attempts.put_nowait(leader.attempt)

    async def logs(self) -> None:
        patience = Patience(self.narrator, away_since=None)
        while (attempt := await self.attempts.get()) is not None:
            lines = Lines()
            # A log that is not there (yet, or any more) is no reason to stop telling of the run.
            with suppress(NotFound, Conflict, InvalidRequest):
                async for piece in follow_log(self.client, self.name, 0, attempt, patience):
                    for line in lines.feed(piece):
                        self.narrator.log(line)
            for line in lines.rest():
                self.narrator.log(line)


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """What went wrong first, out of its groups."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
