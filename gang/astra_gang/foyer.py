"""
Slots that came without a run: an engine's own user has asked for them, and they wait at the barrier for a coordinator.

In memory, as their agents described them last: a hello says it again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from astra_agent.wire import SlotStatus


class Foyer:
    """*changes* are called at once when a slot has come, has changed or has gone, and must not wait."""

    def __init__(self) -> None:
        self._slots: dict[str, SlotStatus] = {}
        self.changes: list[Callable[[], None]] = []

    def see(self, statuses: Iterable[SlotStatus]) -> None:
        """What an agent says of slots; those that the coordinator has asked for itself are none of these."""
        came = [status for status in statuses if is_unasked(status)]
        for status in came:
            known = self._slots.get(status.slot)
            if status.phase == "finished":
                self._slots.pop(status.slot, None)
            elif known is None or known.rev <= status.rev:
                self._slots[status.slot] = status
        if came:
            self._announce()

    def gone(self, slot: str) -> None:
        if self._slots.pop(slot, None) is not None:
            self._announce()

    def jobs(self) -> set[tuple[str, str]]:
        """Workspace and name of each."""
        return {(status.run.workspace, status.run.name) for status in self._slots.values()}

    def of(self, workspace: str, name: str) -> dict[str, SlotStatus]:
        """Those of one job, by what the engine calls them."""
        return {
            status.engine_ref: status
            for status in self._slots.values()
            if (status.run.workspace, status.run.name) == (workspace, name)
        }

    def _announce(self) -> None:
        for called in self.changes:
            called()


def is_unasked(status: SlotStatus) -> bool:
    return status.starts == "when_told" and bool(status.engine_ref) and status.called is None
