"""
A name of a workspace means one thing: a run, which is its leader, or one worker. Two live runs may not both have it:
run `llama-1` and worker 1 of run `llama`, or worker 0 of `llama-a` and worker 0 of group `a` of `llama`.
"""

from __future__ import annotations

from astra_agent.errors import Conflict
from astra_gang.core import RunState


def check_names(new: RunState, live: RunState) -> None:
    """
    Args:
        new: A run that is submitted, in the workspace of *live*, which has not ended.
    Raises:
        Conflict: They would share a name; the sentence says whose.
    """
    if new.name == live.name:
        raise Conflict(
            f"run {new.name} in workspace {new.workspace} has not ended: stop it first, or choose another name"
        )
    taken = {live.name, *(worker.name for worker in live.workers)}
    name = next((name for name in (new.name, *(worker.name for worker in new.workers)) if name in taken), None)
    if name is not None:
        raise Conflict(
            f"{_named(new, name)} would have the name of {_named(live, name)}, which has not ended: "
            f"stop {live.name} first, or choose another name than {new.name}"
        )


def _named(run: RunState, name: str) -> str:
    return f"run {name}" if name == run.name else f"worker {name} of run {run.name}"
