"""
What a worker's exit, or the loss of its machine, means for the run: the table of `on_failure`, budgets and back-off.
"""

from __future__ import annotations

from dataclasses import replace

from astra_gang.core import sentences, timing
from astra_gang.core.decisions import Decision, Tell
from astra_gang.core.record import member_of
from astra_gang.core.slots import attempt_in, has_completed, is_returning, is_usable, update_worker
from astra_gang.core.state import OnFailure, Outcome, Phase, RunState, Worker
from astra_gang.core.transitions import Moved, end, next_attempt


def over_limit(state: RunState, now: float) -> Moved | None:
    due = timing.limit_due(state)
    if due is None or now < due:
        return None
    return end(state, Outcome.FAILED, sentences.over_time_limit(state), now)


def judge(state: RunState, ranks: tuple[int, ...], now: float) -> Moved | None:
    for rank in ranks:
        worker = state.workers[rank]
        slot, seen = worker.slot, attempt_in(worker.slot, worker.attempt)
        if has_completed(worker) or slot is None:
            continue
        if not is_usable(slot) or (seen is not None and seen.state == "exited"):
            return _fail(state, worker, now)
    return None


def _fail(state: RunState, worker: Worker, now: float) -> Moved:
    """A worker failed, or its machine is lost: what its `on_failure` says."""
    slot, seen = worker.slot, attempt_in(worker.slot, worker.attempt)
    machine = slot.machine if slot is not None else "its machine"
    by_machine = slot is None or not is_usable(slot) or (seen is not None and seen.fault == "machine")
    wished = slot is not None and is_returning(slot)
    if slot is not None and not is_usable(slot):
        how = "its machine is lost" if slot.lost else slot.stuck or slot.withdrawn or slot.detail
    else:
        how = sentences.how_it_ended(seen)
    if state.policy.on_failure is OnFailure.FAIL_JOB and not wished:
        return end(state, Outcome.FAILED, sentences.worker_failed(worker, machine, how), now)
    state = earned_back(state, now)
    worker = state.workers[worker.rank]
    failures = worker.failures + (0 if by_machine else 1)
    if failures > state.policy.budget:
        return end(state, Outcome.FAILED, sentences.budget_spent(state, worker, machine, how), now)
    state = update_worker(state, replace(worker, failures=failures))
    wait_s = 0.0 if by_machine else _back_off_s(state, failures)
    alone = state.policy.on_failure is OnFailure.RESTART_TASK and worker.rank != state.leader.rank
    only = alone or len(state.workers) == 1
    sentence = sentences.task_restart(worker) if only else sentences.gang_restart(worker)
    members = _members_of_restart(state, worker) if alone else tuple(w.rank for w in state.workers)
    waits = sentences.back_off(state.attempt + 1, wait_s, failures, state.policy.budget)
    why = f"{sentence} {waits}" if wait_s else sentence
    state = next_attempt(state, members, now + wait_s, why, now)
    state = replace(state, charged=None if by_machine else worker.rank)
    said: list[Decision] = [Tell(sentence, rank=worker.rank, attempt=state.attempt, level="warning", slots="at once")]
    if not (slot is not None and (slot.lost or slot.withdrawn or wished)):  # that has been said already
        failed = sentences.worker_failed(worker, machine, how)
        said.insert(0, Tell(failed, rank=worker.rank, attempt=worker.attempt, level="warning"))
    return state, said


def _members_of_restart(state: RunState, worker: Worker) -> tuple[int, ...]:
    assembling = state.members if state.phase in (Phase.ASSEMBLING, Phase.STARTING) else ()
    return tuple(sorted({worker.rank, *assembling}))


def earned_back(state: RunState, now: float) -> RunState:
    """Who has run for long enough by *now* has no failures any more."""

    def ran_long(worker: Worker) -> bool:
        member = member_of(state, worker.rank, worker.attempt)
        if member is None or member.started_at is None:
            return False
        until = member.ended_at if member.ended_at is not None else now
        return until - member.started_at >= state.policy.earn_back_s

    return replace(state, workers=tuple(replace(w, failures=0) if ran_long(w) else w for w in state.workers))


def _back_off_s(state: RunState, failures: int) -> float:
    """10 s, doubling to 5 min. The exponent is bounded so that no budget makes it overflow."""
    return float(min(state.policy.backoff_first_s * 2 ** min(failures - 1, 30), state.policy.backoff_max_s))


def bystanders(state: RunState, now: float) -> Moved | None:
    """Workers that go on while others restart may fail, too."""
    others = tuple(w.rank for w in state.workers if w.rank not in state.members)
    return judge(state, others, now) if others else None
