"""The fake's HTTP: routes, blocking queries, refusals as text, the event stream with its ways to fail."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from tests.fakes.nomad import recorded
from tests.fakes.nomad.cluster import FakeAllocation, FakeJob, FakeNode, FakeNomad, Key
from tests.fakes.nomad.variables import FakeVariables

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class NomadServer:
    """
    Attributes:
        stream: How the event stream behaves: `open`, `silent` (refused by 2.0), `refused` (by 1.6), `cut`, `words`.
        calls: Method and path of everything that was asked, in order.
        down: While set, no connection is answered.
        tokens: Those that are known, None: any; the others have expired, or were deleted: `token_end`.
    """

    def __init__(self, nomad: FakeNomad) -> None:
        self.nomad = nomad
        self.variables = FakeVariables(nomad)
        self.stream = "open"
        self.calls: list[str] = []
        self.down = False
        self.url = ""
        self.tokens: set[str] | None = None
        self.token_end = "expired"
        self._lost: dict[str, int] = {}

    def lose_answers_to(self, call: str, number: int) -> None:
        """The next ones of this method and path happen, and are not answered."""
        self._lost[call] = number

    def break_stream(self, how: str) -> None:
        """Streams that are open end, new ones behave like this."""
        self.stream = how
        self.nomad.bump("Node", "none")

    @asynccontextmanager
    async def serving(self, port: int = 0) -> AsyncIterator[str]:
        app = web.Application(middlewares=[self._gate], client_max_size=64 * 2**20)
        self._routes(app.router)
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", port)
        await site.start()
        bound = runner.addresses[0][1]
        self.url = f"http://127.0.0.1:{bound}"
        try:
            yield self.url
        finally:
            await runner.cleanup()

    def _routes(self, router: web.UrlDispatcher) -> None:
        router.add_get("/v1/agent/members", self._allowed("node:read", self._members))
        router.add_get("/v1/acl/token/self", self._token)
        router.add_get("/v1/nodes", self._allowed("node:read", self._nodes))
        router.add_get("/v1/allocations", self._allowed("read-job", self._all_allocations))
        router.add_get("/v1/jobs", self._allowed("list-jobs", self._jobs))
        router.add_post("/v1/jobs", self._allowed("submit-job", self._register))
        router.add_get("/v1/job/{job}", self._allowed("read-job", self._job))
        router.add_delete("/v1/job/{job}", self._allowed("submit-job", self._deregister))
        router.add_post("/v1/job/{job}/scale", self._allowed("submit-job", self._scale))
        router.add_get("/v1/job/{job}/evaluations", self._allowed("read-job", self._evaluations))
        router.add_get("/v1/job/{job}/allocations", self._allowed("read-job", self._allocations))
        router.add_get("/v1/event/stream", self._events)
        router.add_get("/v1/vars", self._allowed("variables", self.variables.list))
        router.add_get("/v1/var/{path:.+}", self._allowed("variables", self.variables.get))
        router.add_put("/v1/var/{path:.+}", self._allowed("variables", self.variables.put))
        router.add_delete("/v1/var/{path:.+}", self._allowed("variables", self.variables.delete))

    @web.middleware
    async def _gate(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        self.calls.append(f"{request.method} {request.path}")
        if self.down:
            assert request.transport is not None
            request.transport.close()
        if self.tokens is not None and request.headers.get("X-Nomad-Token") not in self.tokens:
            is_about_it = request.path == "/v1/acl/token/self"
            return self._refusal(f"acl-token-self-{self.token_end}" if is_about_it else "error-403-token-not-found")
        if self.nomad.broken:
            status, text = self.nomad.broken.pop(0)
            return web.Response(status=status, text=text)
        answer = await handler(request)
        call = f"{request.method} {request.path}"
        if self._lost.get(call, 0):
            self._lost[call] -= 1
            assert request.transport is not None
            request.transport.close()
        return answer

    def _allowed(self, capability: str, handler: Handler) -> Handler:
        async def checked(request: web.Request) -> web.StreamResponse:
            if capability in self.nomad.forbidden:
                status, text = recorded.refusal(self.nomad.version, "error-403-nodes")
                return web.Response(status=status, text=text)
            return await handler(request)

        return checked

    # The cluster -----------------------------------------------------------------------------------------------------

    async def _members(self, request: web.Request) -> web.Response:
        return self._json(recorded.body(self.nomad.version, "agent-members"))

    async def _token(self, request: web.Request) -> web.Response:
        return self._json(recorded.body(self.nomad.version, "acl-token-self"))

    async def _nodes(self, request: web.Request) -> web.Response:
        template = recorded.body(self.nomad.version, "nodes-resources")[0]
        return self._json([_node(template, node) for node in self.nomad.nodes.values()])

    async def _all_allocations(self, request: web.Request) -> web.Response:
        return self._json([self._allocation(a, resources=True) for a in self.nomad.allocations if not a.over])

    # Jobs ------------------------------------------------------------------------------------------------------------

    async def _jobs(self, request: web.Request) -> web.Response:
        template = recorded.body(self.nomad.version, "jobs-prefix")[0]
        return self._json([
            template
            | {
                "ID": key[1], "Namespace": key[0], "Name": key[1], "Meta": job.document.get("Meta"),
                "Stop": job.stopped, "Status": self.nomad.status(job), "JobModifyIndex": job.modify_index,
            }
            for key, job in self.nomad.jobs.items()
        ])  # fmt: skip

    async def _register(self, request: web.Request) -> web.Response:
        asked = await request.json()
        document = asked["Job"]
        key = (document.get("Namespace") or "default", document["ID"])
        known = self.nomad.jobs.get(key)
        if " " in document["ID"]:
            return self._refusal("job-register-invalid")
        if asked.get("EnforceIndex"):
            index = asked.get("JobModifyIndex", 0)
            if known is not None and index == 0:
                return self._refusal("job-register-conflict")
            if (known.modify_index if known else 0) != index:
                return self._refusal("job-register-conflict-index")
        job, evaluation = self.nomad.register(document)
        return self._registered("job-register", job, evaluation)

    async def _deregister(self, request: web.Request) -> web.Response:
        assert request.query.get("purge", "false").lower() == "false", "a purged job can't be watched any more"
        key = self._key(request)
        evaluation = self.nomad.deregister(key)
        if evaluation is None:
            return self._json(recorded.body(self.nomad.version, "job-deregister-unknown"))
        return self._registered("job-deregister", self.nomad.jobs[key], evaluation)

    async def _scale(self, request: web.Request) -> web.Response:
        key = self._key(request)
        if key not in self.nomad.jobs:
            return self._refusal("job-404")
        evaluation = self.nomad.scale(key, (await request.json())["Count"])
        return self._registered("job-scale", self.nomad.jobs[key], evaluation)

    async def _job(self, request: web.Request) -> web.Response:
        job = self.nomad.jobs.get(self._key(request))
        if job is None:
            return self._refusal("job-404")
        return self._json(
            job.document
            | {
                "Version": job.version, "JobModifyIndex": job.modify_index, "ModifyIndex": self.nomad.index,
                "Stop": job.stopped, "Status": self.nomad.status(job), "CreateIndex": job.create_index,
            }
        )  # fmt: skip

    async def _evaluations(self, request: web.Request) -> web.Response:
        key = self._key(request)
        await self._block(request)
        return self._json([e for e in self.nomad.evaluations.values() if (e["Namespace"], e["JobID"]) == key])

    async def _allocations(self, request: web.Request) -> web.Response:
        await self._block(request)
        return self._json([self._allocation(a) for a in self.nomad.of(self._key(request))])

    def _allocation(self, a: FakeAllocation, *, resources: bool = False) -> dict[str, Any]:
        job = a.job.document
        task = a.task
        event = recorded.body(self.nomad.version, "job-allocations")[0]["TaskStates"]["worker"]["Events"][0]
        state = "dead" if a.over else "running" if a.client == "running" else "pending"
        stub: dict[str, Any] = recorded.body(self.nomad.version, "job-allocations")[0] | {
            "ID": a.id, "JobID": job["ID"], "Namespace": job["Namespace"], "NodeID": a.node.id,
            "NodeName": a.node.name, "Name": f"{job['ID']}.{a.group}[{a.number}]", "EvalID": a.evaluation,
            "TaskGroup": a.group, "JobVersion": a.job.version, "DesiredStatus": a.desired,
            "ClientStatus": a.client, "ClientDescription": a.description, "CreateIndex": a.create_index,
            "ModifyIndex": a.modify_index,
            "TaskStates": {
                task["Name"]: {
                    "State": state, "Failed": a.failed, "Restarts": 0,
                    "Events": [event | {"Type": kind, "DisplayMessage": message} for kind, message in a.events],
                }
            },
        }  # fmt: skip
        if resources:
            asked = task["Resources"]
            stub["AllocatedResources"] = {
                "Tasks": {
                    task["Name"]: {
                        "Cpu": {"CpuShares": asked["CPU"], "ReservedCores": None},
                        "Memory": {"MemoryMB": asked["MemoryMB"], "MemoryMaxMB": 0},
                        "Devices": [{"Vendor": "nvidia", "Type": "gpu", "Name": "H200", "DeviceIDs": list(a.gpus)}],
                        "Networks": None,
                    }
                }
            }
        return stub

    # The event stream ------------------------------------------------------------------------------------------------

    async def _events(self, request: web.Request) -> web.StreamResponse:
        if self.stream == "refused":
            return self._refusal("event-stream-403")
        answer = web.StreamResponse(headers={"Content-Type": "application/json"})
        await answer.prepare(request)
        if self.stream == "silent":
            await asyncio.sleep(48)
            return answer
        await answer.write(b"{}\n")
        sent = len(self.nomad.events)
        while self.stream == "open":
            changed = self.nomad.changed
            for event in self.nomad.events[sent:]:
                await answer.write(json.dumps({"Index": event["Index"], "Events": [event]}).encode() + b"\n")
            sent = len(self.nomad.events)
            await changed.wait()
        end = recorded.body(self.nomad.version, "event-stream-end")[-1]
        await answer.write(end.encode() + (b"\n" if self.stream == "words" else b""))
        return answer

    # Answers ---------------------------------------------------------------------------------------------------------

    async def _block(self, request: web.Request) -> None:
        """A blocking query: until something has changed since its index, or its wait is over."""
        wanted = int(request.query.get("index", "0"))
        wait_s = float(request.query.get("wait", "300s").removesuffix("s"))
        try:
            async with asyncio.timeout(wait_s):
                while self.nomad.index <= wanted:
                    await self.nomad.changed.wait()
        except TimeoutError:
            pass

    def _json(self, body: Any) -> web.Response:
        return web.json_response(body, headers={"X-Nomad-Index": str(self.nomad.index)})

    def _refusal(self, name: str) -> web.Response:
        status, text = recorded.refusal(self.nomad.version, name)
        return web.Response(status=status, text=text)

    def _registered(self, name: str, job: FakeJob, evaluation: dict[str, Any]) -> web.Response:
        return self._json(
            recorded.body(self.nomad.version, name)
            | {"EvalID": evaluation["ID"], "JobModifyIndex": job.modify_index, "Index": self.nomad.index}
        )

    def _key(self, request: web.Request) -> Key:
        return request.query.get("namespace", "default"), request.match_info["job"]


def _node(template: dict[str, Any], node: FakeNode) -> dict[str, Any]:
    driver = template["Drivers"]["raw_exec"] | {
        "Healthy": node.driver_healthy, "Attributes": {"driver.astra": "1", "driver.astra.machine": node.name},
        "HealthDescription": "Healthy" if node.driver_healthy else "the agent does not answer",
    }  # fmt: skip
    resources = template["NodeResources"] | {
        "Cpu": {"CpuShares": node.cores * 1000, "TotalCpuCores": node.cores, "ReservableCpuCores": []},
        "Memory": {"MemoryMB": node.memory_mb},
    }
    if node.gpus:
        instances = [{"ID": gpu, "Healthy": True} for gpu in node.gpus]
        resources["Devices"] = [{"Vendor": "nvidia", "Type": "gpu", "Name": "H200", "Instances": instances}]
    return template | {
        "ID": node.id, "Name": node.name, "NodePool": node.pool, "Status": node.status, "Drain": node.draining,
        "SchedulingEligibility": "eligible" if node.eligible else "ineligible",
        "Drivers": {**template["Drivers"], "astra": driver}, "NodeResources": resources,
    }  # fmt: skip
