"""
What the slots of a run are told of it, for who looks at them through the engine: on Nomad, a task's events.

Those are few (Nomad keeps ten of a task), so only what the core marks is told, and what passes is told if it lasts.
A sentence that meets no link is lost: the run's own events are the record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from astra_agent import wire
from astra_gang.clock import Clock
from astra_gang.core import RunState, Tell
from astra_gang.sightings import slots_of

LASTS_S = 1.0


@dataclass(frozen=True, slots=True)
class _Held:
    sentence: str
    due: float


class Teller:
    """
    Args:
        send: As `astra_gang.performer.Agents.send`.
        state: Of a run, by uid; None for one that is not known.
    """

    def __init__(
        self,
        *,
        clock: Clock,
        term: int,
        send: Callable[[str, wire.Directive], bool],
        state: Callable[[str], RunState | None],
    ) -> None:
        self._clock = clock
        self._term = term
        self._send = send
        self._state = state
        self._held: dict[str, _Held] = {}

    def hear(self, said: Iterable[tuple[str, Tell]]) -> None:
        """What was said of runs, by uid, in order, and is recorded."""
        for uid, tell in said:
            if tell.slots == "if it lasts":
                self._held[uid] = _Held(tell.sentence, self._clock.now() + LASTS_S)
            elif tell.slots == "at once":
                self._held.pop(uid, None)
                self._tell(uid, tell.sentence)

    def pass_time(self) -> None:
        """Tell what has lasted."""
        now = self._clock.now()
        for uid, held in list(self._held.items()):
            if held.due <= now:
                del self._held[uid]
                self._tell(uid, held.sentence)

    def next_due(self) -> float | None:
        return min((held.due for held in self._held.values()), default=None)

    def _tell(self, uid: str, sentence: str) -> None:
        state = self._state(uid)
        for slot in slots_of(state) if state is not None else ():
            self._send(slot.machine, wire.Tell(slot=slot.id, term=self._term, sentence=sentence))
