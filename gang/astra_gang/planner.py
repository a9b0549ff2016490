"""
Looks for machines for every run that wants some: one snapshot of the cluster, one run after the other.

The oldest of the highest priority chooses first. What it gets is taken off the snapshot before the next one looks, and
so is what earlier rounds decided and the engine does not hold yet: no two runs are given the same GPUs. The engine has
the last word all the same.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import replace

from astra_agent.errors import Unavailable
from astra_gang import plan, shape
from astra_gang.clock import Clock
from astra_gang.core import Assignment, Event, Place, Placed, RunState, outstanding
from astra_gang.engine import Engine, Machine
from astra_gang.ledger import Ledger
from astra_gang.roster import Roster
from astra_gang.sightings import slots_of
from astra_gang.store import RunRecord

_log = logging.getLogger(__name__)

SETTLE_S = 5.0
"""After a start. Agents try again every 2 s at the latest."""
_SNAPSHOT_S = 25.0
"""Longer than an engine asks again that has to ask somebody else: what it says then is why."""
_AGAIN_S = 2.0
"""After an engine that did not answer."""


class Planner:
    """
    Begins once the expected machines have come, or have had `SETTLE_S` for it: what is decided on half a cluster is
    placed worse than it need be, or told to its user as impossible.

    Args:
        post_all: Feeds the answers of a round to the loop; returns once they are recorded: the next round sees them.
        expected: Names of machines.
    """

    def __init__(
        self,
        *,
        clock: Clock,
        engine: Engine,
        roster: Roster,
        ledger: Ledger,
        post_all: Callable[[Iterable[tuple[str, Event]]], Awaitable[None]],
        expected: Collection[str],
    ) -> None:
        self._clock = clock
        self._roster = roster
        self._expected = expected
        self._settled_at = clock.now() + SETTLE_S
        self._engine = engine
        self._ledger = ledger
        self._post_all = post_all
        self._woken = asyncio.Event()
        self.trouble: str | None = None
        """A sentence while the engine can't be asked for its machines: who wants some waits for that."""

    def wake(self) -> None:
        """Some run wants machines. Idempotent."""
        self._woken.set()

    async def run(self) -> None:
        """One round after the other, until cancelled."""
        await self._settle()
        while True:
            await self._woken.wait()
            self._woken.clear()
            try:
                async with asyncio.timeout(_SNAPSHOT_S):
                    machines = await self._engine.machines()
            except (Unavailable, TimeoutError) as error:
                self.trouble = str(error) or f"the engine does not say within {_SNAPSHOT_S:g} s which machines it has"
                _log.warning("no_snapshot reason=%r", self.trouble)
                self._woken.set()
                await asyncio.sleep(_AGAIN_S)
                continue
            self.trouble = None
            found = answers(self._ledger.live(), machines)
            if found:
                await self._post_all(found)

    async def _settle(self) -> None:
        came = asyncio.Event()
        self._roster.changes.append(came.set)
        enough = asyncio.ensure_future(self._clock.sleep_until(self._settled_at))
        try:
            while not enough.done() and not all(map(self._roster.is_connected, self._expected)):
                more = asyncio.ensure_future(came.wait())
                await asyncio.wait((enough, more), return_when=asyncio.FIRST_COMPLETED)
                more.cancel()
                came.clear()
        finally:
            enough.cancel()
            self._roster.changes.remove(came.set)


def answers(runs: Iterable[RunRecord], machines: Sequence[Machine]) -> list[tuple[str, Event]]:
    """Answer every `Place` that is outstanding, by uid. *runs*: all that have not ended."""
    room = {machine.facts.name: machine for machine in machines}
    taken = list(runs)
    for run in taken:
        _take(room, run, _not_held_yet(run.state, machines), len(run.state.workers))
    channels = {run.state.uid: (run.state.channel_domain, run.state.channel) for run in taken}
    found: list[tuple[str, Event]] = []
    for run in sorted(taken, key=lambda r: (-(r.spec.document.spec.priority or 0), r.state.submitted_at)):
        for decision in outstanding(run.state):
            if isinstance(decision, Place) and not run.state.adopted:
                others = {held for uid, held in channels.items() if uid != run.state.uid}
                answer = plan.answer(decision, run.state, run.spec, tuple(room.values()), others)
                if isinstance(answer, Placed):
                    channels[run.state.uid] = (answer.domain if answer.tier == "nvlink" else "", answer.channel)
                    count = len(run.state.workers) if decision.keep else answer.workers
                    _take(room, run, answer.assignments, count)
                found.append((run.state.uid, answer))
    return found


def _not_held_yet(state: RunState, machines: Sequence[Machine]) -> tuple[Assignment, ...]:
    """What this run has been given and the snapshot does not show: its reservation is on its way."""
    shown = {slot for machine in machines for slot in machine.slots}
    return tuple(Assignment(0, slot.machine, slot.gpus) for slot in slots_of(state) if slot.id not in shown)


def _take(room: dict[str, Machine], run: RunRecord, assignments: Iterable[Assignment], workers: int) -> None:
    """*workers*: of the run in the shape that it was placed in."""
    share = shape.of(run.spec.resources, workers)
    for assignment in assignments:
        machine = room.get(assignment.machine)
        if machine is not None:
            room[assignment.machine] = replace(
                machine,
                free_cpu_cores=machine.free_cpu_cores - share.cpu_cores,
                free_memory_bytes=machine.free_memory_bytes - share.memory_bytes,
                free_gpus=tuple(gpu for gpu in machine.free_gpus if gpu not in assignment.gpus),
            )
