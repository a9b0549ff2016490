"""From a document that a user submits to a run that is recorded, or a refusal in one sentence."""

from __future__ import annotations

import secrets
from collections.abc import Collection

from astra_agent.errors import InvalidRequest
from astra_gang import plan
from astra_gang.clock import Clock
from astra_gang.core import Policy, begin
from astra_gang.engine import Engine
from astra_gang.loop import Loop
from astra_gang.spec import Spec, parse, policy
from astra_gang.store import RunRecord


class Intake:
    """
    Args:
        drives: Names that a run may mount.
        settings: Bounds and budgets that no spec sets.
    """

    def __init__(self, *, clock: Clock, engine: Engine, loop: Loop, drives: Collection[str], settings: Policy) -> None:
        self._clock = clock
        self._engine = engine
        self._loop = loop
        self._drives = drives
        self._settings = settings

    async def submit(self, workspace: str, document: object) -> RunRecord:
        """
        Returns once the run is recorded.

        Raises:
            InvalidRequest: What the document asks for can't be; the sentence names the field.
            Conflict, Unavailable, DeadlineExceeded: As `Loop.submit`.
        """
        spec = parse(document)
        self._check_drives(spec)
        count = plan.choose_machines(spec, await self._engine.machines())
        state = begin(
            workspace=workspace,
            name=spec.name,
            uid=secrets.token_hex(4),
            policy=policy(spec, self._settings),
            workers=plan.workers(spec, count),
            now=self._clock.now(),
        )
        run = RunRecord(spec, state)
        await self._loop.submit(run)
        return self._loop.ledger.get(state.uid) or run

    def _check_drives(self, spec: Spec) -> None:
        for i, drive in enumerate(spec.drives):
            if drive.name not in self._drives:
                field = f"spec.task_template.datavolume_refs[{i}].name"
                there = f"there are {', '.join(sorted(self._drives))}" if self._drives else "this cluster has none"
                raise InvalidRequest(f"{field} is {drive.name}, which is no drive of this cluster: {there}", field)
