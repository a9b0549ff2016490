"""
The link to the coordinator: one WebSocket, dialled again for ever. It says hello with everything, then reports and
leases, and hands directives to the agent.
"""

from __future__ import annotations

import asyncio
import logging
import random

import aiohttp
from pydantic import TypeAdapter, ValidationError

from astra_agent.agent import Agent
from astra_agent.dial import Dialer, first_of
from astra_agent.errors import AstraError, Unavailable
from astra_agent.lease import LeaseKeeper, now
from astra_agent.streams import Streams
from astra_agent.wire import (
    PROTOCOL,
    DirectiveMessage,
    FactsChanged,
    Lease,
    LeaseAck,
    MachineFacts,
    Names,
    OpenStream,
    ReportAck,
    ToAgent,
    ToCoordinator,
    Welcome,
    lease_every_s,
    other_protocol,
)

log = logging.getLogger(__name__)

_PATH = "/v1/agents/link"
_WELCOME_S = 10.0
_BACKOFF_FIRST_S = 0.1
_BACKOFF_MAX_S = 2.0
_DEAD_AFTER = 0.4
"""A lease without an answer for this part of the disconnect limit: the link is dead whatever TCP says."""

_MESSAGE: TypeAdapter[ToAgent] = TypeAdapter(ToAgent)
Connection = aiohttp.ClientWebSocketResponse


class Link:
    def __init__(self, agent: Agent, dialer: Dialer, lease: LeaseKeeper) -> None:
        self._agent = agent
        self._dialer = dialer
        self._lease = lease
        self._streams = Streams(agent, dialer)
        self._backoff_s = _BACKOFF_FIRST_S
        self.trouble = "not linked to the coordinator yet"
        """Why there is no connection; empty while there is one."""

    async def run(self) -> None:
        """For ever."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._lease.run(self._agent.lease_over), name="lease")
            group.create_task(self._streams.run(), name="streams")
            said = ""
            while True:
                try:
                    await self._connect()
                except AstraError as error:
                    self.trouble = str(error)
                    if str(error) != said:
                        said = str(error)
                        log.warning("link_lost reason=%r", said)
                self._agent.outbox.resend()
                await asyncio.sleep(self._backoff_s * random.uniform(0.5, 1.0))
                self._backoff_s = min(2 * self._backoff_s, _BACKOFF_MAX_S)

    async def _connect(self) -> None:
        """Returns, or raises an `AstraError`, when the connection has ended."""
        connection = await self._dialer.dial(_PATH)
        try:
            session = await self._greet(connection)
            log.info("link_up limit_s=%g", session.limit_s)
            self.trouble = ""
            self._backoff_s = _BACKOFF_FIRST_S
            await first_of(session.receive(), session.send_reports(), session.send_leases(), session.send_facts())
        except (aiohttp.ClientError, OSError) as error:
            raise Unavailable(f"the link has ended: {error}") from error
        finally:
            await connection.close()

    async def _greet(self, connection: Connection) -> _Session:
        hello = self._agent.hello()
        sent_s = now()
        await connection.send_str(hello.model_dump_json())
        try:
            async with asyncio.timeout(_WELCOME_S):
                said = await _text(connection)
        except TimeoutError as error:
            raise Unavailable(f"the coordinator does not answer the hello within {_WELCOME_S:g} s") from error
        if (theirs := other_protocol(said)) is not None:
            raise Unavailable(
                f"the coordinator speaks protocol {theirs}, this agent {PROTOCOL}: install the same version on both"
            )
        welcome = _parse(said)
        if not isinstance(welcome, Welcome):
            raise Unavailable(f"the coordinator answered the hello with {welcome.kind}, not welcome")
        self._agent.greet_term(welcome.term)
        self._lease.renew(sent_s, welcome.disconnect_limit_s)
        return _Session(self._agent, connection, self._lease, self._streams, welcome.disconnect_limit_s, hello.facts)


class _Session:
    """One connection after its welcome."""

    def __init__(
        self,
        agent: Agent,
        connection: Connection,
        lease: LeaseKeeper,
        streams: Streams,
        limit_s: float,
        facts: MachineFacts,
    ) -> None:
        self.limit_s = limit_s
        self._agent = agent
        self._connection = connection
        self._lease = lease
        self._streams = streams
        self._facts_told = facts
        self._unanswered: dict[int, float] = {}
        """Leases by number, oldest first, with when they were sent."""

    async def receive(self) -> None:
        while True:
            match _parse(await _text(self._connection)):
                case DirectiveMessage(directive=directive):
                    if (answer := self._agent.obey(directive)) is not None:
                        await self._send(answer)
                case Names() as names:
                    self._agent.learn(names)
                case ReportAck(seq=seq):
                    self._agent.acknowledged(seq)
                case LeaseAck(n=n):
                    self._answered(n)
                case OpenStream() as opened:
                    self._streams.open(opened)
                case Welcome():
                    raise Unavailable("the coordinator said welcome twice")

    async def send_reports(self) -> None:
        while True:
            await self._send(await self._agent.outbox.next())

    async def send_leases(self) -> None:
        n = 0
        while True:
            await asyncio.sleep(lease_every_s(self.limit_s))
            oldest = next(iter(self._unanswered.values()), None)
            if oldest is not None and now() - oldest >= self.limit_s * _DEAD_AFTER:
                raise Unavailable("the coordinator does not answer leases")
            n += 1
            self._unanswered[n] = now()
            await self._send(Lease(n=n))

    async def send_facts(self) -> None:
        while True:
            await self._agent.facts_changed.wait()
            self._agent.facts_changed.clear()
            facts = self._agent.facts()
            if facts != self._facts_told:
                self._facts_told = facts
                await self._send(FactsChanged(facts=facts))

    def _answered(self, n: int) -> None:
        """Earlier ones have arrived, too."""
        if (sent_s := self._unanswered.get(n)) is not None:
            self._lease.renew(sent_s, self.limit_s)
            self._unanswered = {other: at for other, at in self._unanswered.items() if other > n}

    async def _send(self, message: ToCoordinator) -> None:
        await self._connection.send_str(message.model_dump_json())


async def _text(connection: Connection) -> str:
    """Raises: Unavailable when the connection has ended."""
    message = await connection.receive()
    if message.type is not aiohttp.WSMsgType.TEXT:
        why = f": {message.extra}" if message.type is aiohttp.WSMsgType.CLOSE and message.extra else ""
        raise Unavailable(f"the coordinator has closed the link (code {connection.close_code}){why}")
    return str(message.data)


def _parse(said: str) -> ToAgent:
    """Raises: Unavailable for what is no message."""
    try:
        return _MESSAGE.validate_json(said)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise Unavailable(f"the coordinator sent what is no message: {where}: {first['msg']}") from error
