"""
The agents' links: one WebSocket for each machine, hello first, then reports and leases in, directives out.

A lease is answered by whoever reads the socket, at once, so that a slow disk or a full inbox never looks like a lost
coordinator. Reports go through the loop and are acknowledged once they are recorded; while the loop is busy only the
newest of each slot waits, since each one says everything.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Coroutine, Iterable
from typing import Any, Protocol

from aiohttp import WSCloseCode, WSMessage, WSMsgType, web
from pydantic import TypeAdapter, ValidationError

from astra_agent import wire
from astra_agent.errors import Conflict, InvalidRequest, Unavailable
from astra_gang.roster import Roster
from astra_gang.slot_names import SlotNames
from astra_gang.tokens import Token

_log = logging.getLogger(__name__)

HELLO_WAIT_S = 15.0
MESSAGE_MAX = 16 * 2**20
"""Bytes; a hello with a thousand slots has about one million."""
OUTBOX_MAX = 4096
"""Messages that wait for an agent that reads slowly; beyond that its link is cut, and its next hello starts afresh."""
_SEND_S = 20.0
_CLOSE_S = 3.0
_REASON_MAX = 120
"""Bytes of a reason in a WebSocket's close frame."""

_FROM_AGENT: TypeAdapter[wire.ToCoordinator] = TypeAdapter(wire.ToCoordinator)


class Inbox(Protocol):
    """Where what agents say goes. Each returns once it is recorded."""

    async def hello(self, hello: wire.Hello) -> None: ...

    async def reports(self, statuses: Iterable[wire.SlotStatus]) -> None: ...

    async def slot_gone(self, slot: str) -> None: ...

    def wake(self) -> None: ...


class Links:
    """
    Implements `astra_gang.performer.Agents`.

    Args:
        machines: The only names that may have a link; None: any.
    """

    def __init__(
        self,
        *,
        inbox: Inbox,
        roster: Roster,
        token: Token,
        term: int,
        disconnect_limit_s: float,
        machines: Collection[str] | None = None,
    ) -> None:
        self._inbox = inbox
        self._roster = roster
        self._token = token
        self._welcome = wire.Welcome(term=term, disconnect_limit_s=disconnect_limit_s)
        self._machines = machines
        self._sessions: dict[str, _Session] = {}

    def send(self, machine: str, directive: wire.Directive) -> bool:
        session = self._sessions.get(machine)
        return session is not None and session.send(wire.DirectiveMessage(directive=directive))

    def tell(self, machine: str, names: wire.Names) -> bool:
        session = self._sessions.get(machine)
        return session is not None and session.send(names)

    def connected(self) -> tuple[str, ...]:
        """Names of the machines that have a link now."""
        return tuple(sorted(self._sessions))

    def open_stream(self, machine: str, opened: wire.OpenStream) -> None:
        """
        Raises:
            Unavailable: The machine has no link now.
        """
        session = self._sessions.get(machine)
        if session is None or not session.send(opened):
            raise Unavailable(f"machine {machine} is not connected: its agent does not run, or can't reach us")

    async def handle(self, request: web.Request) -> web.WebSocketResponse:
        """`GET /v1/agents/link`; returns when the link is over."""
        self._token.check(request.headers.get("Authorization"))
        socket = web.WebSocketResponse(timeout=_CLOSE_S, max_msg_size=MESSAGE_MAX)
        await socket.prepare(request)
        try:
            hello = await self._read_hello(socket)
        except (InvalidRequest, Conflict) as error:
            _log.warning("link_refused peer=%s reason=%r", request.remote, str(error))
            await _close(socket, WSCloseCode.POLICY_VIOLATION, str(error))
            return socket
        await self._serve(socket, hello, request.remote)
        return socket

    async def close(self) -> None:
        """End every link; agents try again, and keep what they run."""
        await asyncio.gather(*(session.end("the coordinator stops") for session in list(self._sessions.values())))

    async def _read_hello(self, socket: web.WebSocketResponse) -> wire.Hello:
        try:
            message = await socket.receive(timeout=HELLO_WAIT_S)
        except TimeoutError as error:
            raise InvalidRequest(f"no hello within {HELLO_WAIT_S:g} s") from error
        theirs = wire.other_protocol(message.data) if message.type is WSMsgType.TEXT else None
        if theirs is not None:
            raise Conflict(
                f"agent speaks protocol {theirs}, coordinator {wire.PROTOCOL}: install the same version on both"
            )
        hello = _parse(message)
        if not isinstance(hello, wire.Hello):
            raise InvalidRequest("the first message must be a hello")
        name = hello.facts.name
        if self._machines is not None and name not in self._machines:
            raise InvalidRequest(f"machine {name} is not in [agents] of the coordinator's configuration", "name")
        return hello

    async def _serve(self, socket: web.WebSocketResponse, hello: wire.Hello, peer: str | None) -> None:
        name = hello.facts.name
        while (older := self._sessions.pop(name, None)) is not None:
            _log.warning("link_replaced machine=%s peer=%s", name, peer)
            await older.end("another link of this machine took its place")
        session = _Session(socket, hello, self._inbox, self._roster, self._welcome)
        self._sessions[name] = session
        self._roster.arrived(session.hello)
        _log.info("link_up machine=%s peer=%s version=%s slots=%d", name, peer, hello.version, len(hello.slots))
        try:
            await session.run()
        finally:
            if self._sessions.get(name) is session:
                del self._sessions[name]
                self._roster.left(name)
            _log.info("link_down machine=%s peer=%s reason=%r", name, peer, session.why)
            self._inbox.wake()


