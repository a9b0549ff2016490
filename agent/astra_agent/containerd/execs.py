"""
Programs that are run in a running container beside its own: the port `ExecSession`, over FIFOs to the shim.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import shutil
import signal
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from google.protobuf.any_pb2 import Any

from astra_agent.containerd import proc
from astra_agent.containerd.proto import tasks_pb2
from astra_agent.containerd.services import (
    EXEC_CLOSE_STDIN,
    EXEC_CREATE,
    EXEC_DELETE,
    EXEC_RESIZE,
    TASK_START,
    TASK_WAIT,
)
from astra_agent.containerd.spec import exec_process
from astra_agent.containerd.tasks import Tasks
from astra_agent.errors import AstraError, DeadlineExceeded, HostFault, InvalidRequest, NotFound, Unavailable

_PROCESS_TYPE = "types.containerd.io/opencontainers/runtime-spec/1/Process"
_PIECE_BYTES = 64 * 1024
_RETRY_S = 0.1
_END_OF_INPUT = b"\x04"
"""What a terminal takes for the end of its input (Ctrl-D)."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What is to be run, as the caller of `Containers.exec` says it."""

    args: tuple[str, ...]
    tty: bool
    stdin: bool
    width: int
    height: int


class Exec:
    """
    One exec, from its FIFOs to its end. Made by `open_exec`.

    Our ends of the FIFOs are not blocking, so a program that is slow to read or write holds up nobody else; the output
    of one that is not listened to waits in the FIFO, and then the program does.
    """

    def __init__(
        self, tasks: Tasks, container: str, cgroup: str, cgroups: proc.Cgroups, wish: Wish, folder: Path
    ) -> None:
        self.id = folder.name
        self._tasks = tasks
        self._container = container
        self._cgroup = cgroup
        self._cgroups = cgroups
        self._wish = wish
        self._folder = folder
        self._readers: list[tuple[Literal[1, 2], asyncio.StreamReader, asyncio.ReadTransport]] = []
        self._writer: asyncio.WriteTransport | None = None
        self._may_write = _MayWrite()
        self._pid = 0
        self._code: int | None = None

    # The port -----------------------------------------------------------------------------------------------------

    async def output(self) -> AsyncIterator[tuple[Literal[1, 2], bytes]]:
        pieces: asyncio.Queue[tuple[Literal[1, 2], bytes]] = asyncio.Queue(maxsize=4)

        async def read(number: Literal[1, 2], reader: asyncio.StreamReader) -> None:
            while piece := await reader.read(_PIECE_BYTES):
                await pieces.put((number, piece))
            await pieces.put((number, b""))

        readers = [asyncio.create_task(read(number, reader)) for number, reader, _ in self._readers]
        try:
            open_ones = len(readers)
            while open_ones:
                number, piece = await pieces.get()
                if piece:
                    yield number, piece
                else:
                    open_ones -= 1
        finally:
            for task in readers:
                task.cancel()
            await asyncio.gather(*readers, return_exceptions=True)

    async def write(self, data: bytes) -> None:
        """What is written to a program that has ended or closed its input is dropped."""
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(data)
            await self._may_write.wait()

    async def close_stdin(self) -> None:
        if self._writer is None or self._writer.is_closing():
            return
        if self._wish.tty:
            await self.write(_END_OF_INPUT)
            return
        self._writer.close()
        # The shim holds the FIFO open as well, until it is told.
        request = tasks_pb2.CloseIORequest(container_id=self._container, exec_id=self.id, stdin=True)
        with suppress(NotFound, HostFault):
            await self._tasks.client.call(EXEC_CLOSE_STDIN, request)

    async def resize(self, width: int, height: int) -> None:
        """Nothing without a terminal."""
        if not self._wish.tty:
            return
        request = tasks_pb2.ResizePtyRequest(container_id=self._container, exec_id=self.id, width=width, height=height)
        with suppress(NotFound, HostFault):
            await self._tasks.client.call(EXEC_RESIZE, request)

    async def wait(self) -> int:
        """Survives restarts of containerd. 137 when the container, and the exec with it, is gone."""
        request = tasks_pb2.WaitRequest(container_id=self._container, exec_id=self.id)
        while self._code is None:
            try:
                self._code = (await self._tasks.client.call(TASK_WAIT, request, timeout_s=None)).exit_status
            except NotFound:
                self._code = 128 + signal.SIGKILL
            except (Unavailable, DeadlineExceeded, HostFault):
                await asyncio.sleep(_RETRY_S)
        return self._code

    async def close(self) -> None:
        await asyncio.shield(asyncio.ensure_future(self._close()))

    # Inside -------------------------------------------------------------------------------------------------------

    async def begin(self, process: bytes) -> None:
        """Raises: InvalidRequest when there is no such program; whatever comes, close it afterwards."""
        streams = {"stdout": str(self._folder / "stdout")}
        if not self._wish.tty:
            streams["stderr"] = str(self._folder / "stderr")
        if self._wish.stdin:
            streams["stdin"] = str(self._folder / "stdin")
        request = tasks_pb2.ExecProcessRequest(
            container_id=self._container,
            exec_id=self.id,
            terminal=self._wish.tty,
            spec=Any(type_url=_PROCESS_TYPE, value=process),
            **streams,
        )
        with _held(streams.values()):
            await self._connect(streams)
            await self._tasks.client.call(EXEC_CREATE, request)
            try:
                started = await self._tasks.client.call(
                    TASK_START, tasks_pb2.StartRequest(container_id=self._container, exec_id=self.id)
                )
            except HostFault as error:
                raise InvalidRequest(
                    f'command "{self._wish.args[0]}" can\'t be run there: {error}', "command"
                ) from error
        self._pid = started.pid

    async def _connect(self, streams: dict[str, str]) -> None:
        loop = asyncio.get_running_loop()
        for number, name in ((1, "stdout"), (2, "stderr")):
            if name in streams:
                reader = asyncio.StreamReader()
                pipe = os.fdopen(os.open(streams[name], os.O_RDONLY | os.O_NONBLOCK), "rb", buffering=0)
                transport, _ = await loop.connect_read_pipe(lambda r=reader: asyncio.StreamReaderProtocol(r), pipe)  # type: ignore[misc]
                self._readers.append((1 if number == 1 else 2, reader, transport))
        if "stdin" in streams:
            pipe = os.fdopen(os.open(streams["stdin"], os.O_WRONLY | os.O_NONBLOCK), "wb", buffering=0)
            self._writer, _ = await loop.connect_write_pipe(lambda: self._may_write, pipe)

    async def _close(self) -> None:
        self._kill_all()
        if self._writer is not None and not self._writer.is_closing():
            self._writer.abort()
        for _, _, transport in self._readers:
            transport.close()
        request = tasks_pb2.DeleteProcessRequest(container_id=self._container, exec_id=self.id)
        try:
            await self._tasks.kill(self._container, self.id)
            await self._tasks.client.call(EXEC_DELETE, request)
        except AstraError:
            # It goes with the container, at the latest.
            pass
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _kill_all(self) -> None:
        """containerd ends the first process of an exec only; the others are of its session."""
        if self._pid:
            for pid in self._cgroups.processes(self._cgroup):
                if proc.session(pid) == self._pid:
                    proc.send(pid, signal.SIGKILL, self._cgroup)


