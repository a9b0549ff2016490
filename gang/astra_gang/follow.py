"""
What a caller watches while it happens: events of a run, a worker's log, a program run beside a worker's own.

A stream that breaks off is broken off towards the caller, too: only what came to its end ends well.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from aiohttp import WSCloseCode, WSMessage, WSMsgType, hdrs, web

from astra_agent.errors import AstraError, Conflict, InvalidRequest, NotFound
from astra_agent.wire import ExecRequest, LogsRequest
from astra_gang import view
from astra_gang.clock import Clock
from astra_gang.core import Member, Phase, Worker
from astra_gang.core.record import member_of
from astra_gang.core.slots import attempt_in
from astra_gang.loop import Loop
from astra_gang.query import Query
from astra_gang.store import EVENTS_KEPT, RunRecord, Store
from astra_gang.streams import MESSAGE_MAX, Streams, join

_LOG_MISSING = 4404
"""The agent's close code when it has no such log; the reason is the sentence."""
_FIRST_BYTES_S = 0.5
"""How long the answer's head waits for the log to turn out to be there; a silent program has none to show."""
_WORDS_MAX = 1024
_PING_S = 30.0
_LOG_HEAD: Mapping[str, str] = {hdrs.CONTENT_TYPE: "text/plain; charset=utf-8"}
_EVENTS_HEAD: Mapping[str, str] = {hdrs.CONTENT_TYPE: "application/x-ndjson"}


class Follow:
    def __init__(self, *, clock: Clock, store: Store, loop: Loop, streams: Streams) -> None:
        self._clock = clock
        self._store = store
        self._loop = loop
        self._streams = streams

    # Events ----------------------------------------------------------------------------------------------------------

    async def known_events(self, uid: str, after: int) -> list[view.Json]:
        found = await self._store.events(uid, after, EVENTS_KEPT)
        return [view.event(said, self._clock.wall) for said in found]

    async def events(self, request: web.Request, uid: str, after: int) -> web.StreamResponse:
        """One JSON document a line, until the run has ended and all is told."""
        answer = web.StreamResponse(headers=_EVENTS_HEAD)
        await answer.prepare(request)
        while True:
            turn = self._loop.next_turn()
            run = self._loop.ledger.get(uid)
            for item in await self.known_events(uid, after):
                after = item["id"]
                await answer.write(json.dumps(item).encode() + b"\n")
            if run is None or run.state.phase is Phase.ENDED:
                await answer.write_eof()
                return answer
            await turn.wait()

    # Logs ------------------------------------------------------------------------------------------------------------

    async def log(self, request: web.Request, run: RunRecord, query: Query) -> web.StreamResponse:
        """
        Raises:
            NotFound: No such rank or attempt, or it has no log.
            Unavailable: Its machine is not connected.
        """
        worker = _worker(run, query)
        follow, attempt = query.flag("follow"), query.number("attempt")
        tail_bytes = query.number("tail_bytes")
        answer = web.StreamResponse(headers=_LOG_HEAD)
        found = _with_log(run, worker, attempt)
        if found is None:
            if not follow:
                word = "never started" if run.state.phase is Phase.ENDED else "has not started yet"
                raise NotFound(f"{worker.name} {word}: there is no log")
            await answer.prepare(request)
            found = await self._until_begun(run.state.uid, worker, attempt)
            if found is None:
                await answer.write_eof()
                return answer
        member, number = found
        wanted = LogsRequest(slot=member.slot, attempt=number, follow=follow, tail_bytes=tail_bytes)
        try:
            async with self._streams.open(member.machine, wanted) as agent:
                await _copy_log(request, answer, agent, member.machine)
        except AstraError as error:
            if answer.prepared:  # too late for a status: the caller must see that this was not the end
                raise ConnectionResetError(str(error)) from error
            raise
        return answer

    async def _until_begun(self, uid: str, worker: Worker, attempt: int | None) -> tuple[Member, int] | None:
        """The attempt whose log there will be; None when the run ends without one."""
        while True:
            turn = self._loop.next_turn()
            run = self._loop.ledger.get(uid)
            if run is None:
                return None
            found = _with_log(run, run.state.workers[worker.rank], attempt)
            if found is not None or run.state.phase is Phase.ENDED:
                return found
            await turn.wait()

    # Exec ------------------------------------------------------------------------------------------------------------

    async def exec(self, request: web.Request, run: RunRecord, query: Query) -> web.StreamResponse:
        """
        Raises:
            InvalidRequest: A parameter is wrong, or the request does not ask for a WebSocket.
            Conflict: The worker does not run now.
            Unavailable: Its machine is not connected.
        """
        worker = _worker(run, query)
        seen = attempt_in(worker.slot, worker.attempt)
        if worker.slot is None or seen is None or seen.state != "running":
            state = next(
                w["state"] for w in view.job(run, self._clock.wall)["status"]["workers"] if w["rank"] == worker.rank
            )
            raise Conflict(f"{worker.name} does not run now: it is {state}")
        command = query.texts("command")
        if not command or not command[0] or len(command) > _WORDS_MAX:
            raise InvalidRequest(f"command must be given once for each word, from 1 to {_WORDS_MAX}", "command")
        wanted = ExecRequest(
            slot=worker.slot.id,
            command=command,
            tty=query.flag("tty"),
            stdin=query.flag("stdin"),
            width=query.number("width", 80, least=1, most=10_000) or 80,
            height=query.number("height", 24, least=1, most=10_000) or 24,
        )
        client = web.WebSocketResponse(timeout=3.0, max_msg_size=MESSAGE_MAX, heartbeat=_PING_S)
        if not client.can_prepare(request).ok:
            raise InvalidRequest("exec needs a WebSocket: send the headers of its hand-shake")
        async with self._streams.open(worker.slot.machine, wanted) as agent:
            await client.prepare(request)
            await join(agent, client)
            whole = agent.close_code in (None, WSCloseCode.OK)
            await client.close(code=WSCloseCode.OK if whole else WSCloseCode.GOING_AWAY)
        return client