class _Session:
    """One link from its hello to its end. Three tasks; when one ends, so do the others."""

    def __init__(
        self,
        socket: web.WebSocketResponse,
        hello: wire.Hello,
        inbox: Inbox,
        roster: Roster,
        welcome: wire.Welcome,
    ) -> None:
        self.why = "the agent closed it"
        self._socket = socket
        self._names = SlotNames()
        self.hello = self._names.heard(hello)
        self._name = hello.facts.name
        self._inbox = inbox
        self._roster = roster
        self._silence_s = welcome.disconnect_limit_s
        self._outbox: asyncio.Queue[wire.Wire] = asyncio.Queue(OUTBOX_MAX)
        self._outbox.put_nowait(welcome)
        self._newest: dict[str, wire.SlotStatus] = {}
        self._seqs: list[int] = []
        self._gone: list[str] = []
        self._reported = asyncio.Event()
        self._ending = asyncio.Event()
        self._ended = asyncio.Event()

    def send(self, message: wire.Wire) -> bool:
        """Put it behind what waits; False when that is too much, or the link is ending."""
        if self._ending.is_set():
            return False
        try:
            self._outbox.put_nowait(self._names.said(message))
        except asyncio.QueueFull:
            self.why = f"the agent does not read: {OUTBOX_MAX} messages wait for it"
            self._ending.set()
            return False
        return True

    async def end(self, why: str) -> None:
        """Returns once nothing of this link is handed to the inbox any more."""
        self.why = why
        self._ending.set()
        await self._ended.wait()

    async def run(self) -> None:
        work: tuple[Coroutine[Any, Any, object], ...] = (
            self._read(), self._write(), self._hand_over(), self._ending.wait(),
        )  # fmt: skip
        tasks = [asyncio.ensure_future(coroutine) for coroutine in work]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._ending.set()
            for task in tasks:
                task.cancel()
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
            self._ended.set()
            await _close(self._socket, WSCloseCode.GOING_AWAY, self.why)
        for outcome in outcomes:
            if isinstance(outcome, BaseException) and not isinstance(outcome, asyncio.CancelledError):
                raise outcome

    async def _read(self) -> None:
        while True:
            try:
                message = await self._socket.receive(timeout=self._silence_s)
                if message.type in (WSMsgType.CLOSE, WSMsgType.CLOSING, WSMsgType.CLOSED, WSMsgType.ERROR):
                    return
                self._take(self._names.heard(_parse(message)))
            except TimeoutError:
                self.why = f"no lease came for {self._silence_s:g} s"
                return
            except InvalidRequest as error:
                self.why = str(error)
                return

    def _take(self, message: wire.ToCoordinator) -> None:
        match message:
            case wire.Lease(n=n):
                self._roster.leased(self._name)
                self.send(wire.LeaseAck(n=n))
            case wire.Report(seq=seq, status=status):
                self._roster.slot_reported(self._name, status.slot)
                known = self._newest.get(status.slot)
                if known is None or known.rev <= status.rev:
                    self._newest[status.slot] = status
                self._seqs.append(seq)
                self._reported.set()
            case wire.SlotGone(slot=slot):
                self._roster.slot_gone(self._name, slot)
                self._gone.append(slot)
                self._reported.set()
            case wire.FactsChanged(facts=facts):
                if facts.name != self._name:
                    raise InvalidRequest(f"machine {self._name} can't become {facts.name} on the same link")
                self._roster.facts_changed(facts)
            case wire.Refused(slot=slot, reason=reason):
                _log.warning("directive_refused machine=%s slot=%s reason=%r", self._name, slot, reason)
            case wire.Hello():
                raise InvalidRequest("a second hello on one link")

    async def _hand_over(self) -> None:
        """To the loop, one batch after the other."""
        await self._inbox.hello(self.hello)
        while True:
            await self._reported.wait()
            self._reported.clear()
            statuses, self._newest = tuple(self._newest.values()), {}
            seqs, self._seqs = self._seqs, []
            gone, self._gone = self._gone, []
            await self._inbox.reports(statuses)
            for slot in gone:
                await self._inbox.slot_gone(slot)
            for seq in seqs:
                self.send(wire.ReportAck(seq=seq))

    async def _write(self) -> None:
        try:
            while True:
                message = await self._outbox.get()
                async with asyncio.timeout(_SEND_S):
                    await self._socket.send_str(message.model_dump_json())
        except TimeoutError:
            self.why = f"the agent did not read for {_SEND_S:g} s"
        except ConnectionError as error:
            self.why = f"the connection broke ({error})"


def _parse(message: WSMessage) -> wire.ToCoordinator:
    if message.type is not WSMsgType.TEXT:
        raise InvalidRequest(f"a {message.type.name} message where text is spoken")
    try:
        return _FROM_AGENT.validate_json(message.data)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "message"
        raise InvalidRequest(f"{where}: {first['msg']}") from error


async def _close(socket: web.WebSocketResponse, code: int, reason: str) -> None:
    """With the reason, cut to what a close frame carries; a peer that is gone is no error."""
    cut = reason.encode()[:_REASON_MAX].decode(errors="ignore")
    try:
        await socket.close(code=code, message=cut.encode())
    except (ConnectionError, RuntimeError) as error:
        _log.debug("close_failed reason=%r", str(error))
