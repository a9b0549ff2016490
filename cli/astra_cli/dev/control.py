"""
The supervisor's unix socket: one JSON object a line asks, one answers, `{"ok": …}` or `{"error": {"message", "code"}}`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from pydantic import TypeAdapter, ValidationError

from astra_agent import errors
from astra_agent.errors import AstraError, DeadlineExceeded, InvalidRequest, NotFound
from astra_cli.dev.plan import Layout
from astra_cli.dev.requests import Request

Json = dict[str, Any]
Handler = Callable[[Request], Awaitable[Json]]

ANSWER_S = 60.0
"""Killing a machine waits for its processes; everything else takes milliseconds."""

_REQUEST: TypeAdapter[Request] = TypeAdapter(Request)


async def serve(layout: Layout, handler: Handler) -> asyncio.Server:
    """Answer until the server is closed. Requests are handled one after the other."""
    turn = asyncio.Lock()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            line = await reader.readline()
            async with turn:
                answer = await _answer(line, handler)
            writer.write(json.dumps(answer).encode() + b"\n")
            await writer.drain()
        writer.close()

    layout.control.unlink(missing_ok=True)
    return await asyncio.start_unix_server(connected, layout.control)


async def _answer(line: bytes, handler: Handler) -> Json:
    try:
        return {"ok": await handler(_REQUEST.validate_json(line))}
    except ValidationError as error:
        return {"error": {"message": f"no such request: {error.errors()[0]['msg']}", "code": "InvalidRequest"}}
    except AstraError as error:
        return {"error": {"message": str(error), "code": type(error).__name__}}


async def ask(layout: Layout, request: Request) -> Json:
    """
    Raises: NotFound when no cluster runs; DeadlineExceeded; what the supervisor raised.
    """
    try:
        async with asyncio.timeout(ANSWER_S):
            reader, writer = await asyncio.open_unix_connection(layout.control)
            writer.write(request.model_dump_json().encode() + b"\n")
            line = await reader.readline()
            writer.close()
    except (FileNotFoundError, ConnectionError):
        raise NotFound(
            f"no dev cluster with its state in {layout.state} is running; start it with `astra dev`"
        ) from None
    except PermissionError:
        raise errors.Unauthorized(f"{layout.control} is root's; use sudo") from None
    except TimeoutError:
        raise DeadlineExceeded(f"the dev cluster's supervisor does not answer on {layout.control}") from None
    if not line:
        raise NotFound("the dev cluster was stopped meanwhile")
    answer = json.loads(line)
    if "error" in answer:
        cls = getattr(errors, answer["error"]["code"], AstraError)
        message = answer["error"]["message"]
        raise InvalidRequest(message) if cls is InvalidRequest else cls(message)
    document: Json = answer["ok"]
    return document
