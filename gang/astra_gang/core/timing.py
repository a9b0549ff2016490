"""
Every bound of the state machine, each in one place: `advance` acts when one is due, `deadline` says when to look again.

A function returns the time at which its wait is over, or None when nothing of the kind is being waited for.
"""

from __future__ import annotations

from astra_gang.core.proof import is_proving
from astra_gang.core.record import find_attempt, member_of
from astra_gang.core.slots import has_completed, has_started, is_armed, is_returning, may_run, old_alive
from astra_gang.core.state import Phase, RunState, Worker


def deadline(state: RunState) -> float | None:
    """When to send a `Tick`, in seconds on the cluster's clock; None when only events can move the run."""
    dues = [due(state) for due in _DUES[state.phase]] if state.phase in _DUES else []
    return min((due for due in dues if due is not None), default=None)


def place_due(state: RunState) -> float | None:
    if state.wants_place:
        return None
    return state.place_again_at if state.place_again_at is not None else state.phase_since


def reserve_due(state: RunState) -> float | None:
    if not state.assignments:
        return None
    slots = {w.slot.id: w.slot for w in state.workers if w.slot is not None}
    asked = [slots[a.slot].asked_at for a in state.assignments if a.slot in slots]
    return min(asked, default=state.phase_since) + state.policy.reserve_timeout_s


def barrier_due(state: RunState) -> float | None:
    """While only some are ready: when these have waited long enough; with none ready, when to give up preparing."""
    members = [state.workers[rank] for rank in state.members]
    ready = [w.slot.ready_at for w in members if w.slot is not None and w.slot.ready_at is not None]
    if state.recorded or len(ready) == len(members):
        return None
    if not ready:
        return state.phase_since + state.policy.prepare_timeout_s
    return max(state.phase_since, min(ready)) + state.policy.barrier_timeout_s


def prove_due(state: RunState) -> float | None:
    if state.proof is None or not is_proving(state):
        return None
    return state.proof.asked_at + state.policy.prove_wait_s + state.policy.prove_s


def arm_due(state: RunState) -> float | None:
    attempt = find_attempt(state, state.attempt)
    if not state.recorded or attempt is None or all(is_armed(state.workers[rank]) for rank in state.members):
        return None
    return attempt.recorded_at + state.policy.arm_timeout_s


def stop_due(state: RunState) -> float | None:
    """When the first of what was told to stop must have ended, if its agent says nothing of it."""
    if state.phase is Phase.ENDING:
        waits = any(w.slot is not None for w in state.workers)
        return overdue_at(state, state.phase_since) if waits else None
    waits_since = [state.phase_since for rank in state.members if old_alive(state.workers[rank])]
    if state.phase is Phase.ASSEMBLING:
        waits_since += [slot.left_at for slot in state.leaving if may_run(slot)]
    return overdue_at(state, min(waits_since)) if waits_since else None


def return_due(state: RunState) -> float | None:
    """When the first slot that its engine has ended must be back."""
    held = [w.slot for w in state.workers if w.slot is not None and is_returning(w.slot) and not has_completed(w)]
    ended = [slot.ended_at for slot in held if slot.ended_at is not None]
    return min(ended) + state.policy.return_timeout_s if ended else None


def overdue_at(state: RunState, since: float) -> float:
    """
    An agent finds a process that does not die by itself, after the grace time and `stop_timeout_s`, and a machine that
    is cut off is lost before `silence_s` is over: only when neither was heard of does the coordinator judge by itself.
    """
    return since + state.policy.stop_grace_s + state.policy.stop_timeout_s + state.policy.silence_s


def nothing_old_runs(state: RunState) -> bool:
    """Neither in the slots of the current attempt's members nor in slots that were let go."""
    return not any(old_alive(state.workers[rank]) for rank in state.members) and not any(map(may_run, state.leaving))


def back_off_due(state: RunState) -> float | None:
    armed = state.recorded and all(is_armed(state.workers[rank]) for rank in state.members)
    return state.start_at if armed and nothing_old_runs(state) else None


def start_due(state: RunState) -> float | None:
    if all(has_started(state.workers[rank]) for rank in state.members):
        return None
    return state.phase_since + state.policy.start_timeout_s


def limit_due(state: RunState) -> float | None:
    """When the first worker that runs reaches its time limit."""
    if state.policy.time_limit_s is None:
        return None
    started = [running_since(state, w) for w in state.workers if not has_completed(w)]
    times = [since + state.policy.time_limit_s for since in started if since is not None]
    return min(times, default=None)


def running_since(state: RunState, worker: Worker) -> float | None:
    """When the worker's newest attempt started to run; None when it has not, or has ended."""
    member = member_of(state, worker.rank, worker.attempt)
    return None if member is None or member.ended_at is not None else member.started_at


_DUES = {
    Phase.PENDING: (place_due,),
    Phase.RESERVING: (reserve_due,),
    Phase.ASSEMBLING: (reserve_due, return_due, barrier_due, prove_due, arm_due, stop_due, back_off_due, limit_due),
    Phase.STARTING: (start_due, limit_due),
    Phase.RUNNING: (limit_due,),
    Phase.ENDING: (stop_due,),
}
