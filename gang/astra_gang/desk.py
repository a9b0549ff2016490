"""What an engine that brings runs by itself asks of the coordinator: to take them in, and how they are."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace

from astra_agent.wire import SlotStatus
from astra_gang import plan
from astra_gang.clock import Clock
from astra_gang.core import Event, Policy, begin
from astra_gang.foyer import Foyer
from astra_gang.loop import Loop
from astra_gang.spec import parse, policy
from astra_gang.store import RunRecord


class Desk:
    """
    Args:
        settings: Bounds and budgets that no spec sets.
    """

    def __init__(self, *, clock: Clock, loop: Loop, settings: Policy) -> None:
        self._clock = clock
        self._loop = loop
        self._settings = settings

    @property
    def foyer(self) -> Foyer:
        return self._loop.foyer

    def on_change(self, called: Callable[[], None]) -> None:
        """When an adopted run has changed, or a slot that nobody has asked for."""
        self._loop.adopted_changes.append(called)
        self._loop.foyer.changes.append(called)

    def adopted(self) -> tuple[RunRecord, ...]:
        """Those that have not ended, in order of submission."""
        return tuple(run for run in self._loop.ledger.live() if run.state.adopted)

    def get(self, uid: str) -> RunRecord | None:
        return self._loop.ledger.get(uid)

    def channels(self) -> Collection[tuple[str, int]]:
        """NVLink domains and IMEX channels in them that runs have."""
        states = (run.state for run in self._loop.ledger.live())
        return {(state.channel_domain, state.channel) for state in states if state.channel_domain}

    async def adopt(self, workspace: str, document: object, workers: int, stop_grace_s: float | None) -> RunRecord:
        """
        Returns once the run is recorded.

        Raises:
            InvalidRequest: What the document asks for can't be; the sentence names the field.
            Conflict, Unavailable, DeadlineExceeded: As `Loop.submit`.
        """
        spec = parse(document)
        settings = self._settings if stop_grace_s is None else replace(self._settings, stop_grace_s=stop_grace_s)
        state = begin(
            workspace=workspace,
            name=spec.name,
            uid=secrets.token_hex(4),
            policy=policy(spec, settings),
            workers=plan.workers(spec, workers),
            now=self._clock.now(),
            adopted=True,
        )
        await self._loop.submit(RunRecord(spec, state))
        return self._loop.ledger.get(state.uid) or RunRecord(spec, state)

    async def post(self, uid: str, event: Event) -> None:
        await self._loop.post(uid, event)

    async def reports(self, statuses: Iterable[SlotStatus]) -> None:
        """What agents have said before anybody knew whose slots these are."""
        await self._loop.reports(statuses)

    async def stop(self, uid: str, by: str) -> None:
        await self._loop.stop(uid, by)
