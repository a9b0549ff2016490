"""What time does to runs: their deadlines, machines that are silent, slots that do not show up. Reads, never waits."""

from __future__ import annotations

from astra_gang.absence import Absence, awaited
from astra_gang.core import (
    ClusterChanged,
    Event,
    MachineLost,
    MachineWithdrawn,
    Phase,
    RunState,
    SlotGone,
    Tick,
    deadline,
)
from astra_gang.ledger import Draft, Ledger
from astra_gang.roster import Roster
from astra_gang.sightings import lost_at, missing, missing_due, slots_of, watched
from astra_gang.store import RunRecord

_TICK_AGAIN_S = 1.0
"""A deadline that has passed without moving its run is looked at this much later."""


class Watch:
    """
    Args:
        disconnect_limit_s, lost_margin_s: As in `astra_gang.config.Config`.
    """

    def __init__(self, roster: Roster, disconnect_limit_s: float, lost_margin_s: float) -> None:
        self._roster = roster
        self._disconnect_limit_s = disconnect_limit_s
        self._lost_margin_s = lost_margin_s
        self._tick_after: dict[str, float] = {}

    def pass_time(self, draft: Draft, cluster_changed: bool) -> None:
        """Put into *draft* what has become due."""
        live = draft.live()
        for run in live:
            uid = run.state.uid
            for event in self._machine_events(run, draft.now):
                draft.feed(uid, event)
            if cluster_changed and run.state.phase is Phase.PENDING:
                draft.feed(uid, ClusterChanged())
            due = self._tick_due(run)
            if due is not None and draft.now >= due:
                draft.feed(uid, Tick())
                self._tick_after[uid] = draft.now + _TICK_AGAIN_S
        uids = {run.state.uid for run in live}
        self._tick_after = {uid: after for uid, after in self._tick_after.items() if uid in uids}

    def absences(self, state: RunState) -> list[Absence]:
        """The machines that *state* waits for and that do not answer."""
        silences = {machine: self._roster.silent_s(machine) for machine in awaited(state)}
        limit_s = lost_at(state, 0.0, self._disconnect_limit_s, self._lost_margin_s)
        return [Absence(machine, for_s, limit_s) for machine, for_s in silences.items() if for_s is not None]

    def silent_s(self, machine: str) -> float | None:
        return self._roster.silent_s(machine)

    def next_due(self, ledger: Ledger) -> float | None:
        """When `pass_time` will next have something to do, if nothing else happens."""
        dues: list[float] = []
        for run in ledger.live():
            if (due := self._tick_due(run)) is not None:
                dues.append(due)
            for machine in {slot.machine for slot in watched(run.state)}:
                seen = self._roster.get(machine)
                if seen is None or not seen.connected:
                    dues.append(self._lost_at(run, machine))
                elif (missed := missing_due(run.state, machine, seen.slots)) is not None:
                    dues.append(missed)
        return min(dues, default=None)

    def _machine_events(self, run: RunRecord, now: float) -> list[Event]:
        events: list[Event] = []
        for machine in sorted({slot.machine for slot in watched(run.state)}):
            seen = self._roster.get(machine)
            if seen is not None and seen.connected:
                events += [SlotGone(slot) for slot in missing(run.state, machine, seen.slots, now)]
            elif now >= self._lost_at(run, machine):
                events.append(MachineLost(machine))
            why = self._roster.withdrawn(machine)
            if why is not None and any(s.machine == machine and not s.withdrawn for s in slots_of(run.state)):
                events.append(MachineWithdrawn(machine, why))
        return events

    def _tick_due(self, run: RunRecord) -> float | None:
        due = deadline(run.state)
        return None if due is None else max(due, self._tick_after.get(run.state.uid, due))

    def _lost_at(self, run: RunRecord, machine: str) -> float:
        heard_at = self._roster.heard_at(machine)
        return lost_at(run.state, heard_at, self._disconnect_limit_s, self._lost_margin_s)
