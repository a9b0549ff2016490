"""
The HTTP API as awaitable calls. Answers are the coordinator's documents as they came; errors are `astra_agent.errors`.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Self, cast
from urllib.parse import quote

import aiohttp
from yarl import URL

from astra_agent import errors
from astra_agent.errors import AstraError, DeadlineExceeded, InvalidRequest, Unavailable
from astra_cli.context import Target

Json = dict[str, Any]

ANSWER_TIMEOUT_S = 30.0
"""For one answer. The coordinator answers from memory; half a minute is a coordinator that hangs."""

SILENCE_TIMEOUT_S = 3600.0
"""A stream (log, events) that says nothing for this long is opened again by whoever follows it."""

LINE_LIMIT = 1 << 20
"""Bytes of one line of the event stream."""

_CLASSES = {cls.__name__: cls for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, AstraError)}
_BY_STATUS = {row.http: cls for cls, row in reversed(errors.HANDLING.items())}


class Unreachable(Unavailable):
    """
    The coordinator itself is not there, as while it is started again; not an answer of its.

    Attributes:
        broke_off: It was there when this call began.
    """

    broke_off = False


class Client:
    """One coordinator, one workspace. Use as an async context manager."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        headers = {"Authorization": f"Bearer {self._target.token}"} if self._target.token else {}
        timeout = aiohttp.ClientTimeout(total=ANSWER_TIMEOUT_S, sock_connect=10)
        self._session = aiohttp.ClientSession(headers=headers, timeout=timeout, read_bufsize=LINE_LIMIT)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def health(self) -> Json:
        return await self._json("GET", f"{self._target.api}/v1/health")

    async def machines(self) -> Json:
        return await self._json("GET", f"{self._target.api}/v1/machines")

    async def machine(self, name: str) -> Json:
        return await self._json("GET", f"{self._target.api}/v1/machines/{quote(name, safe='')}")

    async def submit(self, spec: Json) -> Json:
        return await self._json("POST", self._jobs(), body=spec)

    async def place(self, spec: Json) -> Json:
        """Where a run would go now."""
        return await self._json("POST", f"{self._target.workspace_url}/placements", body=spec)

    async def jobs(self) -> Json:
        return await self._json("GET", self._jobs())

    async def job(self, name: str) -> Json:
        return await self._json("GET", self._jobs(name))

    async def stop(self, name: str) -> Json:
        return await self._json("POST", self._jobs(name, "stop"))

    async def events(self, name: str, after: int = 0) -> Json:
        return await self._json("GET", self._jobs(name, "events"), {"after": str(after)})

    async def ranks(self, name: str, attempt: int | None = None) -> Json:
        return await self._json("GET", self._jobs(name, "ranks"), _present(attempt=attempt))

    async def names(self) -> Json:
        return await self._json("GET", f"{self._target.workspace_url}/names")

    async def lookup(self, run: str, rank: int, name: str, rtype: str) -> Json:
        """What that worker would be answered."""
        query = {"rank": str(rank), "name": name, "type": rtype}
        return await self._json("GET", self._jobs(run, "lookup"), query)

    async def follow_events(self, name: str, after: int = 0) -> AsyncIterator[Json]:
        """Until the run has ended. Raises Unreachable when the stream breaks off: ask again from the last id."""
        query = {"after": str(after), "follow": "true"}
        async with self._stream(self._jobs(name, "events"), query) as response:
            while line := await response.content.readline():
                if line.strip():
                    yield _object(line, self._target)

    async def logs(
        self, name: str, rank: int, *, attempt: int | None = None, follow: bool = False, tail_bytes: int | None = None
    ) -> AsyncIterator[bytes]:
        """A worker's output as it was written. Raises Unreachable when the stream breaks off."""
        query = _present(rank=rank, attempt=attempt, follow="true" if follow else None, tail_bytes=tail_bytes)
        async with self._stream(self._jobs(name, "logs"), query) as response:
            async for piece in response.content.iter_any():
                yield piece

    @asynccontextmanager
    async def exec(
        self, name: str, rank: int, command: tuple[str, ...], *, tty: bool, stdin: bool, width: int, height: int
    ) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
        """The WebSocket of one exec; its frames are those of `wire.ExecRequest`."""
        pairs = [
            ("rank", str(rank)), ("tty", str(int(tty))), ("stdin", str(int(stdin))),
            ("width", str(width)), ("height", str(height)), *(("command", word) for word in command),
        ]  # fmt: skip
        url = self._jobs(name, "exec").with_query(pairs)
        try:
            # A refusal comes as an ordinary answer; the hand-shake hides its body, so it is asked for by plain GET.
            async with self._use().ws_connect(url, heartbeat=20, max_msg_size=0) as socket:
                yield socket
        except aiohttp.WSServerHandshakeError:
            await self._json_at(url)
            raise Unavailable(f"the coordinator at {self._target.api} does not speak to `exec`") from None
        except (aiohttp.ClientError, OSError) as error:
            raise self._unreachable(error) from error

    @asynccontextmanager
    async def probe(self, machine: str, slot: str = "") -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
        """The WebSocket of a machine's part in a probe, or of a slot's; messages are those of `wire.ProbeRequest`."""
        url = URL(f"{self._target.api}/v1/machines/{quote(machine, safe='')}/probe", encoded=True)
        if slot:
            url = url.update_query(slot=slot)
        try:
            async with self._use().ws_connect(url, heartbeat=20, max_msg_size=0) as socket:
                yield socket
        except aiohttp.WSServerHandshakeError:
            await self._json_at(url)
            raise Unavailable(f"the coordinator at {self._target.api} does not know probes") from None
        except (aiohttp.ClientError, OSError) as error:
            raise self._unreachable(error) from error

    def _jobs(self, name: str = "", what: str = "") -> URL:
        path = "/".join(quote(part, safe="") for part in ("jobs", name, what) if part)
        return URL(f"{self._target.workspace_url}/{path}", encoded=True)

    async def _json(
        self, method: str, url: URL | str, query: dict[str, str] | None = None, body: Json | None = None
    ) -> Json:
        target = URL(url).update_query(query or {})
        try:
            async with self._use().request(method, target, json=body) as response:
                return await self._answer(response)
        except TimeoutError as error:
            raise DeadlineExceeded(
                f"no answer from the coordinator at {self._target.api} within {ANSWER_TIMEOUT_S:g} s; "
                "what was asked for may have happened, look with `astra status`"
            ) from error
        except (aiohttp.ClientError, OSError) as error:
            raise self._unreachable(error) from error

    async def _json_at(self, url: URL) -> Json:
        return await self._json("GET", url)

    @asynccontextmanager
    async def _stream(self, url: URL, query: dict[str, str]) -> AsyncIterator[aiohttp.ClientResponse]:
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=SILENCE_TIMEOUT_S)
        answered = False
        try:
            async with self._use().get(url.with_query(query), timeout=timeout) as response:
                if response.status >= 400:
                    await self._answer(response)
                answered = True
                yield response
        except (aiohttp.ClientError, OSError, TimeoutError, asyncio.IncompleteReadError) as error:
            unreachable = self._unreachable(error)
            unreachable.broke_off = answered
            raise unreachable from error

    async def _answer(self, response: aiohttp.ClientResponse) -> Json:
        content = await response.read()
        if response.status < 400:
            return _object(content, self._target)
        raise error_of(response.status, content, self._target)

    def _unreachable(self, error: Exception) -> Unreachable:
        reason = getattr(error, "os_error", None) or error
        why = (
            os.strerror(number) if (number := getattr(reason, "errno", None)) else str(reason) or type(reason).__name__
        )
        return Unreachable(
            f"no coordinator answers at {self._target.api} (from {self._target.origin}): {why}; "
            "start one on this machine with `astra dev`, or name another with --api or ASTRA_API"
        )

    def _use(self) -> aiohttp.ClientSession:
        if self._session is None:
            raise RuntimeError("the client is used outside its context")
        return self._session


def error_of(status: int, content: bytes, target: Target) -> AstraError:
    """The error that an answer of 4xx or 5xx stands for: by its class name, else by its status."""
    try:
        error = json.loads(content)["error"]
        message, field, code = str(error["message"]), error.get("field"), str(error.get("code", ""))
    except (ValueError, KeyError, TypeError, AttributeError):
        return Unreachable(f"what answers at {target.api} (from {target.origin}) is no coordinator: HTTP {status}")
    cls = _CLASSES.get(code) or _BY_STATUS.get(status, AstraError)
    return InvalidRequest(message, field) if issubclass(cls, InvalidRequest) else cls(message)


def _object(content: bytes, target: Target) -> Json:
    try:
        document = json.loads(content)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise Unreachable(f"what answers at {target.api} (from {target.origin}) is no coordinator: not a JSON object")
    return cast(Json, document)


def _present(**values: str | int | None) -> dict[str, str]:
    return {name: str(value) for name, value in values.items() if value is not None}
