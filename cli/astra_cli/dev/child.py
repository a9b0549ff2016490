"""A daemon of the dev cluster, kept alive: what ends by itself is started again, with back-off, and that is said."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from astra_agent.errors import HostFault

BACKOFF_FIRST_S = 0.2
BACKOFF_MAX_S = 15.0
STEADY_S = 30.0
"""One that ran this long starts again with the first back-off."""
TERM_S = 5.0

Say = Callable[[str], None]


@dataclass(slots=True)
class Child:
    """
    Args:
        name: For sentences, such as `m-2's agent`.
        log: Its standard output and error, appended.
    """

    name: str
    command: tuple[str, ...]
    log: Path
    say: Say
    process: asyncio.subprocess.Process | None = None
    keeper: asyncio.Task[None] | None = field(default=None)
    last_code: int | None = None
    """How it ended the last time that it did so by itself."""

    @property
    def pid(self) -> int:
        """0 while it does not run."""
        return self.process.pid if self.process is not None and self.process.returncode is None else 0

    async def start(self) -> None:
        """Start it, and keep it running until `stop` or `kill`. Raises: HostFault when it can't be run at all."""
        if self.keeper is None or self.keeper.done():
            await self._spawn()
            self.keeper = asyncio.create_task(self._keep(), name=self.name)

    async def stop(self) -> None:
        """SIGTERM, then SIGKILL; it is not started again. Idempotent."""
        await self._leave_alone()
        if not self.pid or self.process is None:
            return
        with suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGTERM)
        with suppress(TimeoutError):
            async with asyncio.timeout(TERM_S):
                await self.process.wait()
        await self.kill()

    async def kill(self) -> None:
        """SIGKILL, as a power cut; it is not started again. Idempotent."""
        await self._leave_alone()
        if self.process is not None:
            with suppress(ProcessLookupError):
                self.process.kill()
            with suppress(TimeoutError):  # one that waits in the kernel is told of by the sweep, not waited for
                async with asyncio.timeout(TERM_S):
                    await self.process.wait()

    async def _leave_alone(self) -> None:
        if self.keeper is not None:
            self.keeper.cancel()
            with suppress(asyncio.CancelledError):
                await self.keeper
            self.keeper = None

    async def _keep(self) -> None:
        pause_s = BACKOFF_FIRST_S
        while self.process is not None:
            began = time.monotonic()
            code = self.last_code = await self.process.wait()
            pause_s = BACKOFF_FIRST_S if time.monotonic() - began > STEADY_S else min(pause_s * 2, BACKOFF_MAX_S)
            self.say(
                f"{self.name} ended ({ending(code)}); it is started again in {pause_s:g} s: {last_words(self.log)}"
            )
            await asyncio.sleep(pause_s)
            await self._spawn()

    async def _spawn(self) -> None:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            try:
                # In a session of its own: Ctrl-C at the terminal is for the supervisor, which stops all in order.
                spawning = asyncio.create_subprocess_exec(
                    *self.command, cwd="/", start_new_session=True,
                    stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log,
                )  # fmt: skip
                self.process = await spawning
            except OSError as error:
                raise HostFault(f"{self.name} can't be run: {self.command[0]}: {error.strerror}") from error


def ending(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def last_words(log: Path, size: int = 4096) -> str:
    """The last line of a log, which is where a daemon says why it ended."""
    with suppress(OSError), log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - size))
        lines = file.read().decode(errors="replace").strip().splitlines()
        if lines:
            return f"{lines[-1]} (more in {log})"
    return f"it said nothing (its log is {log})"
