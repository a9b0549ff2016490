"""
Programs beside a task's own: `nomad alloc exec`, script checks, and what a template runs when it changes. From Nomad's
messages to the agent's frames and back.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

from pydantic import ValidationError

from astra_agent.errors import DeadlineExceeded, HostFault, InvalidRequest, Unavailable
from astra_agent.wire import ExecExit, ExecRequest, Resize, StdinEnd
from astra_driver.agent_client import AgentClient
from astra_driver.names import TaskId
from astra_driver.proto import driver_pb2
from astra_driver.proto.driver_pb2 import ExecTaskStreamingIOOperation as Operation
from astra_driver.proto.driver_pb2 import ExecTaskStreamingRequest, ExecTaskStreamingResponse, ExitResult
from astra_driver.unix_http import WebSocket

_OUTPUT_BYTES = 1024**2
"""Of each stream of a script's output; Nomad shows some 100 KB of it."""
_STDOUT = 1


async def run(client: AgentClient, request: driver_pb2.ExecTaskRequest) -> driver_pb2.ExecTaskResponse:
    """Raises: DeadlineExceeded past the request's own time, and nothing of the program is left."""
    timeout_s = request.timeout.ToTimedelta().total_seconds() or None
    asked = ExecRequest(slot=TaskId.parse(request.task_id).slot, command=tuple(request.command))
    output = {1: bytearray(), 2: bytearray()}
    try:
        async with asyncio.timeout(timeout_s), client.exec(asked) as connection:
            async for piece in _answers(connection):
                if isinstance(piece, ExecExit):
                    if piece.error:
                        raise HostFault(piece.error)
                    return driver_pb2.ExecTaskResponse(
                        stdout=bytes(output[1]), stderr=bytes(output[2]), result=ExitResult(exit_code=piece.code)
                    )
                kept = output[piece.stream]
                kept += piece.data[: _OUTPUT_BYTES - len(kept)]
    except TimeoutError as error:
        raise DeadlineExceeded(f"{request.command[0]} did not end within {timeout_s:g} s") from error
    raise Unavailable("the agent has ended; so has the program")


async def stream(
    client: AgentClient, requests: AsyncIterator[ExecTaskStreamingRequest]
) -> AsyncIterator[ExecTaskStreamingResponse]:
    """The first request has the setup. The last answer has the exit code."""
    setup = (await anext(requests)).setup
    if not setup.command:
        raise InvalidRequest("there is no command to run", "command")
    asked = ExecRequest(slot=TaskId.parse(setup.task_id).slot, command=tuple(setup.command), tty=setup.tty, stdin=True)
    async with client.exec(asked) as connection:
        # A program that can't be run is an end like any other: of a failed stream Nomad does not show the text.
        feeding = asyncio.create_task(_feed(requests, connection))
        try:
            async for piece in _answers(connection):
                if isinstance(piece, ExecExit):
                    if piece.error:
                        yield ExecTaskStreamingResponse(stderr=Operation(data=f"{piece.error}\n".encode()))
                    yield ExecTaskStreamingResponse(exited=True, result=ExitResult(exit_code=piece.code))
                    return
                yield _response(piece)
        finally:
            feeding.cancel()
            await asyncio.gather(feeding, return_exceptions=True)
    raise Unavailable("the agent has ended; so has the program")


@dataclass(frozen=True, slots=True)
class _Piece:
    stream: int
    data: bytes


async def _answers(connection: WebSocket) -> AsyncIterator[_Piece | ExecExit]:
    async for message in connection:
        if isinstance(message, bytes):
            yield _Piece(message[0], message[1:])
        else:
            try:
                ended = ExecExit.model_validate_json(message)
            except ValidationError as error:
                raise Unavailable(f"the agent says what is not known here: {message[:100]}") from error
            yield ended


async def _feed(requests: AsyncIterator[ExecTaskStreamingRequest], connection: WebSocket) -> None:
    """One request may hold several things; an empty one is a heartbeat."""
    async for request in requests:
        size = request.tty_size
        if request.HasField("tty_size") and size.width > 0 and size.height > 0:
            await connection.send(Resize(width=size.width, height=size.height).model_dump_json())
        if request.stdin.data:
            await connection.send(request.stdin.data)
        if request.stdin.close:
            await connection.send(StdinEnd().model_dump_json())


def _response(piece: _Piece) -> ExecTaskStreamingResponse:
    operation = Operation(data=piece.data)
    if piece.stream == _STDOUT:
        return ExecTaskStreamingResponse(stdout=operation)
    return ExecTaskStreamingResponse(stderr=operation)
