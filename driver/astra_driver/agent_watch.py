"""
How the agent is, for as long as the plugin lives: one task that asks it, follows the statuses of its slots, and tells
both to whoever has asked for them. An agent that is away is a state here, never an error.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

from astra_agent.errors import AstraError
from astra_agent.wire import AgentHealth, MachineFacts, SlotStatus
from astra_driver.agent_client import AgentClient, check_protocol

log = logging.getLogger(__name__)

_ASK_EVERY_S = 10.0
_AWAY_AGAIN_S = 1.0
_FIRST_S = 1.0
_UNNOTICED_S = 5.0
"""A restart of the agent takes less, and is nobody's business."""
_BACKLOG = 1000


@dataclass(frozen=True, slots=True)
class AgentState:
    """*trouble* is a sentence when nothing can be started here, else None; *facts* are the last that were heard."""

    trouble: str | None
    health: AgentHealth | None = None
    facts: MachineFacts | None = None


class AgentWatch:
    """
    Owns its task from `start` to `close`.

    Args:
        follows: Whether anybody will ask for `statuses`.
    """

    def __init__(self, client: AgentClient, *, follows: bool = True) -> None:
        self._follows = follows
        self.state = AgentState("the agent of this machine has not been asked yet")
        self._client = client
        self._task: asyncio.Task[None] | None = None
        self._news = asyncio.Condition()
        self._asked = asyncio.Event()
        self._ask_now = asyncio.Event()
        self._away_s: float | None = None
        self._listeners: set[asyncio.Queue[SlotStatus | None]] = set()

    def start(self) -> None:
        """Idempotent."""
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="agent watch")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def states(self, again_s: float | None = None) -> AsyncIterator[AgentState]:
        """
        The state now, after a short wait for the first answer of all; then each other one. For ever.

        Args:
            again_s: The same one again, when there was no other for this long.
        """
        told = await self.heard()
        while True:
            yield told
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(again_s), self._news:
                    while self.state == told:
                        await self._news.wait()
            told = self.state

    async def heard(self) -> AgentState:
        """The state now, after a short wait for the first answer of all."""
        self.start()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_FIRST_S):
                await self._asked.wait()
        return self.state

    @contextlib.contextmanager
    def statuses(self) -> Iterator[asyncio.Queue[SlotStatus | None]]:
        """Gets changes of slots, and None after each time that all have been told; beyond a bound the oldest go."""
        self.start()
        queue: asyncio.Queue[SlotStatus | None] = asyncio.Queue(_BACKLOG)
        self._listeners.add(queue)
        try:
            yield queue
        finally:
            self._listeners.discard(queue)

    # Inside -------------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._ask_for_ever())
            if self._follows:
                group.create_task(self._follow_for_ever())

    async def _ask_for_ever(self) -> None:
        while True:
            await self._set(await self._ask())
            pause_s = _AWAY_AGAIN_S if self.state.trouble or self._away_s is not None else _ASK_EVERY_S
            try:
                async with asyncio.timeout(pause_s):
                    await self._ask_now.wait()
            except TimeoutError:
                continue
            self._ask_now.clear()

    async def _ask(self) -> AgentState:
        try:
            health = await self._client.health()
            if sentence := check_protocol(health):
                return AgentState(sentence, health, self.state.facts)
            facts = await self._client.facts()
        except AstraError as error:
            now = time.monotonic()
            self._away_s = now if self._away_s is None else self._away_s
            if self.state.trouble is None and now - self._away_s < _UNNOTICED_S:
                return self.state
            return AgentState(str(error), self.state.health, self.state.facts)
        self._away_s = None
        if health.runtime is None:
            sentence = health.findings[0] if health.findings else "containerd does not answer"
            return AgentState(_steady(sentence), health, facts)
        return AgentState(_steady(facts.out_of_use), health, facts)

    async def _set(self, state: AgentState) -> None:
        self._asked.set()
        if state == self.state:
            return
        if state.trouble != self.state.trouble:
            log.log(logging.WARNING if state.trouble else logging.INFO, "agent_state trouble=%s", state.trouble)
        async with self._news:
            self.state = state
            self._news.notify_all()

    async def _follow_for_ever(self) -> None:
        while True:
            try:
                async for status in self._client.watch():
                    self._tell(status)
            except AstraError:
                self._ask_now.set()
            await asyncio.sleep(_AWAY_AGAIN_S)

    def _tell(self, status: SlotStatus | None) -> None:
        for queue in self._listeners:
            if queue.full():
                queue.get_nowait()
            queue.put_nowait(status)


def _steady(sentence: str | None) -> str | None:
    """Without how long it has been so: Nomad makes a node event of every other text."""
    return re.sub(r" since [\d.]+ s\b", "", sentence) if sentence else None
