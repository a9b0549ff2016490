"""
Bringing a reservation's job to life: registered once, placed whole, and each slot taken by its machine's agent.

It may be asked again at any point, by a coordinator that has just started: the job's ID is the reservation's, so what
is there already is looked at, not made again.
"""

from __future__ import annotations

import asyncio
import logging

from astra_agent.errors import Conflict, InvalidRequest, NoCapacity, Unavailable
from astra_gang.engines.nomad.answers import Allocation, Job
from astra_gang.engines.nomad.api import NomadApi
from astra_gang.engines.nomad.job import Document, Seat, limit_in
from astra_gang.engines.nomad.whole import Partial, Whole, failure, has_started, judge, newest
from astra_gang.engines.pauses import pauses

_log = logging.getLogger(__name__)

_AGAIN_FIRST_S = 0.2


class Waiting:
    """
    What is waited for, so that who stops waiting can say it.

    Attributes:
        on: What has not happened yet, as the beginning of a sentence.
        trouble: A sentence, while Nomad refuses or does not answer.
    """

    def __init__(self) -> None:
        self.on = "Nomad has not placed it"
        self.trouble = ""

    def over(self, seconds: float) -> str:
        return self.trouble or f"{self.on} in {seconds:g} s"


async def register(api: NomadApi, document: Document, waiting: Waiting) -> Job:
    """
    The job as Nomad keeps it, registered now or before. Asks for as long as Nomad does not answer.

    Raises:
        NoCapacity: Nomad does not take such a job, or it was stopped already.
        Unavailable: This version of Nomad drops something that the run depends on.
    """
    name, namespace = document["ID"], document["Namespace"]
    for pause_s in pauses(_AGAIN_FIRST_S):
        try:
            await api.register(document, modify_index=0)
        except Conflict:
            pass  # it is ours, from an earlier try: nobody else makes jobs of this name
        except InvalidRequest as error:
            raise NoCapacity(str(error)) from error
        except Unavailable as error:
            waiting.trouble = str(error)
            _log.warning("job_not_registered job=%s reason=%r", name, waiting.trouble)
        job = await api.job(name, namespace)
        if job is not None:
            waiting.trouble = ""
            return _checked(job)
        await asyncio.sleep(pause_s)
    raise AssertionError("pauses never end")


async def placed(api: NomadApi, job: Job, count: int) -> None:
    """
    Returns once all of its workers have their machines.

    Raises:
        NoCapacity: Not all of them: a part may have been placed, and is starting.
    """
    index = 0
    while True:
        evaluations = await api.evaluations(job.id, job.namespace, index=index)
        allocations = await api.allocations(job.id, job.namespace)
        verdict = judge(newest(evaluations.value, job.modify_index), allocations.value, count)
        match verdict:
            case Whole():
                return
            case Partial(reason=reason):
                raise NoCapacity(reason)
        index = evaluations.index


async def accepted(api: NomadApi, job: Job, seats: tuple[Seat, ...], waiting: Waiting) -> None:
    """
    Returns once the agent of every machine has its slot: the driver answers a start after the agent has.

    Raises:
        NoCapacity: One of them did not take it.
    """
    by_node = {seat.node.id: seat for seat in seats}
    index = 0
    while True:
        allocations = await api.allocations(job.id, job.namespace, index=index)
        pending = dict(by_node)
        for allocation in allocations.value:
            seat = by_node.get(allocation.node)
            if seat is not None and _is_taken(allocation, seat):
                pending.pop(allocation.node, None)
        if not pending:
            return
        first = next(iter(pending.values()))
        waiting.on = f"slot {first.request.slot} could not be handed to {first.node.machine}"
        index = allocations.index


def _is_taken(allocation: Allocation, seat: Seat) -> bool:
    """
    Raises:
        NoCapacity: It never will be.
    """
    said = "; ".join(s for task in allocation.tasks.values() if (s := failure(task)))
    if allocation.desired != "run" or allocation.is_over:
        why = said or allocation.description or allocation.desired_description
        raise NoCapacity(f"slot {seat.request.slot} could not be handed to {seat.node.machine}: {why}")
    return any(has_started(task) for task in allocation.tasks.values())


def _checked(job: Job) -> Job:
    if job.stopped:
        raise NoCapacity(f"job {job.id} has been stopped in Nomad")
    if limit_in(job) is None:
        raise Unavailable(
            f"Nomad has not kept the disconnect limit of job {job.id}: a machine that is cut off for a moment would "
            "lose its worker; are its servers of several versions?"
        )
    return job
