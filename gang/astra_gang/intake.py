"""From a document that a user submits to a run that is recorded, or a refusal in one sentence."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Collection

from pydantic import ValidationError

from astra_agent.errors import InvalidRequest, Unavailable
from astra_agent.wire import LookAhead, LookAheadRequest
from astra_gang import plan
from astra_gang.clock import Clock
from astra_gang.core import Policy, begin
from astra_gang.engine import Engine, SlotOffer
from astra_gang.loop import Loop
from astra_gang.spec import Spec, parse, policy
from astra_gang.store import RunRecord
from astra_gang.streams import Streams

_log = logging.getLogger(__name__)

_DIAL_S = 3.0
"""For the machine's agent to come; one that is cut off and not yet known to be holds nobody up for longer."""
_LOOK_AHEAD_S = 20.0
"""Longer than an agent takes at most."""
_FIELDS = {"drives": "datavolume_refs", "registry_auth": "image", "working_dir": "image"}
"""What a spec calls the fields of a worker's request that it has another name for, or whose value is the image's."""


class Intake:
    """
    Args:
        drives: Names that a run may mount.
        settings: Bounds and budgets that no spec sets.
    """

    def __init__(
        self,
        *,
        clock: Clock,
        engine: Engine,
        loop: Loop,
        streams: Streams,
        drives: Collection[str],
        settings: Policy,
    ) -> None:
        self._clock = clock
        self._streams = streams
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
        machines = await self._engine.machines()
        count = plan.choose_machines(spec, machines)
        state = begin(
            workspace=workspace,
            name=spec.name,
            uid=secrets.token_hex(4),
            policy=policy(spec, self._settings),
            workers=plan.workers(spec, count),
            now=self._clock.now(),
        )
        await self._look_ahead(plan.example(state, spec, machines))
        run = RunRecord(spec, state)
        await self._loop.submit(run)
        return self._loop.ledger.get(state.uid) or run

    def _check_drives(self, spec: Spec) -> None:
        for i, drive in enumerate(spec.drives):
            if drive.name not in self._drives:
                field = f"spec.task_template.datavolume_refs[{i}].name"
                there = f"there are {', '.join(sorted(self._drives))}" if self._drives else "this cluster has none"
                raise InvalidRequest(f"{field} is {drive.name}, which is no drive of this cluster: {there}", field)

    async def _look_ahead(self, example: SlotOffer | None) -> None:
        """
        Has a machine look for the image and the command of a worker, so that its user hears at once of what is not
        there. No machine that could answer in time is no reason to refuse: those that the run gets will look again.

        Raises: InvalidRequest: They are not there.
        """
        if example is None:
            return
        try:
            asked = LookAheadRequest(request=example.request)
            async with (
                self._streams.open(example.machine, asked, dial_s=_DIAL_S) as agent,
                asyncio.timeout(_LOOK_AHEAD_S),
            ):
                found = LookAhead.model_validate_json(await agent.receive_str())
        except (Unavailable, TimeoutError, TypeError, ValidationError) as error:
            _log.info("not_looked_ahead machine=%s reason=%r", example.machine, str(error))
            return
        if found.refusal:
            field = found.field and f"spec.task_template.{_FIELDS.get(found.field, found.field)}"
            raise InvalidRequest(found.refusal, field)
