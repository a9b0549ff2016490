"""
A coordinator of one purpose: it arms a slot's first attempt as soon as the slot is ready, and starts it as soon as it
is armed. So what is measured through the agent is the agent, with its link, and no scheduling.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Self

from aiohttp import WSMsgType, web
from pydantic import TypeAdapter

from astra_agent import wire

TERM = 1
LINK = "/v1/agents/link"

_TO_COORDINATOR: TypeAdapter[wire.ToCoordinator] = TypeAdapter(wire.ToCoordinator)


class Barrier:
    """
    Serves one agent's link on 127.0.0.1. Use as an async context manager.

    Attributes:
        connected: Set once an agent has said hello.
    """

    def __init__(self) -> None:
        self.connected = asyncio.Event()
        self._ended: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self._told: set[tuple[str, str]] = set()
        self._runner: web.AppRunner | None = None
        self.port = 0

    async def __aenter__(self) -> Self:
        application = web.Application()
        application.router.add_get(LINK, self._serve)
        self._runner = web.AppRunner(application, shutdown_timeout=1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.port = self._runner.addresses[0][1]
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def ended(self, slot: str) -> None:
        """Returns once the slot's attempt has ended."""
        await self._ended[slot].wait()

    async def _serve(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        async for message in socket:
            if message.type is WSMsgType.TEXT:
                for answer in self._answers(_TO_COORDINATOR.validate_json(message.data)):
                    await socket.send_str(answer.model_dump_json())
        return socket

    def _answers(self, message: wire.ToCoordinator) -> list[wire.ToAgent]:
        match message:
            case wire.Hello():
                self.connected.set()
                return [wire.Welcome(term=TERM, disconnect_limit_s=60.0)]
            case wire.Lease(n=n):
                return [wire.LeaseAck(n=n)]
            case wire.Report(seq=seq, status=status):
                return [*self._directives(status), wire.ReportAck(seq=seq)]
            case _:
                return []

    def _directives(self, status: wire.SlotStatus) -> list[wire.ToAgent]:
        if status.phase == "failed" or status.arm_failed is not None:
            raise RuntimeError(f"slot {status.slot} failed: {status.detail}")
        attempt = status.attempts[0] if status.attempts else None
        if attempt is not None and attempt.state == "exited":
            self._ended[status.slot].set()
        if attempt is None and status.phase == "ready":
            return self._once("arm", wire.Arm(slot=status.slot, term=TERM, attempt=0, env={}, hosts={}))
        if attempt is not None and attempt.state == "armed":
            return self._once("start", wire.Start(slot=status.slot, term=TERM, attempt=0))
        return []

    def _once(self, what: str, directive: wire.Directive) -> list[wire.ToAgent]:
        if (directive.slot, what) in self._told:
            return []
        self._told.add((directive.slot, what))
        return [wire.DirectiveMessage(directive=directive)]
