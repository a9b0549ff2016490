"""
The HTTP API: decode, call, encode. What goes wrong is JSON with one sentence, whatever it is and wherever.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Collection
from dataclasses import asdict, replace
from importlib.metadata import version
from typing import Any

from aiohttp import hdrs, web

from astra_agent.errors import AstraError, InvalidRequest, NotFound, Unavailable, handling
from astra_gang import draining, metrics, view
from astra_gang.clock import Clock
from astra_gang.core import Phase, earned_back
from astra_gang.engine import Engine, Machine
from astra_gang.follow import Follow, worker_of
from astra_gang.intake import Intake
from astra_gang.link import Links
from astra_gang.loop import Loop
from astra_gang.naming import Naming
from astra_gang.probing import Probing
from astra_gang.query import Query
from astra_gang.store import RunRecord
from astra_gang.streams import Streams
from astra_gang.tokens import Token

_log = logging.getLogger(__name__)

BODY_MAX = 4 * 2**20
_WORKSPACE = "/v1/workspaces/{workspace}"
_JOBS = f"{_WORKSPACE}/jobs"
_JOB = f"{_JOBS}/{{name}}"
_NAMES = f"{_WORKSPACE}/names"
_WITHOUT_TOKEN = ("/v1/health", "/v1/agents/")
"""Agents have a token of their own, which their handlers check."""
_ENGINE_S = 5.0
"""For the engine to say which machines there are, where half of the answer is better than none in time."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Api:
    """
    Args:
        workspaces: Their names.
        machines: Names of the machines that the configuration has.
        term: Of this coordinator, for its health.
    """

    def __init__(
        self,
        *,
        clock: Clock,
        engine: Engine,
        loop: Loop,
        intake: Intake,
        follow: Follow,
        naming: Naming,
        probing: Probing,
        workspaces: Collection[str],
        machines: Collection[str],
        term: int,
    ) -> None:
        self._clock = clock
        self._engine = engine
        self._loop = loop
        self._intake = intake
        self._follow = follow
        self._naming = naming
        self._probing = probing
        self._workspaces = workspaces
        self._machines = machines
        self._term = term

    def application(self, links: Links, streams: Streams, token: Token) -> web.Application:
        app = web.Application(middlewares=[_errors, _authorize(token)], client_max_size=BODY_MAX)
        for path, handler in (
            ("/health", self._health),
            ("/machines", self._get_machines),
            ("/machines/{name}", self._get_machine),
        ):  # machines are no workspace's, and are found beside its jobs all the same
            app.router.add_get(f"/v1{path}", handler)
            app.router.add_get(f"{_WORKSPACE}{path}", self._in_workspace(handler))
        app.router.add_get("/v1/metrics", self._metrics)
        app.router.add_get("/v1/machines/{machine}/probe", self._probing.take_part)
        app.router.add_post(f"{_WORKSPACE}/placements", self._place, expect_handler=_expect)
        app.router.add_post(_JOBS, self._submit, expect_handler=_expect)
        app.router.add_get(_JOBS, self._list)
        app.router.add_get(_JOB, self._get)
        app.router.add_post(f"{_JOB}/stop", self._stop)
        app.router.add_get(f"{_JOB}/events", self._events)
        app.router.add_get(f"{_JOB}/ranks", self._ranks)
        app.router.add_get(f"{_JOB}/logs", self._logs)
        app.router.add_get(f"{_JOB}/exec", self._exec)
        app.router.add_get(f"{_JOB}/lookup", self._lookup)
        app.router.add_get(_NAMES, self._names)
        app.router.add_get("/v1/agents/link", links.handle)
        app.router.add_get("/v1/agents/streams/{stream}", streams.handle)
        return app

    async def _health(self, request: web.Request) -> web.Response:
        trouble = self._loop.trouble
        body = {"status": trouble or "ok", "version": version("astraeus"), "term": self._term}
        return web.json_response(body, status=200 if trouble is None else 503)

    async def _metrics(self, request: web.Request) -> web.Response:
        Query(request, ())
        runs = (run.state for run in self._loop.ledger.all())
        told = metrics.text(
            runs,
            await self._machines_in_time(),
            workspaces=self._workspaces,
            term=self._term,
            ok=self._loop.trouble is None,
        )
        return web.Response(text=told, headers={hdrs.CONTENT_TYPE: metrics.CONTENT_TYPE})

    async def _machines_in_time(self) -> tuple[Machine, ...] | None:
        """None where the engine does not say: whoever looks wants the rest then more than ever."""
        try:
            async with asyncio.timeout(_ENGINE_S):
                return await self._engine.machines()
        except (Unavailable, TimeoutError):
            return None

    async def _get_machines(self, request: web.Request) -> web.Response:
        Query(request, ())
        found = await self._engine.machines()
        return web.json_response(view.machines(found, self._machines, self._loop.watch.silent_s))

    async def _get_machine(self, request: web.Request) -> web.Response:
        """With what a drain would cost, and its inventory, which its agent is asked for; null while that is away."""
        Query(request, ())
        name = request.match_info["name"]
        seen = await self._engine.machines()
        items = view.machines(seen, self._machines, self._loop.watch.silent_s)["items"]
        found = next((item for item in items if item["name"] == name), None)
        if found is None:
            there = ", ".join(item["name"] for item in items) or "none"
            raise NotFound(f"there is no machine {name[:64]}: there are {there}")
        runs = ((run.state, run.spec) for run in self._loop.ledger.live())
        drain = draining.costs(runs, seen, name, self._clock.now())
        inventory = await self._follow.inventory(name) if found["connected"] else None
        return web.json_response({**found, "drain": [asdict(cost) for cost in drain], "inventory": inventory})

    async def _submit(self, request: web.Request) -> web.Response:
        Query(request, ())
        run = await self._intake.submit(self._workspace(request), await _json_body(request))
        return web.json_response(self._job(run), status=201)

    async def _place(self, request: web.Request) -> web.Response:
        """Where a run would go now; nothing is held by it."""
        Query(request, ())
        self._workspace(request)
        return web.json_response(await self._probing.place(await _json_body(request)))

    async def _list(self, request: web.Request) -> web.Response:
        """The newest run of each name, in order of submission."""
        Query(request, ())
        workspace = self._workspace(request)
        newest = {run.state.name: run for run in self._loop.ledger.all() if run.state.workspace == workspace}
        runs = sorted(newest.values(), key=lambda run: run.state.submitted_at)
        return web.json_response({"items": [self._job(run) for run in runs]})

    async def _get(self, request: web.Request) -> web.Response:
        run = self._run(request, Query(request, ("uid",)))
        return web.json_response(self._job(run))

    async def _stop(self, request: web.Request) -> web.Response:
        run = self._run(request, Query(request, ("uid",)))
        if run.state.phase is not Phase.ENDED:
            await self._loop.stop(run.state.uid, "the user")
        return web.json_response(self._job(self._loop.ledger.get(run.state.uid) or run), status=202)

    async def _events(self, request: web.Request) -> web.StreamResponse:
        query = Query(request, ("uid", "after", "follow"))
        run, after = self._run(request, query), query.number("after", 0) or 0
        if query.flag("follow"):
            return await self._follow.events(request, run.state.uid, after)
        items = await self._follow.known_events(run.state.uid, after)
        return web.json_response({"items": items})

    async def _ranks(self, request: web.Request) -> web.Response:
        query = Query(request, ("uid", "attempt"))
        return web.json_response(view.ranks(self._run(request, query), query.number("attempt"), self._clock.wall))

    async def _logs(self, request: web.Request) -> web.StreamResponse:
        query = Query(request, ("uid", "rank", "attempt", "follow", "tail_bytes"))
        return await self._follow.log(request, self._run(request, query), query)

    async def _exec(self, request: web.Request) -> web.StreamResponse:
        query = Query(request, ("uid", "rank", "tty", "stdin", "width", "height", "command"))
        return await self._follow.exec(request, self._run(request, query), query)

    async def _lookup(self, request: web.Request) -> web.Response:
        query = Query(request, ("uid", "rank", "name", "type"))
        run = self._run(request, query)
        return web.json_response(await self._naming.lookup(run, worker_of(run, query), query))

    async def _names(self, request: web.Request) -> web.Response:
        Query(request, ())
        return web.json_response(self._naming.told(self._workspace(request)))

    def _job(self, run: RunRecord) -> view.Json:
        if run.state.phase is not Phase.ENDED:
            run = replace(run, state=earned_back(run.state, self._clock.now()))
        return view.job(run, self._clock.wall, self._loop.watch.absences(run.state), self._loop.held_up(run.state))

    def _in_workspace(self, handler: Handler) -> Handler:
        async def checked(request: web.Request) -> web.StreamResponse:
            self._workspace(request)
            return await handler(request)

        return checked

    def _workspace(self, request: web.Request) -> str:
        workspace = request.match_info["workspace"]
        if workspace not in self._workspaces:
            there = ", ".join(sorted(self._workspaces))
            raise NotFound(f"there is no workspace {workspace[:64]}: there are {there}")
        return workspace

    def _run(self, request: web.Request, query: Query) -> RunRecord:
        return self._loop.ledger.find(self._workspace(request), request.match_info["name"], query.text("uid"))


