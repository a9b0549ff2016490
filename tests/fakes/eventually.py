"""Waiting for something that happens by itself, with a bound."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
PATIENCE_S = 60.0


async def until(condition: Callable[[], object], what: str = "", within_s: float = 60.0) -> None:
    """Return once *condition* holds; fail, saying *what* did not happen, when it does not in time."""
    try:
        async with asyncio.timeout(within_s):
            while not condition():  # noqa: ASYNC110  # what is waited for makes no event
                await asyncio.sleep(0.005)
    except TimeoutError:
        raise AssertionError(f"did not happen within {within_s:g} s: {what or condition}") from None


def eventually(ask: Callable[[], T | None], what: str, within_s: float = PATIENCE_S) -> T:
    """As `until`, where nothing else runs in this process: the first true answer of *ask*."""
    deadline = time.monotonic() + within_s
    while not (seen := ask()):
        assert time.monotonic() < deadline, f"did not happen within {within_s:g} s: {what}"
        time.sleep(0.1)
    return seen
