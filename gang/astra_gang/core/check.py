"""What holds for every state that `step` returns. Tests and the simulation call it after each step."""

from __future__ import annotations

from astra_gang.core.proof import needs_proof
from astra_gang.core.record import find_attempt
from astra_gang.core.slots import held_slots, is_armed
from astra_gang.core.state import Phase, RunState

_HOLDS_NOTHING = (Phase.PENDING, Phase.REQUEUEING, Phase.ENDED)


def check(state: RunState) -> None:
    """
    Raises:
        AssertionError: naming the rule that is broken.
    """
    held = held_slots(state)
    ids = [slot.id for slot in (*held, *state.leaving)]
    _holds(len(ids) == len(set(ids)), "a slot belongs to one worker, or is a spare")
    machines = [slot.machine for slot in held]
    _holds(len(machines) == len(set(machines)), "no machine has two slots of a run")
    _holds(len(state.spares) <= state.policy.spares, "no more spares than asked for")
    _holds(not any(slot.attempts for slot in state.spares), "nothing is armed in a spare")
    _holds(not held or state.phase not in _HOLDS_NOTHING, "a run that waits or has ended holds no machine (rule 2)")
    _holds(bool(state.assignments) or state.phase is not Phase.RESERVING, "reserving means that the engine is asked")
    _holds(not (state.wants_place and state.assignments), "one placement at a time")
    _holds(set(state.members) <= {worker.rank for worker in state.workers} and bool(state.members), "members are ranks")
    _holds(not state.recorded or find_attempt(state, state.attempt) is not None, "a recorded attempt is in the record")
    proved = not needs_proof(state) or state.phase in (Phase.ENDING, Phase.ENDED)
    _holds(not state.recorded or proved, "a preflight comes before the attempt")
    if state.phase in (Phase.STARTING, Phase.RUNNING):
        _holds(state.recorded, "recorded before started (rule 5)")
        armed = all(is_armed(state.workers[rank]) for rank in state.members if state.workers[rank].slot is not None)
        _holds(armed, "nothing starts before all members are armed (rule 1)")
    _holds((state.phase in (Phase.ENDING, Phase.ENDED)) == (state.outcome is not None), "the end has an outcome")
    _holds(all(0 <= worker.failures <= state.policy.budget for worker in state.workers), "failures stay in the budget")
    numbers = [attempt.number for attempt in state.attempts]
    _holds(numbers == sorted(set(numbers)), "attempts are numbered upwards")


def _holds(condition: bool, rule: str) -> None:
    if not condition:
        raise AssertionError(rule)
