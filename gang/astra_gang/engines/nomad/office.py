"""
Who is the one active coordinator. From Nomad 1.7 on a lock on a variable of its own; before, where a lock request is
answered with 200 and locks nothing, a lease by check-and-set that its holder renews.

Both only elect. What keeps two coordinators from acting is the term in the head of the records and in every directive.
No wall clock is compared with another: a contender counts for how long it has seen no change (H27).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Protocol

from astra_agent.errors import Conflict, Stale, Unavailable
from astra_gang.engines.nomad.api import NomadApi

_log = logging.getLogger(__name__)

LOCKS_SINCE = (1, 7, 0)
TTL_S, DELAY_S = 10.0, 1.0
"""The least that Nomad takes. It waits for twice the TTL and then the delay: 21 s after the last renewal."""
LEASE_S = 15.0
"""A lease that nobody has seen renewed for this long is free."""
RENEW_S = 3.0
_LOOK_S = 1.0


class Office(Protocol):
    async def take(self) -> None:
        """Returns once this coordinator is the one. May be cancelled."""
        ...

    async def keep(self) -> None:
        """Renew it until cancelled. Raises: Stale, when another one has it."""
        ...

    async def leave(self) -> None:
        """Let the next one have it at once; bounded, and never fails."""
        ...


def office(api: NomadApi, version: tuple[int, int, int], prefix: str, name: str) -> Office:
    """*name*: who we are, for people: host and process."""
    if version >= LOCKS_SINCE:
        return LockOffice(api, f"{prefix}/lock", name)
    return LeaseOffice(api, f"{prefix}/lease", name)


class LockOffice:
    """
    The variable is written by acquire, renew and release only: a plain write would change the lock's time, or bring
    back one that was released, for nobody and for ever.
    """

    def __init__(
        self, api: NomadApi, path: str, name: str, *, look_s: float = _LOOK_S, renew_s: float = RENEW_S
    ) -> None:
        self._api = api
        self._path = path
        self._name = name
        self._look_s = look_s
        self._renew_s = renew_s
        self._lock = ""

    async def take(self) -> None:
        said = ""
        while not self._lock:
            try:
                await self._acquire()
            except Conflict:
                said = _say(said, "office_awaited", await _holder(self._api, self._path))
            except Unavailable as error:
                said = _say(said, "office_awaited", str(error))
            if not self._lock:
                await asyncio.sleep(self._look_s)
        _log.info("office_taken lock=%s", self._path)

    async def _acquire(self) -> None:
        found = await self._api.acquire_lock(self._path, {"holder": self._name}, ttl_s=TTL_S, delay_s=DELAY_S)
        if found.lock is None or not found.lock.id:
            raise Unavailable(f"Nomad answered a lock on {self._path} without one: is a server older than 1.7?")
        self._lock = found.lock.id

    async def keep(self) -> None:
        said = ""
        while True:
            await asyncio.sleep(self._renew_s)
            try:
                await self._renew()
                said = ""
            except Unavailable as error:
                # A leader that comes back gives the lock its whole time anew. Meanwhile nothing can be recorded anyhow.
                said = _say(said, "office_not_renewed", str(error))

    async def _renew(self) -> None:
        """Or take it again, when it ran out while Nomad refused us, as for a token that expired, and nobody has it."""
        try:
            await self._api.renew_lock(self._path, self._lock)
        except Conflict as error:
            # Whoever takes it writes its name, which outlives the lock: one that has left again may have begun a term.
            if (await self._api.variable(self._path)).items.get("holder") != self._name:
                why = f"another coordinator has had the lock {self._path}: this one ends; workers go on"
                raise Stale(why) from error
            with contextlib.suppress(Conflict):  # for a moment after its time is over nobody gets it
                await self._acquire()
                _log.warning("office_taken_again lock=%s", self._path)

    async def leave(self) -> None:
        with contextlib.suppress(Conflict, Unavailable, TimeoutError):
            async with asyncio.timeout(_LEAVE_S):
                await self._api.release_lock(self._path, self._lock)


class LeaseOffice:
    def __init__(
        self,
        api: NomadApi,
        path: str,
        name: str,
        *,
        lease_s: float = LEASE_S,
        look_s: float = _LOOK_S,
        renew_s: float = RENEW_S,
    ) -> None:
        self._api = api
        self._path = path
        self._name = name
        self._lease_s = lease_s
        self._look_s = look_s
        self._renew_s = renew_s
        self._index = 0

    async def take(self) -> None:
        said, seen, unchanged = "", -1, _Countdown(self._lease_s)
        try:
            while True:
                try:
                    found = await self._api.variable(self._path)
                    holder = found.items.get("holder", "")
                    if found.modify_index != seen:
                        seen = found.modify_index
                        unchanged.begin()
                    if not holder or unchanged.is_over:
                        await self._write(found.modify_index)
                        _log.info("office_taken lease=%s", self._path)
                        return
                    said = _say(said, "office_awaited", f"{holder} has it")
                except Conflict:
                    pass  # another contender was faster
                except Unavailable as error:
                    said = _say(said, "office_awaited", str(error))
                await asyncio.sleep(self._look_s)
        finally:
            unchanged.end()

    async def keep(self) -> None:
        said = ""
        while True:
            await asyncio.sleep(self._renew_s)
            try:
                await self._renew()
                said = ""
            except Unavailable as error:
                said = _say(said, "office_not_renewed", str(error))

    async def leave(self) -> None:
        with contextlib.suppress(Conflict, Unavailable, TimeoutError):
            async with asyncio.timeout(_LEAVE_S):
                await self._api.put_variable(self._path, {"holder": ""}, cas=self._index)

    async def _renew(self) -> None:
        try:
            await self._write(self._index)
        except Conflict:
            found = await self._api.variable(self._path)
            if found.items.get("holder") != self._name:
                raise Stale(
                    f"{found.items.get('holder') or 'another coordinator'} has the lease {self._path}: this one ends; "
                    "workers go on"
                ) from None
            self._index = found.modify_index  # a renewal of ours whose answer was lost

    async def _write(self, index: int) -> None:
        self._index = (await self._api.put_variable(self._path, {"holder": self._name}, cas=index)).modify_index


class _Countdown:
    """Seconds that pass here, whatever any clock shows."""

    def __init__(self, seconds: float) -> None:
        self.is_over = False
        self._seconds = seconds
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        self.end()
        self.is_over = False
        self._timer = asyncio.get_running_loop().call_later(self._seconds, self._over)

    def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _over(self) -> None:
        self.is_over = True


async def _holder(api: NomadApi, path: str) -> str:
    return f"{(await api.variable(path)).items.get('holder') or 'another coordinator'} has it"


def _say(said: str, event: str, reason: str) -> str:
    """Once for each reason."""
    if reason != said:
        _log.warning("%s reason=%r", event, reason)
    return reason


_LEAVE_S = 3.0
