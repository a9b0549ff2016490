"""
Machines of a run that do not answer, in the words of its user. Values in, sentences out.

That a machine is silent is no fact of a run: nothing is decided by it before the machine counts as lost. But whoever
looks is told within seconds, not after the disconnect limit.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from astra_gang.core import Phase, RunState
from astra_gang.core.slots import has_completed, may_run


@dataclass(frozen=True, slots=True)
class Absence:
    """
    Attributes:
        silent_s: For how long nothing has been heard of it.
        limit_s: After so long its workers count as stopped.
    """

    machine: str
    silent_s: float
    limit_s: float

    @property
    def sentence(self) -> str:
        return f"{self.machine} does not answer since {self.silent_s:.0f} s"


def awaited(state: RunState) -> frozenset[str]:
    """The machines that this run needs to hear of: a program of it runs there, may run there, or is to."""
    held = {w.slot.machine for w in state.workers if w.slot is not None and not w.slot.lost and not has_completed(w)}
    return frozenset(held | {slot.machine for slot in state.leaving if may_run(slot)})


def reason(state: RunState, absences: Iterable[Absence]) -> str:
    """
    The run's sentence, with who does not answer: that all its workers run is not known then. It has no seconds that
    count up, so that a follower is told once.
    """
    away = sorted(absences, key=lambda absence: absence.machine)
    if not away or state.phase is Phase.ENDED:
        return state.reason
    names = " and ".join(filter(None, (", ".join(a.machine for a in away[:-1]), away[-1].machine)))
    one = len(away) == 1
    told = (
        f"{names} {'does' if one else 'do'} not answer; after {max(a.limit_s for a in away):.0f} s of silence "
        f"{'it counts' if one else 'they count'} as lost"
    )
    return told if state.phase is Phase.RUNNING else f"{state.reason.rstrip('.')}; {told}"
