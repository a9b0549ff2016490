"""
What programs say, handed on to the FIFOs of an engine that listens to them.

The runtime writes files, so no program ever waits for a reader; from there the relay copies, at the pace of whoever
reads. An engine's reader takes the first moment without a writer for the end, and listens no more: so the FIFOs are
opened once for the slot, held across its attempts, and by `astra_agent.holder` while no agent lives. They are opened
write-only: held for reading too, a FIFO whose reader has died would take what nobody will read.

A reader that is gone may come back, and finds what was in the pipe. What a log no longer keeps by then is left out,
with a line that says how much.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import stat
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Literal, Protocol

from astra_agent import cgroup_names
from astra_agent.holder import Holder
from astra_agent.logs import Logs
from astra_agent.records import SlotRecord
from astra_agent.status import size
from astra_agent.tools import Tools

log = logging.getLogger(__name__)

_PIECE_BYTES = 64 * 1024
_OPEN_AGAIN_S = 0.1
_OPEN_AGAIN_MAX_S = 2.0
_READER_AGAIN_S = 0.2
_LOOK_FIRST_S = 0.05
_LOOK_MAX_S = 0.5
_DRAIN_S = 2.0
"""For a reader that takes nothing any more: as long as Nomad gives its own."""

Stream = Literal["stdout", "stderr"]


class Keeper(Protocol):
    """What a relay needs of its slot."""

    @property
    def record(self) -> SlotRecord: ...


@contextlib.asynccontextmanager
async def relayed(tools: Tools, keeper: Keeper) -> AsyncIterator[None]:
    """
    Relay the slot's output while the context is open, and hand on the rest of it at its end. When it is left by a
    cancellation, which is the agent's end and not the slot's, the FIFOs stay held.
    """
    request = keeper.record.request
    if request.fifos is None:
        yield
        return
    folder = tools.slot_folder(request.slot)
    folder.mkdir(parents=True, exist_ok=True)
    config = tools.config
    cgroup = cgroup_names.beside(config.cgroup_driver, config.cgroup_parent, "holders")
    holder = Holder(config.state_dir, request.slot, cgroup)
    fifos: dict[Stream, str] = {"stdout": request.fifos.stdout, "stderr": request.fifos.stderr}
    relays = [
        Relay(Path(fifo), stream, tools.logs, keeper, folder / f"{stream}.place", holder.hold)
        for stream, fifo in fifos.items()
    ]
    tasks = [asyncio.create_task(relay.run(), name=f"{request.slot} {relay.stream}") for relay in relays]
    try:
        yield
        await asyncio.gather(*(relay.drained(_DRAIN_S) for relay in relays))
        holder.end()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for relay in relays:
            relay.close()


class Relay:
    """
    One FIFO.

    Args:
        place_file: Remembers how far it has come, across the agent's own death.
        opened: Called with the descriptor, each time it is a new one.
    """

    def __init__(
        self,
        fifo: Path,
        stream: Stream,
        logs: Logs,
        keeper: Keeper,
        place_file: Path,
        opened: Callable[[str, int], None],
    ) -> None:
        self.stream: Stream = stream
        self._fifo = fifo
        self._logs = logs
        self._keeper = keeper
        self._place_file = place_file
        self._opened = opened
        self._descriptor: int | None = None
        self._finishing = False
        self._progress = 0
        self._done = asyncio.Event()

    async def run(self) -> None:
        """Until `drained`; may be cancelled, and be begun again by another agent."""
        await self._open()
        attempt, place = self._read_place()
        pause_s = _LOOK_FIRST_S
        while True:
            path = self._path(attempt)
            finishing = self._finishing
            ended = finishing or self._has_ended(attempt)
            data, place, dropped = self._logs.next_piece(path, place, _PIECE_BYTES)
            if dropped:
                await self._write(f"\n[{size(dropped)} of output were dropped here: nobody read it in time]\n".encode())
            if data:
                await self._write(data)
                self._save_place(attempt, path, place)
                pause_s = _LOOK_FIRST_S
            elif ended and (following := self._after(attempt)) is not None:
                attempt, place = following, 0
            elif finishing:
                self._done.set()
                return
            else:
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _LOOK_MAX_S)

    async def drained(self, patience_s: float) -> None:
        """All output has been handed on, or the reader has taken nothing for *patience_s*. No more will be written."""
        self._finishing = True
        while not self._done.is_set():
            before = self._progress
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(patience_s):
                    await self._done.wait()
            if self._progress == before and not self._done.is_set():
                log.warning("output_not_read slot=%s fifo=%s", self._keeper.record.request.slot, self._fifo)
                return

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    # Where it is in the logs --------------------------------------------------------------------------------------

    def _path(self, attempt: int) -> Path:
        slot = self._keeper.record.request.slot
        return self._logs.path(slot, attempt) if self.stream == "stdout" else self._logs.error_path(slot, attempt)

    def _has_ended(self, attempt: int) -> bool:
        """Nothing more will be written to its log: the runtime has let go of it."""
        found = self._keeper.record.attempt(attempt)
        return found.removed if found is not None else attempt < self._keeper.record.newest

    def _after(self, attempt: int) -> int | None:
        return min((one.number for one in self._keeper.record.attempts if one.number > attempt), default=None)

    def _read_place(self) -> tuple[int, int]:
        try:
            attempt, offset = map(int, self._place_file.read_text().split())
        except (OSError, ValueError):
            return self._keeper.record.first, 0
        return attempt, self._logs.place_of(self._path(attempt), offset)

    def _save_place(self, attempt: int, path: Path, place: int) -> None:
        """Not synced: it must outlive the agent, not the machine."""
        with contextlib.suppress(OSError):
            self._place_file.write_text(f"{attempt} {self._logs.offset_of(path, place)}")

    # The FIFO -----------------------------------------------------------------------------------------------------

    async def _open(self) -> None:
        pause_s = _OPEN_AGAIN_S
        while True:
            try:
                descriptor = os.open(self._fifo, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            except OSError as error:
                if error.errno not in (errno.ENXIO, errno.ENOENT):
                    log.warning("fifo_not_opened fifo=%s reason=%s", self._fifo, error.strerror)
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _OPEN_AGAIN_MAX_S)
                continue
            self.close()
            self._descriptor = descriptor
            self._opened(self.stream, descriptor)
            return

    async def _write(self, data: bytes) -> None:
        """All of it. While nobody reads it waits; the program does not."""
        rest = memoryview(data)
        while rest:
            assert self._descriptor is not None
            try:
                written = os.write(self._descriptor, rest)
            except BlockingIOError:
                await _writable(self._descriptor)
            except BrokenPipeError:
                await asyncio.sleep(_READER_AGAIN_S)
                if self._is_another():
                    await self._open()
            else:
                self._progress += written
                rest = rest[written:]

    def _is_another(self) -> bool:
        """Whether there is another FIFO under this name now."""
        assert self._descriptor is not None
        mine = os.fstat(self._descriptor)
        try:
            there = self._fifo.stat()
        except OSError:
            return False
        return stat.S_ISFIFO(there.st_mode) and (there.st_ino, there.st_dev) != (mine.st_ino, mine.st_dev)


async def _writable(descriptor: int) -> None:
    """Until there is room in the pipe, or nobody reads it any more."""
    loop = asyncio.get_running_loop()
    ready = loop.create_future()
    loop.add_writer(descriptor, lambda: None if ready.done() else ready.set_result(None))
    try:
        await ready
    finally:
        loop.remove_writer(descriptor)
