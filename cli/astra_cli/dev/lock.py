"""
One supervisor for each state folder: who holds the lock runs the cluster. The kernel lets go of it whatever ends the
holder, so a lock that is held means a supervisor that lives.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from astra_agent.errors import Conflict
from astra_cli.dev.plan import Layout


@contextmanager
def held(layout: Layout, timeout_s: float = 0.0) -> Iterator[None]:
    """Hold the lock. Raises: Conflict when a supervisor still has it after *timeout_s*."""
    layout.state.mkdir(parents=True, exist_ok=True, mode=0o700)
    deadline = time.monotonic() + timeout_s
    layout.lock.touch(mode=0o600)
    with layout.lock.open("r+") as file:
        while True:
            with suppress(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            if time.monotonic() > deadline:
                raise Conflict(
                    f"a dev cluster with its state in {layout.state} runs already (process {holder(layout)}); "
                    "look with `astra dev status`, end it with `astra dev stop`"
                )
            time.sleep(0.05)
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def holder(layout: Layout) -> int:
    """Process ID of the supervisor that holds the lock; 0: nobody does."""
    try:
        with layout.lock.open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return 0
    except FileNotFoundError:
        return 0
    except BlockingIOError:
        with suppress(OSError, ValueError):
            return int(layout.lock.read_text())
        return -1
