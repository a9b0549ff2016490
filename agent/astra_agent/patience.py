"""
Waiting for a container runtime that does not answer: every call is tried again until it does (all verbs of the port may
be done twice), and meanwhile one sentence says since when.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import ParamSpec, TypeVar

from astra_agent.errors import DeadlineExceeded, Unavailable

log = logging.getLogger(__name__)

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

_BACKOFF_FIRST_S = 0.2
_BACKOFF_MAX_S = 2.0
_UNNOTICED_S = 2.0
"""An absence as short as a restart is nobody's business."""


class Patience:
    """
    Args:
        machine: Its name, for the sentence.
        changed: Called when the sentence comes, goes, or has grown twice as old.
    """

    def __init__(self, machine: str, changed: Callable[[], None]) -> None:
        self._machine = machine
        self._changed = changed
        self._away_since: float | None = None
        self._told_s = 0.0

    def sentence(self) -> str | None:
        """`containerd on gpu-1 does not answer since 12 s`; None while it answers."""
        if self._away_since is None:
            return None
        away_s = time.monotonic() - self._away_since
        if away_s < _UNNOTICED_S:
            return None
        return f"containerd on {self._machine} does not answer since {away_s:.0f} s"

    async def call(
        self, ask: Callable[Arguments, Awaitable[Result]], *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Result:
        """The answer, however long it takes: no answer means asking again. Whatever else is raised passes."""
        backoff_s = _BACKOFF_FIRST_S
        while True:
            asked_s = time.monotonic()
            try:
                result = await ask(*args, **kwargs)
            except (Unavailable, DeadlineExceeded) as error:
                self.unanswered(error, asked_s)
            else:
                self.answered()
                return result
            await asyncio.sleep(backoff_s)
            backoff_s = min(2 * backoff_s, _BACKOFF_MAX_S)

    def unanswered(self, error: Exception, asked_s: float) -> None:
        """
        Args:
            asked_s: When it was asked, on `time.monotonic`: one that hangs has been away for the whole of its bound.
        """
        if self._away_since is None:
            log.warning("runtime_away reason=%r", str(error))
            self._away_since = asked_s
        away_s = time.monotonic() - self._away_since
        if away_s >= _UNNOTICED_S and away_s >= 2 * self._told_s:
            self._told_s = away_s
            self._changed()

    def answered(self) -> None:
        if self._away_since is None:
            return
        log.info("runtime_back away_s=%.1f", time.monotonic() - self._away_since)
        was_told = self._told_s > 0
        self._away_since, self._told_s = None, 0.0
        if was_told:
            self._changed()

    async def watch(self, ask: Callable[[], Awaitable[object]], every_s: float) -> None:
        """Ask again and again, so that an absence shows while nothing else needs the runtime; for ever."""
        while True:
            await self.call(ask)
            await asyncio.sleep(every_s)
