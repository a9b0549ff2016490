"""
A coordinator's HTTP API as a script of answers, on 127.0.0.1 in a thread of its own: for whoever talks to one.

It can be taken away and brought back under the same address, as a coordinator that is started again.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

from aiohttp import WSMsgType, web

Json = dict[str, Any]
T = TypeVar("T")

TOKEN = "secret"


def job(name: str = "first-gang", phase: str = "Running", attempt: int = 0, **status: Any) -> Json:
    """A run of two workers."""
    state = phase if phase in ("Running", "Completed", "Failed") else "Preparing"
    workers = [
        {
            "rank": rank, "name": f"{name}-{rank}", "machine": f"m-{rank + 1}", "state": state, "detail": "",
            "address": f"10.83.{rank + 1}.1", "attempt": attempt, "code": None, "failures": 0,
        }
        for rank in range(2)
    ]  # fmt: skip
    return {
        "metadata": {"name": name, "workspace": "default", "uid": "u1", "submitted_at": "2026-01-02T03:04:05Z"},
        "spec": {"start": "Gang"},
        "status": {
            "phase": phase, "reason": "", "refused": False, "attempt": attempt, "ready": 2, "total": 2,
            "tier": "ethernet", "domain": "dev", "ended_at": None, "workers": workers, **status,
        },
    }  # fmt: skip


def event(number: int, sentence: str, level: str = "info") -> Json:
    return {
        "id": number,
        "at": "2026-01-02T03:04:06Z",
        "level": level,
        "sentence": sentence,
        "rank": None,
        "attempt": 0,
    }


@dataclass
class FakeApi:
    """
    Attributes:
        job: The run that every question is answered with; None: there is none.
        logs: By attempt; one that is not here never started.
            A followed log ends when it is complete, or is cut after *cut_after* bytes, once.
        execs: What each exec asked, and what it then got from standard input.
        inventory: Of the machine; None: it is not known.
        drain: What a drain of it would cost; None: the coordinator does not say.
    """

    job: Json | None = field(default_factory=job)
    refusal: tuple[int, Json] | None = None
    events: list[Json] = field(default_factory=list)
    logs: dict[int, bytes] = field(default_factory=dict)
    cut_after: int | None = None
    submitted: list[Json] = field(default_factory=list)
    stopped: list[str] = field(default_factory=list)
    execs: list[Json] = field(default_factory=list)
    exec_code: int = 0
    inventory: Json | None = None
    drain: list[Json] | None = None
    port: int = 0

    def __post_init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, name="fake-api")
        self.thread.start()
        self.runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        self._do(self._start())

    def stop(self) -> None:
        """Gone, with every connection."""
        if self.runner is not None:
            self._do(self.runner.cleanup())
            self.runner = None

    def close(self) -> None:
        self.stop()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(10)

    async def _start(self) -> None:
        app = web.Application(middlewares=[self._guard])
        jobs = "/v1/workspaces/default/jobs"
        app.add_routes([
            web.get("/v1/machines", self._machines),
            web.get("/v1/machines/{machine}", self._machine),
            web.post(jobs, self._submit),
            web.get(jobs, self._jobs),
            web.get(f"{jobs}/{{name}}", self._job),
            web.post(f"{jobs}/{{name}}/stop", self._stop),
            web.get(f"{jobs}/{{name}}/events", self._events),
            web.get(f"{jobs}/{{name}}/ranks", self._ranks),
            web.get(f"{jobs}/{{name}}/logs", self._logs),
            web.get(f"{jobs}/{{name}}/exec", self._exec),
            web.get(f"{jobs}/{{name}}/lookup", self._lookup),
            web.get("/v1/workspaces/default/names", self._names),
        ])  # fmt: skip
        self.runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self.runner.setup()
        site = web.TCPSite(self.runner, "127.0.0.1", self.port, reuse_address=True)
        await site.start()
        self.port = self.runner.addresses[0][1]

    @web.middleware
    async def _guard(self, request: web.Request, handler: Any) -> web.StreamResponse:
        if request.headers.get("Authorization") != f"Bearer {TOKEN}":
            return _error(401, "Unauthorized", "the token is wrong; use the one of the dev cluster")
        if self.refusal is not None:
            return web.json_response(self.refusal[1], status=self.refusal[0])
        if "name" in request.match_info and (
            self.job is None or self.job["metadata"]["name"] != request.match_info["name"]
        ):
            return _error(404, "NotFound", f"there is no run {request.match_info['name']}")
        response: web.StreamResponse = await handler(request)
        return response

    async def _names(self, _: web.Request) -> web.Response:
        addresses = {"first-gang-0": ["10.83.1.1"], "first-gang-1": ["10.83.2.1"]}
        run = {"run": "first-gang", "leader": "first-gang-0", "port": 29500, "attempt": 0, "world_size": 2}
        return web.json_response({"items": [{**run, "addresses": addresses}]})

    async def _lookup(self, request: web.Request) -> web.Response:
        """Nothing but `first-gang-1` has a record."""
        name, rtype = request.query["name"], request.query["type"]
        records = [{"name": f"{name}.", "type": rtype, "ttl_s": 1, "data": "10.83.2.1"}]
        return web.json_response({
            "as": f"first-gang-{request.query['rank']}", "machine": "m-1", "server": "169.254.53.53", "name": name,
            "type": rtype, "rcode": "NOERROR" if name == "first-gang-1" else "NXDOMAIN", "took_s": 0.0004,
            "records": records if name == "first-gang-1" else [],
        })  # fmt: skip

    async def _machines(self, _: web.Request) -> web.Response:
        return web.json_response({"items": [self._summary()]})

    async def _machine(self, _: web.Request) -> web.Response:
        told = {} if self.drain is None else {"drain": self.drain}
        return web.json_response({**self._summary(), **told, "inventory": self.inventory})

    def _summary(self) -> Json:
        return {
            "name": "m-1", "address": "10.83.1.1", "connected": True, "out_of_use": None, "cpu_cores": 2.0,
            "free_cpu_cores": 1.5, "memory_bytes": 8 << 30, "free_memory_bytes": 4 << 30, "gpus": 8, "free_gpus": 0,
            "domains": {"ethernet": "dev"}, "slots": ["s1"],
        }  # fmt: skip

    async def _submit(self, request: web.Request) -> web.Response:
        self.submitted.append(await request.json())
        return web.json_response(self.job, status=201)

    async def _jobs(self, _: web.Request) -> web.Response:
        return web.json_response({"items": [] if self.job is None else [self.job]})

    async def _job(self, _: web.Request) -> web.Response:
        return web.json_response(self.job)

    async def _stop(self, request: web.Request) -> web.Response:
        self.stopped.append(request.match_info["name"])
        return web.json_response(job(phase="Stopping"), status=202)

    async def _events(self, request: web.Request) -> web.StreamResponse:
        items = [item for item in self.events if item["id"] > int(request.query.get("after", "0"))]
        if request.query.get("follow") != "true":
            return web.json_response({"items": items})
        response = web.StreamResponse()
        await response.prepare(request)
        for item in items:
            await response.write(json.dumps(item).encode() + b"\n")
        return response

    async def _ranks(self, request: web.Request) -> web.Response:
        row = {
            "rank": 0, "name": "first-gang-0", "machine": "m-1", "address": "10.83.1.1", "slot": "s1",
            "started_at": "2026-01-02T03:04:05.250Z", "ended_at": None, "code": None, "detail": "",
        }  # fmt: skip
        attempt = int(request.query.get("attempt", "1"))
        return web.json_response({
            "attempt": attempt, "attempts": [0, 1], "items": [row],
            "opened_at": "2026-01-02T03:04:05Z", "ended_why": "",
        })  # fmt: skip

    async def _logs(self, request: web.Request) -> web.StreamResponse:
        attempt = int(request.query.get("attempt", max(self.logs, default=0)))
        if attempt not in self.logs and request.query.get("follow") != "true":
            return _error(404, "NotFound", "first-gang-0 never started: there is no log")
        data = self.logs.get(attempt, b"")
        response = web.StreamResponse()
        await response.prepare(request)
        if self.cut_after is not None:
            cut, self.cut_after = self.cut_after, None
            await response.write(data[:cut])
            assert request.transport is not None
            request.transport.abort()
            return response
        await response.write(data)
        return response

    async def _exec(self, request: web.Request) -> web.WebSocketResponse:
        asked = {name: request.query.getall(name) for name in request.query}
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        got, sizes = b"", []
        await socket.send_bytes(b"\x01out\n")
        await socket.send_bytes(b"\x02err\n")
        if asked["stdin"] == ["1"]:
            async for message in socket:
                if message.type is WSMsgType.BINARY:
                    got += message.data
                    await socket.send_bytes(b"\x01" + message.data)
                elif json.loads(message.data)["kind"] == "resize":
                    sizes.append(json.loads(message.data))
                if b"\x04" in got or (message.type is WSMsgType.TEXT and "stdin_end" in message.data):
                    break
        self.execs.append({"query": asked, "stdin": got, "sizes": sizes})
        await socket.send_str(json.dumps({"kind": "exec_exit", "code": self.exec_code, "error": ""}))
        await socket.close()
        return socket


def _error(status: int, code: str, message: str) -> web.Response:
    return web.json_response({"error": {"message": message, "field": None, "code": code}}, status=status)
