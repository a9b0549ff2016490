"""
Streams: a log that is read, a program that is run beside a worker's own. The coordinator asks for one over the link,
the agent dials a connection of its own for it; either side ends it by closing.
"""

from __future__ import annotations

import asyncio
import logging

import aiohttp
from pydantic import TypeAdapter, ValidationError

from astra_agent.agent import Agent
from astra_agent.dial import Dialer, first_of
from astra_agent.errors import AstraError, NotFound
from astra_agent.runtime import ExecSession
from astra_agent.wire import ExecExit, ExecRequest, LogsRequest, OpenStream, Resize, StdinEnd

log = logging.getLogger(__name__)

_AT_ONCE = 128
_CLOSE_NOT_FOUND = 4404
"""WebSocket close code of a log that is not there; the close's message is the sentence."""
_EXIT_NOT_RUN = 126

_Control = Resize | StdinEnd
_CONTROL: TypeAdapter[_Control] = TypeAdapter(_Control)
Connection = aiohttp.ClientWebSocketResponse


class Streams:
    def __init__(self, agent: Agent, dialer: Dialer) -> None:
        self._agent = agent
        self._dialer = dialer
        self._asked: asyncio.Queue[OpenStream] = asyncio.Queue(_AT_ONCE)
        self._open = asyncio.Semaphore(_AT_ONCE)

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
        def has_ended() -> bool:
            return not self._agent.is_running(request.slot, attempt)

        pieces = self._agent.logs.read(
            self._agent.logs.path(request.slot, attempt),
            tail_bytes=request.tail_bytes,
            follow_until=has_ended if request.follow else None,
        )
        async for piece in pieces:
            await connection.send_bytes(piece)

    # Exec ---------------------------------------------------------------------------------------------------------

    async def _exec(self, connection: Connection, request: ExecRequest) -> None:
        try:
            session = await self._begin_exec(request)
        except AstraError as error:
            await connection.send_str(ExecExit(code=_EXIT_NOT_RUN, error=str(error)).model_dump_json())
            return
        try:
            await first_of(_feed(connection, session), _drain(connection, session))
        finally:
            await session.close()

    async def _begin_exec(self, request: ExecRequest) -> ExecSession:
        container = self._agent.slot(request.slot).running_container()
        if container is None:
            raise NotFound(f"nothing runs in slot {request.slot} now")
        return await self._agent.containers.exec(
            container, request.command, request.tty, request.stdin, request.width, request.height
        )


async def _closed(connection: Connection) -> None:
    """Until the other side has closed; whatever else it says is of no interest."""
    async for _ in connection:
        pass


async def _feed(connection: Connection, session: ExecSession) -> None:
    """Standard input and control. The next message is read once this one has been taken: that is the backpressure."""
    async for message in connection:
        if message.type is aiohttp.WSMsgType.BINARY:
            await session.write(message.data)
        elif message.type is aiohttp.WSMsgType.TEXT:
            match _control(message.data):
                case Resize(width=width, height=height):
                    await session.resize(width, height)
                case StdinEnd():
                    await session.close_stdin()


def _control(text: str) -> _Control | None:
    try:
        return _CONTROL.validate_json(text)
    except ValidationError:
        log.warning("stream_message_unknown message=%.100r", text)
        return None


async def _drain(connection: Connection, session: ExecSession) -> None:
    """All output, then the code."""
    async for which, data in session.output():
        await connection.send_bytes(bytes((which,)) + data)
    code = await session.wait()
    await connection.send_str(ExecExit(code=code).model_dump_json())
