"""
The runs as they are recorded, in memory, and a `Draft` of what one turn of the loop would make of them.

A draft changes nothing: the loop commits its batch and then has the ledger accept it, or throws it away. So what is in
memory has always been recorded first (rule 5).
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from astra_agent.errors import NotFound
from astra_gang.clock import Clock
from astra_gang.core import Event, Phase, RunState, Tell, step
from astra_gang.core.decisions import Ignore
from astra_gang.same_names import check_names
from astra_gang.store import Batch, RunEvent, RunRecord

_log = logging.getLogger(__name__)


class Ledger:
    """
    Args:
        runs: In order of submission.
        last_event: The highest event ID of each run, by uid.
    """

    def __init__(self, runs: Iterable[RunRecord] = (), last_event: Mapping[str, int] | None = None) -> None:
        self._runs = {run.state.uid: run for run in runs}
        self._last_event = dict(last_event or {})

    def get(self, uid: str) -> RunRecord | None:
        return self._runs.get(uid)

    def all(self) -> tuple[RunRecord, ...]:
        """In order of submission."""
        return tuple(self._runs.values())

    def live(self) -> Iterator[RunRecord]:
        return (run for run in self._runs.values() if run.state.phase is not Phase.ENDED)

    def find(self, workspace: str, name: str, uid: str | None = None) -> RunRecord:
        """
        The newest run of this name, or the one with this uid.

        Raises:
            NotFound: There is none.
        """
        for run in reversed(self._runs.values()):
            state = run.state
            if state.workspace == workspace and state.name == name and uid in (None, state.uid):
                return run
        which = f"run {name}" if uid is None else f"run {name} with uid {uid}"
        raise NotFound(f"there is no {which} in workspace {workspace}")

    def last_event(self, uid: str) -> int:
        return self._last_event.get(uid, 0)

    def ended(self) -> tuple[RunState, ...]:
        """The one that ended longest ago first."""
        states = (run.state for run in self._runs.values() if run.state.phase is Phase.ENDED)
        return tuple(sorted(states, key=lambda state: state.ended_at or 0.0))

    def accept(self, batch: Batch) -> None:
        """Take over what has been committed."""
        self._runs.update((run.state.uid, run) for run in batch.runs)
        self._last_event.update((event.uid, event.id) for event in batch.events)
        for uid in batch.forget_runs:
            self._runs.pop(uid, None)
            self._last_event.pop(uid, None)


class Draft:
    """
    What one turn changes; nothing of it is real until its batch is committed and the ledger has accepted it.

    Args:
        runs_kept: Ended runs beyond this many are forgotten, the oldest first.
    """

    def __init__(self, ledger: Ledger, clock: Clock, runs_kept: int) -> None:
        self._ledger = ledger
        self._clock = clock
        self._runs_kept = runs_kept
        self.now = clock.now()
        self._changed: dict[str, RunRecord] = {}
        self._events: dict[str, list[RunEvent]] = defaultdict(list)
        self.said: list[tuple[str, Tell]] = []
        """By uid, in order."""

    def get(self, uid: str) -> RunRecord | None:
        return self._changed.get(uid) or self._ledger.get(uid)

    def live(self) -> tuple[RunRecord, ...]:
        """Every run that has not ended, new ones too, as this draft has it."""
        return tuple(run for run in self._all() if run.state.phase is not Phase.ENDED)

    def add(self, run: RunRecord) -> None:
        """
        A new run.

        Raises:
            Conflict: One of this name has not ended, or a name of the run is that of another run or of its worker.
        """
        state = run.state
        for other in self.live():
            if other.state.workspace == state.workspace:
                check_names(state, other.state)
        self._changed[state.uid] = run
        self._tell(state, Tell("Submitted"))

    def feed(self, uid: str, event: Event) -> None:
        """Let one event happen to a run; an unknown run is a thing of the past."""
        run = self.get(uid)
        if run is None:
            return
        state, decisions = step(run.state, event, self.now)
        for decision in decisions:
            if isinstance(decision, Tell):
                self._tell(state, decision)
            elif isinstance(decision, Ignore):
                _log.debug("ignored run=%s event=%s reason=%r", run.state.name, type(event).__name__, decision.reason)
        if state != run.state:
            self._changed[uid] = replace(run, state=state)

    def batch(self) -> Batch | None:
        """What to commit; None when nothing changed."""
        if not self._changed and not self._events:
            return None
        return Batch(
            reading=self._clock.reading(),
            runs=tuple(self._changed.values()),
            events=tuple(event for events in self._events.values() for event in events),
            forget_runs=self._too_old(),
        )

    def _all(self) -> Iterator[RunRecord]:
        for run in self._ledger.all():
            yield self._changed.get(run.state.uid, run)
        yield from (run for uid, run in self._changed.items() if self._ledger.get(uid) is None)

    def _too_old(self) -> tuple[str, ...]:
        """The runs that end with this draft are the newest of those that have ended."""
        ended = [state.uid for state in self._ledger.ended()]
        ended += [uid for uid, run in self._changed.items() if run.state.phase is Phase.ENDED and uid not in ended]
        return tuple(ended[: max(0, len(ended) - self._runs_kept)])

    def _tell(self, state: RunState, tell: Tell) -> None:
        self.said.append((state.uid, tell))
        events = self._events[state.uid]
        last = events[-1].id if events else self._ledger.last_event(state.uid)
        events.append(
            RunEvent(state.uid, last + 1, self.now, tell.level, tell.sentence, rank=tell.rank, attempt=tell.attempt)
        )
