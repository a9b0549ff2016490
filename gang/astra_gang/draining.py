"""
What a drain of a machine would cost its runs, in the words of whoever is about to drain it. Values in, sentences out.

The core itself is asked: what it would make of the drain is read off, and thrown away.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from astra_gang import plan
from astra_gang.core import MachineWithdrawn, Phase, Place, RunState, outstanding, step
from astra_gang.core.events import NotPlaced
from astra_gang.core.slots import has_completed, has_started, is_usable
from astra_gang.engine import Machine
from astra_gang.spec import Spec


@dataclass(frozen=True, slots=True)
class Cost:
    workspace: str
    run: str
    workers: int
    """Of the whole run."""
    sentence: str


def costs(
    runs: Iterable[tuple[RunState, Spec]], machines: Sequence[Machine], name: str, now: float
) -> tuple[Cost, ...]:
    """
    One for each run that a drain of machine *name* would disturb; none: it costs no run anything.

    Args:
        machines: All that there are.
    """
    there = [replace(one, out_of_use="it is drained") if one.facts.name == name else one for one in machines]
    found: list[Cost] = []
    for state, spec in runs:
        sentence = _cost(state, spec, there, name, now)
        if sentence is not None:
            found.append(Cost(state.workspace, state.name, len(state.workers), f"draining it {sentence}"))
    return tuple(sorted(found, key=lambda cost: (cost.workspace, cost.run)))


def _cost(state: RunState, spec: Spec, machines: Sequence[Machine], name: str, now: float) -> str | None:
    hit = _ranks_on(state, name)
    total = len(state.workers)
    whole = f"{state.name} ({total} worker{'s' if total > 1 else ''})"
    if not hit:
        has_spare = any(slot.machine == name and is_usable(slot) for slot in state.spares)
        return f"gives up a spare of {whole}, which runs on" if has_spare else None
    after, _ = step(state, MachineWithdrawn(name, "it is drained"), now)
    if after.phase is Phase.ENDING:
        return f"fails {whole}"
    if state.adopted:
        return f"takes {whole} off all its machines and places it anew"
    waits = f"; no other machine has room now: {state.name} then waits" if _waits(after, spec, machines) else ""
    movers = " and ".join(state.workers[rank].name for rank in hit)
    again = {w.rank for w in after.workers if w.attempt > state.workers[w.rank].attempt}
    if not any(has_started(state.workers[rank]) for rank in again | set(hit)):
        return f"moves {movers} to another machine before {whole} starts{waits}"
    if total == 1:
        return f"moves {whole} to another machine{waits}"
    if len(again) == total:
        return f"restarts {whole}{waits}"
    return f"moves {movers} to another machine, and the others of {whole} run on{waits}"


def _ranks_on(state: RunState, machine: str) -> tuple[int, ...]:
    """Workers that would have to leave it."""
    if state.phase in (Phase.ENDING, Phase.ENDED):
        return ()
    return tuple(
        w.rank
        for w in state.workers
        if w.slot is not None
        and w.slot.machine == machine
        and not (w.slot.lost or w.slot.withdrawn or has_completed(w))
    )


def _waits(after: RunState, spec: Spec, machines: Sequence[Machine]) -> bool:
    """Nothing else has room for who moves, as things are now: then all of it is given back."""
    asked = next((decision for decision in outstanding(after) if isinstance(decision, Place)), None)
    return asked is not None and isinstance(plan.answer(asked, after, spec, machines), NotPlaced)
