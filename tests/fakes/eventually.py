"""Waiting for something that happens by itself, with a bound."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


async def until(condition: Callable[[], object], what: str = "", within_s: float = 60.0) -> None:
    """Return once *condition* holds; fail, saying *what* did not happen, when it does not in time."""
    try:
        async with asyncio.timeout(within_s):
            while not condition():  # noqa: ASYNC110  # what is waited for makes no event
                await asyncio.sleep(0.005)
    except TimeoutError:
        raise AssertionError(f"did not happen within {within_s:g} s: {what or condition}") from None
