"""How a conductor speaks with the machines of its probe: one question, one answer, with a bound."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pydantic import ValidationError

from astra_netprobe.messages import ANSWER, MESSAGE_MAX, PROTOCOL, Answer, Question, other_protocol

_END_S = 2.0


class Silent(Exception):
    """A machine does not answer (any more); the message is a sentence without its name: `does not answer …`."""


class Channel(Protocol):
    async def ask(self, question: Question, limit_s: float) -> Answer:
        """
        One question at a time.

        Raises:
            Silent: No answer within *limit_s* seconds, or the connection is gone. Ask nothing more.
        """

    async def close(self) -> None:
        """Ends what the machine does for this probe. Idempotent."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A machine that takes part: *address* is what its peers reach it at."""

    name: str
    address: str
    channel: Channel


class LineChannel:
    """Lines of JSON over a pair of streams."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def ask(self, question: Question, limit_s: float) -> Answer:
        try:
            async with asyncio.timeout(limit_s):
                self._writer.write(question.model_dump_json().encode() + b"\n")
                await self._writer.drain()
                line = await self._reader.readline()
        except TimeoutError as error:
            raise Silent(f"does not answer within {limit_s:.0f} s") from error
        except (OSError, ValueError) as error:
            raise Silent(f"is gone: {error}") from error
        return parse(line)

    async def close(self) -> None:
        self._writer.close()


def parse(line: bytes | str) -> Answer:
    """Raises: Silent, for what is no answer."""
    if not line:
        raise Silent("has closed the connection")
    if (theirs := other_protocol(line)) is not None:
        raise Silent(f"speaks protocol {theirs} of the probe, this side {PROTOCOL}: install the same version on both")
    try:
        return ANSWER.validate_json(line)
    except ValidationError as error:
        raise Silent(
            f"answers what is no answer in protocol {PROTOCOL} of the probe: install the same version on both"
        ) from error


class ProcessChannel:
    """A member in a process of its own on this machine; `start` makes it."""

    def __init__(self, process: asyncio.subprocess.Process, lines: LineChannel) -> None:
        self._process = process
        self._lines = lines

    async def ask(self, question: Question, limit_s: float) -> Answer:
        return await self._lines.ask(question, limit_s)

    async def close(self) -> None:
        await end(self._process)


async def start(netns: Path | None = None, max_bps: float = 0.0) -> ProcessChannel:
    """Start a member in *netns*; None: in this process's own network. *max_bps*: what it sends at most; 0: all."""
    process = await spawn(netns, max_bps)
    if process.stdin is None or process.stdout is None:
        raise RuntimeError("the member was started without pipes")
    return ProcessChannel(process, LineChannel(process.stdout, process.stdin))


async def spawn(netns: Path | None, max_bps: float = 0.0) -> asyncio.subprocess.Process:
    """The process of a member, with pipes for questions and answers."""
    return await asyncio.create_subprocess_exec(
        *command(netns, max_bps), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, limit=MESSAGE_MAX
    )


def command(netns: Path | None, max_bps: float = 0.0) -> Sequence[str]:
    inside = ("--netns", str(netns)) if netns is not None else ()
    bound = ("--max-bps", str(max_bps)) if max_bps else ()
    return (sys.executable, "-P", "-m", "astra_netprobe.member", *inside, *bound)


async def end(process: asyncio.subprocess.Process) -> None:
    """Close its input, which ends it; kill it when it does not, or when this is cancelled. Idempotent."""
    if process.stdin is not None:
        process.stdin.close()
    try:
        async with asyncio.timeout(_END_S):
            await process.wait()
    except (TimeoutError, asyncio.CancelledError) as error:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        if isinstance(error, asyncio.CancelledError):
            raise
