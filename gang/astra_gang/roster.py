"""Who is there: what each machine's agent has said since this coordinator started. In memory: a hello says it again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from astra_agent.wire import Hello, MachineFacts
from astra_gang.clock import Clock

_REDIAL_S = 2.0
"""Every link is down for a moment when the coordinator starts again: no machine is called silent for that."""


@dataclass(frozen=True, slots=True)
class MachineSeen:
    """
    Attributes:
        boot: Changes when the machine boots.
        connected: Its agent has a link now.
        heard_at: When its last lease or hello was received, seconds on the cluster's clock.
        slots: IDs of the slots that its agent has.
    """

    facts: MachineFacts
    boot: str
    connected: bool
    heard_at: float
    slots: frozenset[str]


class Roster:
    """
    Written by the links, and by an engine that has seen a slot vanish; read by everybody.

    Args:
        silent_after_s: A machine with a link that has sent no lease for so long is silent.

    Subscribers are called at once and must not wait: `arrivals` with the machine's name after its hello, `departures`
    with machine and slot when its agent says that it has no such slot (any more), `changes` when a machine came, its
    facts changed, or it is no more silent, or the engine has freed resources.
    """

    def __init__(self, clock: Clock, silent_after_s: float = 10.0) -> None:
        self._clock = clock
        self._silent_after_s = silent_after_s
        self._started_at = clock.now()
        self._machines: dict[str, MachineSeen] = {}
        self._withdrawn: dict[str, str] = {}
        self.arrivals: list[Callable[[str], None]] = []
        self.departures: list[Callable[[str, str], None]] = []
        self.changes: list[Callable[[], None]] = []

    def get(self, name: str) -> MachineSeen | None:
        return self._machines.get(name)

    def names(self) -> tuple[str, ...]:
        return tuple(sorted(self._machines))

    def is_connected(self, name: str) -> bool:
        seen = self._machines.get(name)
        return seen is not None and seen.connected

    def heard_at(self, name: str) -> float:
        """A machine that has not been heard since this coordinator started has a whole period from that moment."""
        seen = self._machines.get(name)
        return self._started_at if seen is None else seen.heard_at

    def silent_s(self, name: str) -> float | None:
        """For how long a machine that should be heard has not been; None while it answers."""
        silent_s = self._clock.now() - self.heard_at(name)
        return silent_s if silent_s >= (self._silent_after_s if self.is_connected(name) else _REDIAL_S) else None

    def is_silent(self, name: str) -> bool:
        """Whether it has a link and has not been heard over it for a while. What runs there is nobody's concern yet."""
        return self.is_connected(name) and self.silent_s(name) is not None

    def arrived(self, hello: Hello) -> None:
        name = hello.facts.name
        slots = frozenset(status.slot for status in hello.slots)
        self._machines[name] = MachineSeen(hello.facts, hello.boot, True, self._clock.now(), slots)
        for called in self.arrivals:
            called(name)
        self.announce()

    def leased(self, name: str) -> None:
        was_silent = self.is_silent(name)
        self._update(name, heard_at=self._clock.now())
        if was_silent:
            self.announce()

    def left(self, name: str) -> None:
        self._update(name, connected=False)

    def facts_changed(self, facts: MachineFacts) -> None:
        self._update(facts.name, facts=facts)
        self.announce()

    def withdraw(self, name: str, why: str | None) -> None:
        """What runs on this machine has to go elsewhere, for this reason; None: it may stay."""
        if self._withdrawn.get(name) == why:
            return
        if why is None:
            del self._withdrawn[name]
        else:
            self._withdrawn[name] = why
        self.announce()

    def withdrawn(self, name: str) -> str | None:
        return self._withdrawn.get(name)

    def slot_reported(self, name: str, slot: str) -> None:
        seen = self._machines.get(name)
        if seen is not None and slot not in seen.slots:
            self._update(name, slots=seen.slots | {slot})

    def slot_gone(self, name: str, slot: str) -> None:
        seen = self._machines.get(name)
        if seen is not None:
            self._update(name, slots=seen.slots - {slot})
        for called in self.departures:
            called(name, slot)

    def announce(self) -> None:
        """Something that may let a pending run fit has changed."""
        for called in self.changes:
            called()

    def _update(self, name: str, **changes: object) -> None:
        seen = self._machines.get(name)
        if seen is not None:
            self._machines[name] = replace(seen, **changes)  # type: ignore[arg-type]  # the names are this class's