async def _json_body(request: web.Request) -> object:
    """
    Raises:
        InvalidRequest: It is no JSON.
        web.HTTPRequestEntityTooLarge: It is larger than any run needs to be; it is not read to its end.
    """
    _check_length(request)
    body = await request.read()
    try:
        document: object = json.loads(body.decode("utf-8"), object_pairs_hook=_object, parse_constant=_no_constant)
        return document
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"the body is no UTF-8 (byte {error.start}): JSON is written in it") from error
    except json.JSONDecodeError as error:
        raise InvalidRequest(f"the body is no JSON: {error.msg} (line {error.lineno}, column {error.colno})") from error
    except RecursionError as error:
        raise InvalidRequest("the body is nested too deeply to be a run") from error
    except ValueError as error:
        raise InvalidRequest(f"the body can't be read: {error}") from error


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found: dict[str, object] = {}
    for name, value in pairs:
        if name in found:
            raise InvalidRequest(f"{name[:64]} is given twice in one object: keep one of them", name[:64])
        found[name] = value
    return found


def _no_constant(name: str) -> object:
    raise InvalidRequest(f"{name} is no number of JSON")


def _check_length(request: web.Request) -> None:
    if (request.content_length or 0) > BODY_MAX:
        raise web.HTTPRequestEntityTooLarge(BODY_MAX, request.content_length or 0)


