"""
One exec over one WebSocket, in the frames that `astra_agent.wire.ExecRequest` describes; whichever side has dialled.
"""

from __future__ import annotations

import logging
from typing import Protocol

import aiohttp
from pydantic import TypeAdapter, ValidationError

from astra_agent.dial import first_of
from astra_agent.runtime import ExecSession
from astra_agent.wire import ExecExit, Resize, StdinEnd

log = logging.getLogger(__name__)

EXIT_NOT_RUN = 126

_Control = Resize | StdinEnd
_CONTROL: TypeAdapter[_Control] = TypeAdapter(_Control)


class Messages(Protocol):
    """A WebSocket, of a client or of a server."""

    def __aiter__(self) -> Messages: ...

    async def __anext__(self) -> aiohttp.WSMessage: ...

    async def send_bytes(self, data: bytes) -> None: ...

    async def send_str(self, data: str) -> None: ...


async def serve_exec(connection: Messages, session: ExecSession) -> None:
    """Until the program has ended and all it said is sent, or the other side has gone; then nothing of it is left."""
    try:
        await first_of(_feed(connection, session), _drain(connection, session))
    finally:
        await session.close()


async def say_not_run(connection: Messages, sentence: str) -> None:
    await connection.send_str(ExecExit(code=EXIT_NOT_RUN, error=sentence).model_dump_json())


async def _feed(connection: Messages, session: ExecSession) -> None:
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


async def _drain(connection: Messages, session: ExecSession) -> None:
    """All output, then the code."""
    async for which, data in session.output():
        await connection.send_bytes(bytes((which,)) + data)
    code = await session.wait()
    await connection.send_str(ExecExit(code=code).model_dump_json())
