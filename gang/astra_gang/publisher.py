"""
Tells each machine the names of every run in the workspaces that have slots there: a worker may look for another run of
its workspace, which has nothing on its machine. A run's own machines have its names before that, with Arm.

Only what has changed is told, and everything when an agent has come (back).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice

from astra_agent import wire
from astra_gang.core import RunState
from astra_gang.hosts import run_names
from astra_gang.sightings import watched

_AT_ONCE = 200
"""Runs in one message: some hundred thousand bytes at most."""

Key = tuple[str, str]
"""Workspace and run."""
Send = Callable[[str, wire.Names], bool]
"""Hands a message to a machine's link, in order; False when there is none now. Never waits."""


class Publisher:
    """
    Args:
        term: Of this coordinator.
        versions: Growing numbers, also of the names that Arm brings: what is told later is newer.
    """

    def __init__(self, term: int, versions: Iterator[int]) -> None:
        self._term = term
        self._versions = versions
        self._told: dict[str, dict[Key, wire.RunNames]] = {}
        self._known: dict[str, tuple[RunState, wire.RunNames]] = {}

    def forget(self, machine: str) -> None:
        """Its agent has come (back), and knows what the slots there brought, at most."""
        self._told.pop(machine, None)

    def look(self, live: Iterable[RunState], send: Send) -> None:
        """Tell every machine what it does not know yet."""
        runs = {run.uid: run for run in live}
        self._known = {
            uid: kept if (kept := self._known.get(uid)) is not None and kept[0] is run else (run, self._names(run))
            for uid, run in runs.items()
        }
        workspaces: dict[str, set[str]] = {machine: set() for machine in self._told}
        of_workspace: dict[str, dict[Key, wire.RunNames]] = {}
        for run, names in self._known.values():
            for slot in watched(run):
                workspaces.setdefault(slot.machine, set()).add(run.workspace)
            if any(names.addresses.values()):
                of_workspace.setdefault(run.workspace, {})[run.workspace, run.name] = names
        for machine, there in workspaces.items():
            wanted: dict[Key, wire.RunNames] = {}
            for workspace in there:
                wanted |= of_workspace.get(workspace, {})
            self._tell(machine, wanted, send)

    def _names(self, run: RunState) -> wire.RunNames:
        return run_names(run, term=self._term, version=0)

    def _tell(self, machine: str, wanted: dict[Key, wire.RunNames], send: Send) -> None:
        known = self._told.get(machine)
        before = known or {}
        changed = iter([names for key, names in wanted.items() if before.get(key) != names])
        gone = tuple(before.keys() - wanted.keys())
        whole = known is None
        while (part := tuple(islice(changed, _AT_ONCE))) or gone or whole:
            version = next(self._versions)
            runs = tuple(names.model_copy(update={"version": version}) for names in part)
            if not send(machine, wire.Names(term=self._term, whole=whole, runs=runs, gone=gone)):
                self._told.pop(machine, None)
                return
            gone, whole = (), False
        self._told[machine] = wanted