async def _expect(request: web.Request) -> web.StreamResponse | None:
    """`Expect: 100-continue`: a body that is too large is refused before it is sent. None: go on."""
    if (request.content_length or 0) > BODY_MAX:
        return _too_large()
    await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    request.writer.output_size = 0
    return None


# Middleware ----------------------------------------------------------------------------------------------------------


def _authorize(token: Token) -> Any:
    @web.middleware
    async def authorize(request: web.Request, handler: Handler) -> web.StreamResponse:
        if not request.path.startswith(_WITHOUT_TOKEN):
            token.check(request.headers.get(hdrs.AUTHORIZATION))
        return await handler(request)

    return authorize


@web.middleware
async def _errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except AstraError as error:
        return _refusal(handling(error).http, type(error).__name__, str(error), getattr(error, "field", None))
    except web.HTTPRequestEntityTooLarge:
        return _too_large()
    except web.HTTPMethodNotAllowed as error:
        allowed = ", ".join(sorted(error.allowed_methods))
        return _refusal(405, "InvalidRequest", f"{request.method} does not go with {request.path}: {allowed} does")
    except web.HTTPNotFound:
        return _refusal(404, "NotFound", f"there is nothing at {request.path[:200]}")
    except web.HTTPException as error:
        return _refusal(error.status, "InvalidRequest", error.reason)
    except ConnectionError:
        raise  # the caller is gone
    except Exception:  # noqa: BLE001
        # The one place where a bug of ours meets a caller: it is logged whole, and told that it is ours.
        _log.exception("bug method=%s path=%s", request.method, request.path)
        return _refusal(500, "Bug", "the coordinator has a bug here; its log says more")


def _refusal(status: int, code: str, message: str, field: str | None = None) -> web.Response:
    return web.json_response({"error": {"message": message, "field": field, "code": code}}, status=status)


def _too_large() -> web.Response:
    sentence = f"the body is larger than {BODY_MAX} bytes: a run's document has a few thousand; put files on a drive"
    answer = _refusal(413, "InvalidRequest", sentence)
    answer.force_close()
    return answer