def _worker(run: RunRecord, query: Query) -> Worker:
    rank = query.number("rank", 0) or 0
    workers = run.state.workers
    if rank >= len(workers):
        there = "rank 0 alone" if len(workers) == 1 else f"ranks 0 to {len(workers) - 1}"
        raise NotFound(f"run {run.state.name} has no rank {rank}: it has {there}")
    return workers[rank]


def _with_log(run: RunRecord, worker: Worker, number: int | None) -> tuple[Member, int] | None:
    """
    The attempt to read, and where; None when it has not begun.

    Args:
        number: An attempt, or None for the newest that has begun.
    Raises:
        NotFound: The worker is no member of this attempt, or it is not on record.
    """
    state = run.state
    if number is not None and number <= state.attempt:
        if number == state.attempt and not state.recorded:
            return None
        member = next((m for m in view.recorded_attempt(run, number).members if m.rank == worker.rank), None)
        if member is None:
            raise NotFound(f"{worker.name} was not restarted in attempt {number}: its newest is {worker.attempt}")
        return member, number
    if number is not None:
        raise NotFound(f"run {state.name} has no attempt {number} yet: the newest is {state.attempt}")
    for attempt in reversed(state.attempts):
        member = member_of(state, worker.rank, attempt.number)
        if member is not None and attempt.opened_at is not None:
            return member, attempt.number
    return None


async def _copy_log(
    request: web.Request, answer: web.StreamResponse, agent: web.WebSocketResponse, machine: str
) -> None:
    message = await _first(agent)
    if message is not None and message.type is WSMsgType.CLOSE and message.data == _LOG_MISSING:
        raise NotFound(str(message.extra))
    if not answer.prepared:
        await answer.prepare(request)
    if message is None:
        message = await agent.receive()
    while message.type is WSMsgType.BINARY:
        await answer.write(message.data)
        message = await agent.receive()
    if agent.close_code != WSCloseCode.OK:
        raise ConnectionResetError(f"the log of {machine} broke off")
    await answer.write_eof()


async def _first(agent: web.WebSocketResponse) -> WSMessage | None:
    try:
        return await agent.receive(timeout=_FIRST_BYTES_S)
    except TimeoutError:
        return None
