"""
Where the facts of a run lead: one function for each phase, repeated until nothing moves.

Each returns the very state it was given when there is nothing to do. None of them looks at which event came last.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from astra_gang.core import sentences, timing
from astra_gang.core.barrier import assembling, broken, mark_failed
from astra_gang.core.decisions import Decision, Tell
from astra_gang.core.slots import any_alive, has_completed, has_started, is_usable, may_run
from astra_gang.core.state import Outcome, Phase, RunState
from astra_gang.core.transitions import (
    Moved,
    ask_for_machines,
    end,
    let_go,
    let_spares_go,
    members_of,
    requeue,
)
from astra_gang.core.verdict import bystanders, judge, over_limit

_REQUEUED_RETRY_S = 1.0


def advance(state: RunState, now: float) -> Moved:
    """Move through the phases as far as the facts allow."""
    said: list[Decision] = []
    state, more = _drop_spares(_forget_gone(state), now)
    said += more
    while True:
        moved, more = _PHASES[state.phase](state, now)
        said += more
        if moved is state:
            return state, said
        state = moved


def _forget_gone(state: RunState) -> RunState:
    """Slots that the engine has taken back and in which nothing can run any more."""
    return replace(state, leaving=tuple(slot for slot in state.leaving if not slot.accepted or may_run(slot)))


def _drop_spares(state: RunState, now: float) -> Moved:
    """Those that could take over no rank any more. Nothing else is decided by that."""
    if state.phase is Phase.RESERVING:  # its engine may be putting them
        return state, []
    gone = tuple(slot for slot in state.spares if not is_usable(slot))
    said: list[Decision] = []
    for slot in gone:
        sentence = sentences.spare_gone(slot)
        said.append(Tell(sentence, attempt=state.attempt, level="warning"))
        state = let_spares_go(state, (slot,), sentence, now)
    return state, said


def _pending(state: RunState, now: float) -> Moved:
    due = timing.place_due(state)
    if due is None or now < due:
        return state, []
    return ask_for_machines(state, now), []


def _reserving(state: RunState, now: float) -> Moved:
    due = timing.reserve_due(state)
    if due is None or now < due:
        return state, []
    return requeue(state, f"The machines did not take their slots within {state.policy.reserve_timeout_s:g} s", now)


def _requeueing(state: RunState, now: float) -> Moved:
    if not all(slot.accepted for slot in state.leaving):
        return state, []
    again = state.place_again_at if state.place_again_at is not None else now + _REQUEUED_RETRY_S
    return replace(state, phase=Phase.PENDING, phase_since=now, place_again_at=again, tier="", domain=""), []


def _starting(state: RunState, now: float) -> Moved:
    moved = over_limit(state, now) or bystanders(state, now) or broken(state, now)
    if moved is not None:
        return moved
    if all(has_started(w) for w in members_of(state)):
        reason = sentences.all_run(state)
        state = replace(state, phase=Phase.RUNNING, phase_since=now, reason=reason, faults=0, charged=None)
        return state, [Tell(reason, attempt=state.attempt, slots="at once")]
    due = timing.start_due(state)
    if due is None or now < due:
        return state, []
    return mark_failed(state, f"it was not started within {state.policy.start_timeout_s:g} s", has_started), []


def _running(state: RunState, now: float) -> Moved:
    moved = over_limit(state, now) or judge(state, tuple(w.rank for w in state.workers), now)
    if moved is not None:
        return moved
    if all(map(has_completed, state.workers)):
        return end(state, Outcome.COMPLETED, sentences.all_completed(state), now)
    reason = sentences.some_completed(state) if any(map(has_completed, state.workers)) else state.reason
    return (state if reason == state.reason else replace(state, reason=reason)), []


def _ending(state: RunState, now: float) -> Moved:
    due = timing.stop_due(state)
    give_up = due is not None and now >= due
    done = {
        w.rank
        for w in state.workers
        if w.slot is not None and (give_up or not is_usable(w.slot) or not any_alive(w.slot))
    }
    if done:
        gone = let_go(state, done, state.reason, now)
        workers = tuple(replace(w, slot=None) if w.rank in done else w for w in state.workers)
        return replace(state, workers=workers, leaving=(*state.leaving, *gone)), []
    if not all(slot.accepted for slot in state.leaving) or any(w.slot is not None for w in state.workers):
        return state, []
    assert state.outcome is not None  # set by end(), the only way into this phase
    ended = replace(state, leaving=(), phase=Phase.ENDED, phase_since=now, ended_at=now)
    return ended, [
        Tell(str(state.outcome), attempt=state.attempt, level="error" if state.outcome is Outcome.FAILED else "info")
    ]


def _ended(state: RunState, now: float) -> Moved:
    return state, []


_PHASES: dict[Phase, Callable[[RunState, float], Moved]] = {
    Phase.PENDING: _pending,
    Phase.RESERVING: _reserving,
    Phase.ASSEMBLING: assembling,
    Phase.STARTING: _starting,
    Phase.RUNNING: _running,
    Phase.REQUEUEING: _requeueing,
    Phase.ENDING: _ending,
    Phase.ENDED: _ended,
}
