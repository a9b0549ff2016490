"""
The terminal's side of `astra exec`: raw mode, its size, standard input in, output out, the program's exit code back.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import aiohttp
from pydantic import TypeAdapter, ValidationError

from astra_agent.errors import InvalidRequest, Unavailable
from astra_agent.wire import ExecExit, Resize, StdinEnd

CHUNK = 32 * 1024

_EXIT = TypeAdapter(ExecExit)


async def attach(socket: aiohttp.ClientWebSocketResponse, *, stdin: bool, raw: bool) -> int:
    """
    Join this process's terminal, or its pipes, with the program at the other end of *socket*.

    Args:
        stdin: Hand standard input on.
        raw: Standard input is a terminal and the program has one: keys go to it, Ctrl-C too.
    Returns: the program's exit code.
    Raises:
        InvalidRequest: the program could not be started.
        Unavailable: the connection broke off: how the program ends is not known.
    """
    with raw_mode() if raw else _as_it_is():
        async with asyncio.TaskGroup() as group:
            senders = [group.create_task(_send_input(socket))] if stdin else []
            if raw:
                senders.append(group.create_task(_send_sizes(socket)))
            try:
                return await _receive(socket)
            finally:
                for task in senders:
                    task.cancel()


def size() -> tuple[int, int]:
    """Columns and lines of the terminal that is standard input; 80 and 24 when it is none."""
    try:
        return os.get_terminal_size(sys.stdin.fileno())
    except (OSError, ValueError):
        return 80, 24


async def _receive(socket: aiohttp.ClientWebSocketResponse) -> int:
    async for message in socket:
        if message.type is aiohttp.WSMsgType.BINARY and message.data:
            stream = sys.stderr if message.data[0] == 2 else sys.stdout
            stream.buffer.write(message.data[1:])
            stream.buffer.flush()
        elif message.type is aiohttp.WSMsgType.TEXT:
            ended = _exit(message.data)
            if ended.error:
                raise InvalidRequest(ended.error)
            return ended.code
    raise Unavailable(
        "the connection to the worker broke off before the program ended; whether it still runs is not known"
    )


def _exit(text: str) -> ExecExit:
    try:
        return _EXIT.validate_json(text)
    except ValidationError as error:
        raise Unavailable(f"the worker's end of exec said something else than an exit: {text[:80]!r}") from error


async def _send_input(socket: aiohttp.ClientWebSocketResponse) -> None:
    """Standard input as it comes, then its end; read no faster than the worker takes it."""
    with suppress(ConnectionError):  # the program has ended: its exit is on its way
        while data := await _read(sys.stdin.fileno()):
            await socket.send_bytes(data)
        await socket.send_str(StdinEnd().model_dump_json())


async def _read(fd: int) -> bytes:
    loop = asyncio.get_running_loop()
    readable: asyncio.Future[None] = loop.create_future()
    try:
        loop.add_reader(fd, _settle, readable)
    except PermissionError:  # epoll refuses regular files, which are always readable
        return os.read(fd, CHUNK)
    try:
        await readable
    finally:
        loop.remove_reader(fd)
    return os.read(fd, CHUNK)


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


async def _send_sizes(socket: aiohttp.ClientWebSocketResponse) -> None:
    loop = asyncio.get_running_loop()
    changed = asyncio.Event()
    loop.add_signal_handler(signal.SIGWINCH, changed.set)
    try:
        while True:
            await changed.wait()
            changed.clear()
            width, height = size()
            with suppress(ConnectionError):
                await socket.send_str(Resize(width=width, height=height).model_dump_json())
    finally:
        loop.remove_signal_handler(signal.SIGWINCH)


@contextmanager
def raw_mode() -> Iterator[None]:
    """Every key as it is pressed, none acted on here; put back as it was whatever happens."""
    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)
    try:
        tty.setraw(fd)
        yield
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)


@contextmanager
def _as_it_is() -> Iterator[None]:
    yield
