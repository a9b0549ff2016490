"""
The agent's unix socket, the door of the machine's engine and of the driver: HTTP with JSON. A handler decodes, calls
the agent, encodes; errors leave as one sentence each.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import stat
from collections.abc import AsyncIterator, Awaitable, Callable
from importlib.metadata import version
from pathlib import Path
from typing import TypeVar

import aiohttp
from aiohttp import web
from pydantic import TypeAdapter, ValidationError

from astra_agent.agent import Agent
from astra_agent.errors import AstraError, InvalidRequest, handling
from astra_agent.exec_frames import say_not_run, serve_exec
from astra_agent.records import Ending
from astra_agent.wire import (
    PROTOCOL,
    AgentHealth,
    ExecRequest,
    SignalRequest,
    SlotEnding,
    SlotId,
    SlotRequest,
    StopRequest,
    Wire,
)

log = logging.getLogger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_WAIT_DEFAULT_S = 30.0
_WAIT_MAX_S = 600.0
_SHUTDOWN_S = 1.0
_FIRST_MESSAGE_S = 10.0
_MESSAGE_BYTES = 4 * 1024**2
_BACKLOG = 1024
"""Nomad's plugins connect for each request, and the kernel refuses at once whoever finds the queue full."""
_WATCH_SILENCE_S = 5.0
"""How often one who watches hears that the agent is there."""
M = TypeVar("M", bound=Wire)
_SLOT_ID: TypeAdapter[str] = TypeAdapter(SlotId)


