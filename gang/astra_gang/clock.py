"""
The cluster's clock: seconds that never jump, in every record, bound and back-off of the coordinator.

It counts CLOCK_BOOTTIME, which nobody can set and which goes on while the machine sleeps. The store remembers, for each
boot, what the clock showed; after another boot it goes on from there. What passed while the machine was off is not
counted, so a bound may come late, never early. The wall clock is read for one thing only: to show a time to a person.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_LONGEST_NAP_S = 5.0
"""asyncio counts CLOCK_MONOTONIC, which stands still while the machine sleeps: look again at least this often."""


@dataclass(frozen=True, slots=True)
class Reading:
    """
    What the clock showed at one moment of one boot; the store keeps the newest for each boot.

    Attributes:
        boot: The kernel's ID of this boot.
        seconds: The cluster's clock.
        boottime_s: CLOCK_BOOTTIME at the same moment.
        wall_s: Seconds since 1970 at the same moment, as the wall clock had it.
    """

    boot: str
    seconds: float
    boottime_s: float
    wall_s: float


class Clock(Protocol):
    def now(self) -> float:
        """Seconds on the cluster's clock; never less than before."""
        ...

    def wall(self, at: float) -> datetime:
        """The moment *at* of the cluster's clock in UTC, as well as the wall clock knows it."""
        ...

    def reading(self) -> Reading:
        """For the store, which keeps it with every commit."""
        ...

    async def sleep_until(self, at: float) -> None:
        """Return once `now() >= at`. May be cancelled."""
        ...


class BoottimeClock:
    """
    The real one.

    Args:
        past: The readings that the store has, oldest first; empty for a new cluster, whose clock starts at 0.
        shared: Coordinators on other machines may have made the last ones: how long this machine has been up then says
            nothing of the time that has passed since.
    """

    def __init__(self, past: Sequence[Reading] = (), boot: str | None = None, *, shared: bool = False) -> None:
        self._boot = boot or _BOOT_ID.read_text(encoding="ascii").strip()
        boottime_s = time.clock_gettime(time.CLOCK_BOOTTIME)
        last = past[-1] if past else None
        if last is None:
            self._offset = -boottime_s
        elif last.boot == self._boot:
            self._offset = last.seconds - last.boottime_s
        else:
            self._offset = last.seconds - (boottime_s if shared else 0.0)
        self._past = tuple(reading for reading in past if reading.boot != self._boot)

    def now(self) -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME) + self._offset

    def wall(self, at: float) -> datetime:
        return datetime.fromtimestamp(at + self._wall_offset(at), UTC)

    def reading(self) -> Reading:
        boottime_s = time.clock_gettime(time.CLOCK_BOOTTIME)
        return Reading(self._boot, boottime_s + self._offset, boottime_s, time.time())

    async def sleep_until(self, at: float) -> None:
        while (left := at - self.now()) > 0:  # noqa: ASYNC110  # time makes no event
            await asyncio.sleep(min(left, _LONGEST_NAP_S))

    def _wall_offset(self, at: float) -> float:
        """A moment of an earlier boot is shown by that boot's wall clock, one of this boot by today's."""
        for reading in self._past:
            if at <= reading.seconds:
                return reading.wall_s - reading.seconds
        return time.time() - self.now()


def rfc3339(moment: datetime) -> str:
    """`2025-01-31T09:30:00.250Z`: UTC, milliseconds."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