async def open_exec(
    tasks: Tasks,
    folder: Path,
    container: str,
    cgroup: str,
    cgroups: proc.Cgroups,
    wish: Wish,
    *,
    waiting: bool = False,
) -> Exec:
    """
    Run *wish* in the container, with its user and environment.

    Args:
        folder: Where the folders with FIFOs of this container are made.
        waiting: Also in one that is created and waits for its start.
    Raises:
        NotFound: the container is not running.
        InvalidRequest: there is no such program in it.
        HostFault: no FIFOs can be made, for want of room.
    """
    record, task = await asyncio.gather(tasks.record(container), tasks.get(container))
    alive = (tasks_pb2.RUNNING, tasks_pb2.CREATED) if waiting else (tasks_pb2.RUNNING,)
    if record is None or task is None or task.status not in alive:
        raise NotFound(f"{container} is not running")
    process = exec_process(json.loads(record.spec.value), wish.args, wish.tty, wish.width, wish.height)
    own = folder / secrets.token_hex(8)
    opened = Exec(tasks, container, cgroup, cgroups, wish, own)
    try:
        _make_fifos(own)
        await opened.begin(json.dumps(process).encode())
    except BaseException:
        await opened.close()
        raise
    return opened


def _make_fifos(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, mode=0o700)
        for name in ("stdin", "stdout", "stderr"):
            os.mkfifo(folder / name, 0o600)
    except OSError as error:
        raise HostFault(f"{folder} can't be made: {error.strerror}") from error


async def answers_of(made: Exec, count: int) -> tuple[str, ...]:
    """The lines that the program of *made* prints. Raises: HostFault when they are not *count*."""
    said: dict[Literal[1, 2], bytes] = {1: b"", 2: b""}
    async for number, piece in made.output():
        said[number] += piece
    lines = said[1].decode(errors="replace").splitlines()
    if len(lines) != count:
        raise HostFault(f"what a worker was promised can't be tried out: {said[2].decode(errors='replace')[:200]!r}")
    return tuple(lines)


@contextmanager
def _held(paths: Iterable[str]) -> Iterator[None]:
    """
    Both ends of these FIFOs, held while the shim opens its own: without a reader Create hangs for ever, and without a
    writer our readers would see the end before the beginning.
    """
    held = [os.open(path, os.O_RDWR | os.O_NONBLOCK) for path in paths]
    try:
        yield
    finally:
        for descriptor in held:
            os.close(descriptor)


class _MayWrite(asyncio.BaseProtocol):
    """Open while the FIFO takes more; always, once it is gone."""

    def __init__(self) -> None:
        self._open = asyncio.Event()
        self._open.set()

    async def wait(self) -> None:
        await self._open.wait()

    def pause_writing(self) -> None:
        self._open.clear()

    def resume_writing(self) -> None:
        self._open.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._open.set()