class LocalApi:
    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    @contextlib.asynccontextmanager
    async def serve(self, path: Path) -> AsyncIterator[None]:
        """
        Listen on *path* while the context is open. A socket that an earlier agent left is replaced.

        Raises: InvalidRequest when something else is there.
        """
        _make_room(path)
        runner = web.AppRunner(self.application(), access_log=None, shutdown_timeout=_SHUTDOWN_S)
        await runner.setup()
        try:
            await web.UnixSite(runner, str(path), backlog=_BACKLOG).start()
            path.chmod(0o660)
            yield
        finally:
            await runner.cleanup()
            path.unlink(missing_ok=True)

    def application(self) -> web.Application:
        application = web.Application(middlewares=[_errors_as_sentences])
        application.add_routes(
            [
                web.get("/v1/health", self._health),
                web.get("/v1/facts", self._facts),
                web.get("/v1/metrics", self._metrics),
                web.get("/v1/slots", self._slots),
                web.put("/v1/slots/{slot}", self._put),
                web.get("/v1/slots/{slot}", self._slot),
                web.get("/v1/slots/{slot}/wait", self._wait),
                web.delete("/v1/slots/{slot}", self._delete),
                web.post("/v1/slots/{slot}/stop", self._stop),
                web.post("/v1/slots/{slot}/signal", self._signal),
                web.get("/v1/slots/{slot}/usage", self._usage),
                web.get("/v1/slots/{slot}/exec", self._exec),
                web.get("/v1/watch", self._watch),
            ]
        )
        return application

    async def _health(self, _: web.Request) -> web.Response:
        try:
            runtime = await self._agent.containers.probe()
        except AstraError as error:
            document: dict[str, object] = {"runtime": None, "findings": [str(error), *self._agent.names.findings()]}
        else:
            findings = [*runtime.findings, *self._agent.names.findings()]
            document = {"runtime": dataclasses.asdict(runtime), "findings": findings}
        about = {"version": version("astraeus"), "protocol": PROTOCOL, "boot": self._agent.boot}
        return _json(AgentHealth.model_validate(about | document).model_dump_json())

    async def _facts(self, _: web.Request) -> web.Response:
        return _json(self._agent.facts().model_dump_json())

    async def _metrics(self, _: web.Request) -> web.Response:
        text = await self._agent.names.metrics()
        return web.Response(text=text, headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})

    async def _slots(self, _: web.Request) -> web.Response:
        return web.json_response({"items": [status.model_dump(mode="json") for status in self._agent.slots()]})

    async def _slot(self, request: web.Request) -> web.Response:
        return _json(self._agent.slot(_slot_id(request)).status().model_dump_json())

    async def _put(self, request: web.Request) -> web.Response:
        wanted = _model(SlotRequest, await request.read())
        if wanted.slot != _slot_id(request):
            raise InvalidRequest(f"slot is {wanted.slot!r}; expected {_slot_id(request)!r} as in the path", "slot")
        status, is_new = self._agent.put_slot(wanted)
        return _json(status.model_dump_json(), 201 if is_new else 200)

    async def _wait(self, request: web.Request) -> web.Response:
        timeout_s = _number(request, "timeout_s", _WAIT_DEFAULT_S)
        stone = await self._agent.wait(_slot_id(request), min(timeout_s, _WAIT_MAX_S))
        if stone is None:
            return web.Response(status=204)
        return _json(SlotEnding(code=stone.code, reason=stone.reason, oom=stone.oom).model_dump_json())

    async def _delete(self, request: web.Request) -> web.Response:
        ending = Ending(code=int(_number(request, "code", 0)), reason=request.query.get("reason", ""))
        self._agent.finish(_slot_id(request), ending, request.query.get("incarnation"))
        return web.json_response({}, status=202)

    async def _stop(self, request: web.Request) -> web.Response:
        self._agent.stop(_slot_id(request), _model(StopRequest, await request.read()))
        return web.json_response({}, status=202)

    async def _signal(self, request: web.Request) -> web.Response:
        await self._agent.signal(_slot_id(request), _model(SignalRequest, await request.read()))
        return web.json_response({})

    async def _usage(self, request: web.Request) -> web.Response:
        return _json((await self._agent.usage(_slot_id(request))).model_dump_json())

    async def _exec(self, request: web.Request) -> web.WebSocketResponse:
        """The first message is the `ExecRequest`; then it goes on in the frames that it describes."""
        slot = _slot_id(request)
        connection = web.WebSocketResponse(max_msg_size=_MESSAGE_BYTES)
        await connection.prepare(request)
        try:
            asked = _model(ExecRequest, (await connection.receive_str(timeout=_FIRST_MESSAGE_S)).encode())
            if asked.slot != slot:
                raise InvalidRequest(f"slot is {asked.slot!r}; expected {slot!r} as in the path", "slot")
            session = await self._agent.exec(asked)
        except AstraError as error:
            await say_not_run(connection, str(error))
        except (TypeError, TimeoutError, aiohttp.ClientError):
            await say_not_run(connection, "the first message must be the request")
        else:
            await serve_exec(connection, session)
        await connection.close()
        return connection

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        """A line for each slot as it is and an empty one; then each change, and an empty line where there is none."""
        response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
        await response.prepare(request)
        with self._agent.watch() as watch:
            while True:
                lines = [f"{status.model_dump_json()}\n" for status in watch.take()]
                await response.write("".join([*lines, "\n"]).encode())
                await watch.wait(_WATCH_SILENCE_S)


def _make_room(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise InvalidRequest(f"socket {path} is there and is no socket; remove it or choose another path", "socket")
        path.unlink()


def _slot_id(request: web.Request) -> str:
    """It becomes the name of files: nothing but a slot's ID may pass."""
    slot = request.match_info["slot"]
    try:
        return _SLOT_ID.validate_python(slot)
    except ValidationError as error:
        raise InvalidRequest(f"slot is {slot!r}; expected lower-case letters, digits and dashes", "slot") from error


def _model(model: type[M], body: bytes) -> M:
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise InvalidRequest(f"{where or 'the body'}: {first['msg']}", where or None) from error


def _number(request: web.Request, name: str, default: float) -> float:
    text = request.query.get(name)
    try:
        return default if text is None else float(text)
    except ValueError as error:
        raise InvalidRequest(f"{name} is {text!r}; expected a number", name) from error


def _json(text: str, status: int = 200) -> web.Response:
    return web.Response(text=text, status=status, content_type="application/json")


@web.middleware
async def _errors_as_sentences(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except AstraError as error:
        status, code, message = handling(error).http, type(error).__name__, str(error)
        field = error.field if isinstance(error, InvalidRequest) else None
    except web.HTTPException as error:
        status, code, message, field = (
            error.status,
            "InvalidRequest",
            f"{request.method} {request.path}: {error.reason}",
            None,
        )
    return web.json_response({"error": {"message": message, "field": field, "code": code}}, status=status)
