"""
Plain jobs that ask to be a gang: each becomes a run whose slots are the job's own tasks, placed by Nomad, all or none.

Nomad does not place all at once. So the barrier is held until all have a place; what is partial is given back by
scaling the job to 0, and tried again by scaling it up under the same ID. What its user does to the job is done to the
run. Queries decide; events, agents' reports and the clock are reasons to look.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from astra_agent import wire
from astra_agent.errors import AstraError, Conflict, InvalidRequest
from astra_gang import plan
from astra_gang.clock import Clock
from astra_gang.core import NotPlaced, Phase, Place, Placed, SlotGone, outstanding
from astra_gang.desk import Desk
from astra_gang.engines.nomad.answers import Allocation, Job
from astra_gang.engines.nomad.api import NomadApi
from astra_gang.engines.nomad.clearing import Agents, JobKey
from astra_gang.engines.nomad.engine import NomadEngine
from astra_gang.engines.nomad.plain import Plain, asks, document, gpus_of, plain, promise
from astra_gang.engines.nomad.wake import Wake
from astra_gang.engines.nomad.whole import failure
from astra_gang.store import RunRecord

_log = logging.getLogger(__name__)

GRACE_S = 10.0
"""How long a job may be placed in part before all of it is given back: Nomad places what fits within a second."""
LOOK_S = 30.0
_LOOK_SOON_S = 1.0
"""While something is waited for."""
_SETTLE_S = 0.05
_BY_ITS_CLIENT = frozenset({"complete", "failed"})
_REFUSED = 125
"""As of a program that never ran."""


@dataclass(frozen=True, slots=True)
class _Sight:
    """One job as Nomad has it now. *waiting*: by what the engine calls a slot."""

    job: Job
    found: Plain
    allocations: tuple[Allocation, ...]
    waiting: Mapping[str, wire.SlotStatus]

    def live(self) -> list[Allocation]:
        return [allocation for allocation in self.allocations if allocation.is_live]

    def status(self, allocation: Allocation) -> wire.SlotStatus | None:
        return self.waiting.get(f"{allocation.id}/{self.found.task}")


class Adoption:
    """
    Args:
        namespaces, node_pool: Of the coordinator; a job of others is refused.
        term: Of this coordinator.
    """

    def __init__(
        self,
        *,
        api: NomadApi,
        engine: NomadEngine,
        clock: Clock,
        term: int,
        namespaces: Collection[str],
        node_pool: str,
        grace_s: float = GRACE_S,
        look_s: float = LOOK_S,
    ) -> None:
        self._api = api
        self._engine = engine
        self._clock = clock
        self._term = term
        self._namespaces = frozenset(namespaces)
        self._node_pool = node_pool
        self._grace_s = grace_s
        self._look_s = look_s
        self._woken = asyncio.Event()
        self._partial_since: dict[tuple[str, int], float] = {}
        """By uid and reservation."""
        self._placing = ""
        """The uid of the run whose job has been scaled up: one at a time, else two would hold halves for ever."""
        self._known: frozenset[JobKey] = frozenset()
        self._said: dict[JobKey, str] = {}
        engine.heard.append(self._on_wake)

    async def run(self, agents: Agents, desk: Desk) -> None:
        """Until cancelled."""
        desk.on_change(self._woken.set)
        while True:
            busy = await self._look(agents, desk)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_SOON_S if busy else self._look_s):
                    await self._woken.wait()
            await asyncio.sleep(_SETTLE_S)
            self._woken.clear()

    def _on_wake(self, wake: Wake) -> None:
        if wake.topic in ("", "Job") or (wake.job and JobKey(wake.namespace, wake.job) in self._known):
            self._woken.set()

    async def _look(self, agents: Agents, desk: Desk) -> bool:
        """Whether something has to be looked at again soon."""
        runs = {JobKey(run.state.workspace, run.state.name): run for run in desk.adopted()}
        came = {JobKey(workspace, name) for workspace, name in desk.foyer.jobs()}
        self._known = frozenset(came) | frozenset(runs)
        self._said = {key: said for key, said in self._said.items() if key in self._known}
        live = {(run.state.uid, run.state.reservation) for run in runs.values()}
        self._partial_since = {key: since for key, since in self._partial_since.items() if key in live}
        busy = False
        # The oldest run first: it is the one that may be scaled up.
        for key in [*runs, *sorted(came - set(runs), key=lambda key: (key.namespace, key.id))]:
            try:
                busy |= await self._see(key, runs.get(key), agents, desk)
            except AstraError as error:
                busy = True
                self._say(key, str(error))
        return busy

    def _say(self, key: JobKey, sentence: str) -> None:
        if self._said.get(key) != sentence:
            self._said[key] = sentence
            _log.warning("not_adopted job=%s namespace=%s reason=%r", key.id, key.namespace, sentence)

    async def _see(self, key: JobKey, run: RunRecord | None, agents: Agents, desk: Desk) -> bool:
        waiting = {
            ref: status
            for ref, status in desk.foyer.of(key.namespace, key.id).items()
            if run is not None or not self._engine.is_known(status.slot)
        }
        if run is None and not waiting:
            return False
        job = await self._api.job(key.id, key.namespace)
        if run is None:
            if job is None or job.stopped or not asks(job):
                return False
            return await self._begin(job, waiting, agents, desk)
        if run.state.phase is Phase.ENDING:
            return False
        if job is None or job.stopped:
            await desk.stop(run.state.uid, f"nomad job stop: job {key.id} {'is gone' if job is None else 'is stopped'}")
            return False
        return await self._attend(job, run, waiting, agents, desk)

    # A job that nobody knows -----------------------------------------------------------------------------------------

    async def _begin(self, job: Job, waiting: Mapping[str, wire.SlotStatus], agents: Agents, desk: Desk) -> bool:
        allocations = (await self._api.allocations(job.id, job.namespace)).value
        came = [a for a in allocations if a.is_live and any(ref.startswith(f"{a.id}/") for ref in waiting)]
        if not came:
            return False
        try:
            found = plain(job)
            if job.namespace not in self._namespaces:
                raise InvalidRequest(
                    f"Job {job.id} can't start as a gang: its namespace {job.namespace} is no workspace of the "
                    f"coordinator, which has {', '.join(sorted(self._namespaces))}"
                )
            if (pool := job.document.get("NodePool") or "default") != self._node_pool:
                raise InvalidRequest(
                    f"Job {job.id} can't start as a gang: its node_pool is {pool}, and the coordinator places on "
                    f"machines of {self._node_pool}"
                )
            if not found.count:
                return False
            spec = document(job, found, found.count, self._engine.shares_per_core(a.node for a in came))
            run = await desk.adopt(job.namespace, spec, found.count, found.stop_grace_s)
        except (InvalidRequest, Conflict) as error:
            self._say(JobKey(job.namespace, job.id), str(error))
            self._refuse(came, waiting, str(error), agents)
            return True
        _log.info("adopted job=%s namespace=%s uid=%s workers=%d", job.id, job.namespace, run.state.uid, found.count)
        return await self._attend(job, run, waiting, agents, desk)

    def _refuse(
        self, came: Iterable[Allocation], waiting: Mapping[str, wire.SlotStatus], why: str, agents: Agents
    ) -> None:
        for machine, status in self._slots(came, waiting):
            agents.send(machine, wire.Finish(slot=status.slot, term=self._term, code=_REFUSED, reason=why))

    def _tell(
        self, came: Iterable[Allocation], waiting: Mapping[str, wire.SlotStatus], sentence: str, agents: Agents
    ) -> None:
        for machine, status in self._slots(came, waiting):
            agents.send(machine, wire.Tell(slot=status.slot, term=self._term, sentence=sentence))

    def _slots(
        self, came: Iterable[Allocation], waiting: Mapping[str, wire.SlotStatus]
    ) -> list[tuple[str, wire.SlotStatus]]:
        """With their machines."""
        return [
            (self._engine.machine_of(allocation.node) or allocation.node_name, status)
            for allocation in came
            for ref, status in waiting.items()
            if ref.startswith(f"{allocation.id}/")
        ]

    # A run that was adopted ------------------------------------------------------------------------------------------

    async def _attend(
        self, job: Job, run: RunRecord, waiting: Mapping[str, wire.SlotStatus], agents: Agents, desk: Desk
    ) -> bool:
        uid, workers = run.state.uid, len(run.state.workers)
        asked = next((d for d in outstanding(run.state) if isinstance(d, Place)), None)
        holds_none = all(worker.slot is None for worker in run.state.workers)
        try:
            found = plain(job)
        except InvalidRequest as error:
            await desk.stop(uid, f"nomad job run: {error}")
            return True
        if found.count != workers and not (found.count == 0 and holds_none):
            await desk.stop(uid, f"nomad: job {job.id} has {found.count} workers now, not {workers}")
            return True
        allocations = (await self._api.allocations(job.id, job.namespace)).value
        sight = _Sight(job, found, allocations, waiting)
        if await self._ended_by_nomad(sight, run, desk):
            return True
        if asked is None:
            return False
        if asked.keep:
            why = "A gang that was adopted is placed as a whole: all of it is given back and placed anew"
            await desk.post(uid, NotPlaced(asked.reservation, why))
            return True
        if self._engine.is_clearing(JobKey(job.namespace, job.id)):
            return True
        if found.count == 0:
            await self._scale_up(sight, run, asked, desk)
        else:
            await self._place(sight, run, asked, agents, desk)
        return True

    async def _ended_by_nomad(self, sight: _Sight, run: RunRecord, desk: Desk) -> bool:
        """
        Slots whose allocations have ended in Nomad: whether the run has heard of one. One that Nomad calls lost may
        run on where nobody sees it; that one's end is the disconnect limit's.
        """
        by_id = {allocation.id: allocation for allocation in sight.allocations}
        over: list[tuple[str, Allocation | None]] = []
        for worker in run.state.workers:
            ref = self._engine.ref_of(worker.slot.id) if worker.slot is not None and not worker.slot.lost else None
            if worker.slot is None or ref is None:
                continue
            allocation = by_id.get(ref.partition("/")[0])
            if allocation is None or not allocation.is_live:
                over.append((worker.slot.id, allocation))
        if not over:
            return False
        newest = max((allocation.job_version for _, allocation in over if allocation is not None), default=0)
        if any(a is not None and a.desired != "run" for _, a in over) and sight.job.version > newest:
            await desk.stop(run.state.uid, f"nomad job run: version {sight.job.version} of job {sight.job.id}")
            return True
        ended = [
            slot
            for slot, allocation in over
            if (self._engine.reaches(slot) if allocation is None else allocation.client in _BY_ITS_CLIENT)
        ]
        for slot in ended:
            await desk.post(run.state.uid, SlotGone(slot, for_good=True))
        return bool(ended)

    async def _scale_up(self, sight: _Sight, run: RunRecord, asked: Place, desk: Desk) -> None:
        """Once nothing of the last time is left and there is room for all, one gang after the other."""
        if any(not a.is_over and a.client != "unknown" for a in sight.allocations):
            return
        if self._placing and self._placing != run.state.uid and desk.get(self._placing) in desk.adopted():
            return
        answer = plan.answer(asked, run.state, run.spec, await self._engine.machines())
        if isinstance(answer, NotPlaced):
            await desk.post(run.state.uid, answer)
            return
        workers = len(run.state.workers)
        self._placing = run.state.uid
        await self._api.scale(
            sight.job.id, sight.job.namespace, sight.found.group, workers, f"there is room for all {workers} workers"
        )

    async def _place(self, sight: _Sight, run: RunRecord, asked: Place, agents: Agents, desk: Desk) -> None:
        """Take the slots in when all are there; give all back when they are not in time."""
        uid, workers, live = run.state.uid, len(run.state.workers), sight.live()
        await self._engine.look()
        came = [(a, status) for a in live if (status := sight.status(a)) is not None]
        seats = [seat for a, status in came if (seat := self._seat(a, status, sight.found)) is not None]
        if len(seats) == len(live) == workers:
            answer = plan.seated(asked, run.state, run.spec, seats, desk.channels())
            if isinstance(answer, Placed):
                self._done(uid)
                self._tell((a for a, _ in came), sight.waiting, promise(sight.found), agents)
                await desk.post(uid, answer)
                await desk.reports(status for _, status in came)
                return
            await self._give_back(sight, run, asked, answer.reason, desk)
            return
        since = self._partial_since.setdefault((uid, asked.reservation), self._clock.now())
        waited_s = self._clock.now() - since
        all_placed = len(live) == workers
        limit_s = run.state.policy.barrier_timeout_s if all_placed else self._grace_s
        why = f"Nomad has placed {len(live)} of {workers} workers{_ended(sight)}"
        if all_placed:
            why = f"{len(seats)} of {workers} workers have come to their machine's agent"
        if waited_s >= limit_s or not live:
            await self._give_back(sight, run, asked, why, desk)
        elif waited_s >= _LOOK_SOON_S:
            self._tell((a for a, _ in came), sight.waiting, why, agents)

    async def _give_back(self, sight: _Sight, run: RunRecord, asked: Place, why: str, desk: Desk) -> None:
        self._done(run.state.uid)
        await self._api.scale(sight.job.id, sight.job.namespace, sight.found.group, 0, f"given back: {why}")
        await desk.post(run.state.uid, NotPlaced(asked.reservation, f"{why}; all are given back and tried again"))

    def _done(self, uid: str) -> None:
        if self._placing == uid:
            self._placing = ""

    def _seat(self, allocation: Allocation, status: wire.SlotStatus, found: Plain) -> plan.Seat | None:
        facts = self._engine.facts_of(allocation.node)
        if facts is None:
            return None
        indexes = {gpu.uuid: gpu.index for gpu in facts.gpus}
        ids = gpus_of(self._engine.with_resources(allocation), found.task)
        gpus = tuple(sorted(indexes[gpu] for gpu in ids if gpu in indexes))
        return plan.Seat(facts, gpus, status.slot, status.engine_ref)


def _ended(sight: _Sight) -> str:
    """How one of them has ended already, if it has."""
    for allocation in sight.allocations:
        if allocation.desired == "run" and allocation.is_over:
            said = "; ".join(s for task in allocation.tasks.values() if (s := failure(task)))
            if said:
                return f" ({allocation.node_name}: {said})"
    return ""
