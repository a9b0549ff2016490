"""What the machines' clients do: drivers hand slots to agents, wait for their ends, and stop them when told to."""

from __future__ import annotations

import asyncio
from typing import Any

from astra_agent.errors import AstraError, Conflict, InvalidRequest, Unavailable
from astra_agent.wire import Reservation, RunRef, SlotRequest
from astra_gang.engines.agent_socket import AgentSocket
from astra_gang.engines.nomad.answers import DRIVER
from tests.fakes.nomad.cluster import FakeAllocation, FakeNode, FakeNomad

DRIVER_WAITS_S = 0.5
"""For an agent that is away; then the start has failed."""
_LOOK_S = 0.005


class Clients:
    """Used inside `async with`: all machines' clients live there."""

    def __init__(self, nomad: FakeNomad) -> None:
        self._nomad = nomad
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._watching: asyncio.Task[None] | None = None
        self._doors: dict[str, AgentSocket] = {}

    async def __aenter__(self) -> Clients:
        self._watching = asyncio.ensure_future(self._watch())
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in [*self._tasks.values(), *([self._watching] if self._watching else [])]:
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        for door in self._doors.values():
            await door.close()

    async def _watch(self) -> None:
        while True:
            for allocation in list(self._nomad.allocations):
                if allocation.id not in self._tasks:
                    self._tasks[allocation.id] = asyncio.ensure_future(self._attend(allocation))
            await asyncio.sleep(_LOOK_S)

    async def _attend(self, allocation: FakeAllocation) -> None:
        nomad = self._nomad
        while not is_there(allocation.node):  # noqa: ASYNC110  # what is waited for makes no event
            await asyncio.sleep(_LOOK_S)
        if allocation.desired == "stop":
            nomad.update(allocation, client="complete", description="No tasks have started")
            return
        nomad.update(allocation, events=[("Received", "Task received by client")])
        request = slot_request(allocation)
        if request is None:
            nomad.update(allocation, client="running", events=[*allocation.events, ("Started", "Task started")])
            await self._until_stopped(allocation)
            nomad.update(allocation, client="complete")
            return
        why = await self._start(allocation, request)
        if why:
            events = [*allocation.events, ("Driver Failure", why), ("Not Restarting", "Policy allows no restarts")]
            nomad.update(allocation, client="failed", failed=True, description="Failed tasks", events=events)
            return
        nomad.update(allocation, client="running", events=[*allocation.events, ("Started", "Task started by client")])
        await self._live(allocation, request)

    async def _start(self, allocation: FakeAllocation, request: SlotRequest) -> str:
        """StartTask: empty once the agent has the slot, else why not."""
        door = self._door(allocation.node)
        why = ""
        try:
            async with asyncio.timeout(DRIVER_WAITS_S):
                while True:
                    try:
                        await door.put(request)
                        return ""
                    except Unavailable as error:
                        why = str(error)
                    await asyncio.sleep(_LOOK_S)
        except (Conflict, InvalidRequest) as error:
            return str(error)
        except TimeoutError:
            return why

    async def _live(self, allocation: FakeAllocation, request: SlotRequest) -> None:
        """WaitTask, and StopTask when the allocation is to stop; through an agent that is away, and a cut-off node."""
        door, agent = self._door(allocation.node), allocation.node.agent
        assert agent is not None
        while True:
            await asyncio.sleep(_LOOK_S)
            if not is_there(allocation.node):
                continue
            if allocation.client in ("unknown", "lost") and allocation.desired == "run":
                self._nomad.update(allocation, client="running")
            try:
                if allocation.desired == "stop":
                    await door.finish(request.slot, 143, "stopped by Nomad")
                if not await door.is_gone(request.slot):
                    continue
            except AstraError:
                continue
            code = agent.finished.get(request.slot, (0, ""))[0]
            ended = [*allocation.events, ("Terminated", f"Exit Code: {code}")]
            killed = allocation.desired == "stop"
            client = "complete" if code == 0 or killed else "failed"
            self._nomad.update(allocation, client=client, failed=client == "failed", events=ended)
            return

    async def _until_stopped(self, allocation: FakeAllocation) -> None:
        while allocation.desired == "run":  # noqa: ASYNC110  # what is waited for makes no event
            await asyncio.sleep(_LOOK_S)

    def _door(self, node: FakeNode) -> AgentSocket:
        assert node.agent is not None
        return self._doors.setdefault(node.name, AgentSocket(node.name, node.agent.path))


def is_there(node: FakeNode) -> bool:
    return node.status == "ready"


def slot_request(allocation: FakeAllocation) -> SlotRequest | None:
    """What the driver reads in the task's config, after the client has read it as a template; None for other tasks."""
    config: dict[str, Any] = allocation.task.get("Config") or {}
    if allocation.task.get("Driver") == DRIVER and "reservation" not in config:
        return _plain_request(allocation, config)
    if "reservation" not in config:
        return None
    text = str(config["reservation"])
    assert "${" not in text.replace("$${", ""), "Nomad's client would read this as a template"
    reservation = Reservation.model_validate_json(text.replace("$${", "${").replace("%%{", "%{"))
    return reservation.request(allocation.node.id)


def _plain_request(allocation: FakeAllocation, config: dict[str, Any]) -> SlotRequest:
    """A task of a user's own job, as the driver hands it on."""
    job, task = allocation.job.document, allocation.task["Name"]
    return SlotRequest(
        slot=f"{allocation.id}-{task}",
        engine_ref=f"{allocation.id}/{task}",
        incarnation="1",
        starts="when_told" if (job.get("Meta") or {}).get("astra_start") else "when_ready",
        run=RunRef(workspace=job["Namespace"], name=job["ID"], uid=job["ID"]),
        worker=task,
        image=config["image"],
    )
