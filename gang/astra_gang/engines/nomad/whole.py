"""
Whether a reservation is whole: everything placed and nothing waiting. `AllAtOnce` does not promise it; an evaluation
that is complete may have placed a part, which is starting already.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from astra_gang.engines.nomad.answers import Allocation, Evaluation, Shortage, Task


@dataclass(frozen=True, slots=True)
class Whole:
    """All of them; *live* by node."""

    live: dict[str, Allocation]


@dataclass(frozen=True, slots=True)
class Partial:
    """Not all, and Nomad does not go on by itself at once. *reason*: one sentence."""

    reason: str


Verdict = Whole | Partial | None
"""None: not decided yet, look again."""

_UNDECIDED = frozenset({"", "pending"})


def newest(evaluations: Iterable[Evaluation], job_modify_index: int) -> Evaluation | None:
    """
    The evaluation that speaks for the job as it was last registered. One that was canceled gave way to a newer one, a
    blocked one only says what another has left over.
    """
    told = [e for e in evaluations if e.job_modify_index >= job_modify_index and e.triggered_by != "reconnect"]
    spoken = [e for e in told if e.status not in ("canceled", "blocked")]
    return max(spoken, key=lambda e: e.create_index, default=None)


def judge(evaluation: Evaluation | None, allocations: Iterable[Allocation], count: int) -> Verdict:
    """
    Args:
        evaluation: What `newest` found.
        allocations: Of the job, read after the evaluation.
        count: How many there should be.
    """
    if evaluation is None or evaluation.status in _UNDECIDED:
        return None
    live = {a.node: a for a in allocations if a.is_live}
    if _is_clean(evaluation):
        return Whole(live) if len(live) == count else Partial(_ended(allocations) or _counted(len(live), count))
    return Partial(why_not(evaluation) or _counted(len(live), count))


def why_not(evaluation: Evaluation) -> str:
    """What Nomad lacked, in one sentence; empty when it does not say."""
    for group, shortage in sorted(evaluation.failed.items()):
        missing = max(1 + shortage.more, evaluation.queued.get(group, 0))
        return f"Nomad found no place for {missing} of the workers ({_lack(shortage)})"
    if evaluation.status == "failed":
        return f"Nomad gave up placing it ({evaluation.description or 'it does not say why'})"
    return ""


def failure(task: Task) -> str:
    """The sentence of the task's event that says why it did not start, or ended; empty when none does."""
    for wanted in (_NOT_STARTED, _ENDED):
        for event in reversed(task.events):
            if event.type in wanted and event.message:
                return event.message
    return ""


def has_started(task: Task) -> bool:
    """Its driver has taken it."""
    return task.state == "running" or any(event.type == "Started" for event in task.events)


_NOT_STARTED = frozenset({"Driver Failure", "Setup Failure", "Failed Validation", "Task hook failed"})
_ENDED = frozenset({"Terminated", "Killed", "Not Restarting"})


def _is_clean(evaluation: Evaluation) -> bool:
    """Only then everything that it wanted is committed."""
    nothing_left = not evaluation.failed and not evaluation.blocked and not any(evaluation.queued.values())
    return evaluation.status == "complete" and nothing_left


def _ended(allocations: Iterable[Allocation]) -> str:
    for allocation in allocations:
        if allocation.is_over or allocation.desired != "run":
            said = "; ".join(s for task in allocation.tasks.values() if (s := failure(task)))
            return f"its worker on {allocation.node_name} ended at once ({said or allocation.description})"
    return ""


def _counted(live: int, count: int) -> str:
    return f"Nomad placed {live} of {count} workers"


def _lack(shortage: Shortage) -> str:
    words = [f"{what} exhausted on {_machines(n)}" for what, n in sorted(shortage.exhausted.items())]
    words += [
        f"{_machines(n)} filtered by {what}"
        for what, n in sorted(shortage.filtered.items())
        if not what.startswith(("${node.unique.id}", "distinct_hosts"))
    ]
    return "; ".join(words) or "the chosen machines are not ready, or not eligible"


def _machines(number: int) -> str:
    return "1 machine" if number == 1 else f"{number} machines"
