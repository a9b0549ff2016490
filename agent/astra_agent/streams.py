"""
Streams: a log that is read, a program that is run beside a worker's own, a name that is looked up, a machine that is
looked at. The coordinator asks for one over the link, the agent dials a connection of its own for it; either side ends
it by closing.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import aiohttp

from astra_agent.agent import Agent
from astra_agent.dial import Dialer, first_of
from astra_agent.errors import AstraError
from astra_agent.exec_frames import say_not_run, serve_exec
from astra_agent.inventory.document import dump
from astra_agent.probes import Probes, refuse
from astra_agent.wire import (
    ExecRequest,
    InventoryRequest,
    LogsRequest,
    LookAheadRequest,
    Lookup,
    LookupRequest,
    OpenStream,
    ProbeRequest,
)

log = logging.getLogger(__name__)

_AT_ONCE = 128
_CLOSE_NOT_FOUND = 4404
"""WebSocket close code of a log that is not there; the close's message is the sentence."""

Connection = aiohttp.ClientWebSocketResponse


class Streams:
    def __init__(self, agent: Agent, dialer: Dialer) -> None:
        self._agent = agent
        self._dialer = dialer
        self._asked: asyncio.Queue[OpenStream] = asyncio.Queue(_AT_ONCE)
        self._open = asyncio.Semaphore(_AT_ONCE)
        self._probes = Probes(1e9 * dialer.probe_max_gbps)

    def open(self, opened: OpenStream) -> None:
        """Serve it. What is too many at once is not: whoever asked waits with a bound."""
        try:
            self._asked.put_nowait(opened)
        except asyncio.QueueFull:
            log.warning("stream_refused stream=%s reason=%r", opened.stream, f"{_AT_ONCE} streams are open")

    async def run(self) -> None:
        """Owns the streams; for ever."""
        async with asyncio.TaskGroup() as group:
            while True:
                opened = await self._asked.get()
                await self._open.acquire()
                group.create_task(self._serve(opened), name=f"stream {opened.stream}")

    async def _serve(self, opened: OpenStream) -> None:
        try:
            connection = await self._dialer.dial(f"/v1/agents/streams/{opened.stream}")
            try:
                match opened.request:
                    case LogsRequest() as request:
                        await self._logs(connection, request)
                    case ExecRequest() as request:
                        await self._exec(connection, request)
                    case LookupRequest() as request:
                        await connection.send_str((await self._lookup(request)).model_dump_json())
                    case InventoryRequest():
                        await connection.send_str(dump(self._agent.inventory))
                    case LookAheadRequest() as request:
                        await connection.send_str((await self._agent.look_ahead(request.request)).model_dump_json())
                    case ProbeRequest() as request:
                        await self._probe(connection, request)
            except asyncio.CancelledError:
                # Not the stream's end: whoever follows a log asks for the rest of it when this agent is back.
                await connection.close(code=aiohttp.WSCloseCode.GOING_AWAY)
                raise
            finally:
                await connection.close()
        except (AstraError, aiohttp.ClientError, OSError) as error:
            log.info("stream_ended stream=%s reason=%r", opened.stream, str(error))
        finally:
            self._open.release()

    # Logs ---------------------------------------------------------------------------------------------------------

    async def _logs(self, connection: Connection, request: LogsRequest) -> None:
        attempt = request.attempt if request.attempt is not None else self._agent.logs.newest(request.slot)
        if attempt is None or not self._agent.logs.path(request.slot, attempt).exists():
            which = "no attempt" if attempt is None else f"no attempt {attempt}"
            sentence = f"there is {which} of slot {request.slot} with a log on this machine"
            await connection.close(code=_CLOSE_NOT_FOUND, message=sentence.encode()[:120])
            return
        await first_of(_closed(connection), self._send_log(connection, request, attempt))

    async def _send_log(self, connection: Connection, request: LogsRequest, attempt: int) -> None:
        """Standard output and error of a worker whose engine wants them apart come as they are found: both at once."""

        def has_ended() -> bool:
            return not self._agent.is_running(request.slot, attempt)

        async def send(path: Path) -> None:
            pieces = self._agent.logs.read(
                path, tail_bytes=request.tail_bytes, follow_until=has_ended if request.follow else None
            )
            async for piece in pieces:
                await connection.send_bytes(piece)

        async with asyncio.TaskGroup() as group:
            for path in self._agent.logs.paths(request.slot, attempt):
                group.create_task(send(path))

    # Exec ---------------------------------------------------------------------------------------------------------

    async def _exec(self, connection: Connection, request: ExecRequest) -> None:
        try:
            session = await self._agent.exec(request)
        except AstraError as error:
            await say_not_run(connection, str(error))
            return
        await serve_exec(connection, session)

    # Probes -------------------------------------------------------------------------------------------------------

    async def _probe(self, connection: Connection, request: ProbeRequest) -> None:
        try:
            netns = self._dialer.netns if request.slot is None else self._agent.network_of(request.slot)
        except AstraError as error:
            await refuse(connection, str(error))
            return
        await self._probes.serve(connection, netns)

    # Names --------------------------------------------------------------------------------------------------------

    async def _lookup(self, request: LookupRequest) -> Lookup:
        try:
            return await self._agent.names.lookup(request.slot, request.name, request.type)
        except AstraError as error:
            return Lookup(error=str(error))


async def _closed(connection: Connection) -> None:
    """Until the other side has closed; whatever else it says is of no interest."""
    async for _ in connection:
        pass
