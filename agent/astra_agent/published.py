"""
Which names of runs are to be answered on this machine: from what slots were armed with and from what the coordinator
tells of other runs of their workspaces, the newest of each run.

Values in, values out. Newer is a higher term of the coordinator, then a higher version within it: what comes late
changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from astra_agent import wire
from astra_agent.wire import RunNames
from astra_dns import records as dns


@dataclass(slots=True)
class Published:
    """
    Names by the slot that brought them, until that has ended, and by run.

    Attributes:
        is_whole: The coordinator has told everything once.
    """

    is_whole: bool = False
    _of_slots: dict[str, RunNames] = field(default_factory=dict)
    _of_runs: dict[dns.RunKey, RunNames] = field(default_factory=dict)

    def put(self, slot: str, names: RunNames) -> None:
        """Older than what the slot has brought before: nothing changes."""
        known = self._of_slots.get(slot)
        if known is None or _age(known) <= _age(names):
            self._of_slots[slot] = names

    def drop(self, slot: str) -> None:
        self._of_slots.pop(slot, None)

    def learn(self, names: wire.Names) -> None:
        """Of a run that is known by newer names, nothing changes; one that is gone is known no more."""
        known = self._of_runs
        if names.whole:
            self.is_whole = True
            self._of_runs = {}
        for key in names.gone:
            known.pop(key, None)
            self._of_runs.pop(key, None)
        for run in names.runs:
            key = run.workspace, run.run
            self._of_runs[key] = known[key] if key in known and _age(known[key]) > _age(run) else run

    def runs(self) -> Iterator[tuple[dns.RunKey, dns.RunNames]]:
        newest = self._of_runs.copy()
        for names in self._of_slots.values():
            key = names.workspace, names.run
            if key not in newest or _age(newest[key]) < _age(names):
                newest[key] = names
        for key, names in newest.items():
            yield key, dns.RunNames(
                names.workspace, names.run, dict(names.addresses), names.leader, names.port, names.attempt,
                names.world_size,
            )  # fmt: skip


def _age(names: RunNames) -> tuple[int, int]:
    return names.term, names.version
