"""
Takes part in probes on a machine without an agent: a TCP port on which a conductor that knows the token asks.

The caller proves that it knows the token by answering a challenge; the token itself never crosses the network. Each
caller gets a member in a process of its own. How many there may be at once, and how fast each may send, is bounded.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import secrets
from dataclasses import dataclass

from astra_netprobe import channel
from astra_netprobe.channel import LineChannel, Silent
from astra_netprobe.messages import MESSAGE_MAX, Failed

log = logging.getLogger(__name__)

GREET_S = 5.0
_HELLO = b"astra-netprobe"
_GREETING = 1
"""
How a caller proves that it knows the token; told in the hello. A number of its own: with the same one a caller of
another protocol gets as far as its first question, and hears what is wrong.
"""
_CHALLENGE_BYTES = 16
_LINE_MAX = 256
_NUMBER_MAX = 9
"""Digits."""


@dataclass(frozen=True, slots=True)
class Limits:
    """*at_once*: probes at the same time; more are refused. *max_bps*: what each may send; 0: as much as goes."""

    at_once: int = 2
    max_bps: float = 0.0


class Responder:
    """Serves until cancelled; ends all probes with it."""

    def __init__(self, token: str, limits: Limits | None = None) -> None:
        self._token = token
        self._limits = limits or Limits()
        self._running = 0
        self._callers: set[asyncio.Task[None]] = set()
        self.port = 0

    async def run(self, address: str, port: int, ready: asyncio.Event | None = None) -> None:
        """
        Listen on *address* and *port* (0: any, see `port`), until cancelled; no member outlives it.

        Raises: OSError, when it can't.
        """
        server = await asyncio.start_server(self._serve, address, port, limit=MESSAGE_MAX)
        self.port = int(server.sockets[0].getsockname()[1])
        log.info("responder_up address=%s port=%d", address, self.port)
        if ready is not None:
            ready.set()
        try:
            await asyncio.Event().wait()
        finally:
            server.close()  # and no wait for it: since Python 3.12 that would be for the callers, who end below
            for caller in self._callers:
                caller.cancel()
            await asyncio.gather(*self._callers, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if (task := asyncio.current_task()) is not None:
            self._callers.add(task)
            task.add_done_callback(self._callers.discard)
        try:
            if await self._knows_token(reader, writer):
                await self._take_part(reader, writer)
        except (OSError, ValueError, TimeoutError) as error:
            log.info("caller_gone reason=%r", str(error) or type(error).__name__)
        finally:
            writer.close()

    async def _knows_token(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        challenge = secrets.token_hex(_CHALLENGE_BYTES)
        writer.write(b"%b %d %b\n" % (_HELLO, _GREETING, challenge.encode()))
        async with asyncio.timeout(GREET_S):
            said = await reader.readline()
        if len(said) <= _LINE_MAX and hmac.compare_digest(said.strip(), prove(self._token, challenge)):
            return True
        log.warning("caller_refused reason='the token is wrong'")
        return False

    async def _take_part(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._running >= self._limits.at_once:
            refusal = Failed(sentence=f"{self._running} probes run on this machine: wait for their end")
            writer.write(refusal.model_dump_json().encode() + b"\n")
            return
        self._running += 1
        process = None
        try:
            process = await channel.spawn(None, self._limits.max_bps)
            if process.stdin is None or process.stdout is None:
                raise RuntimeError("the member was started without pipes")
            copies = {
                asyncio.create_task(_copy(reader, process.stdin)),
                asyncio.create_task(_copy(process.stdout, writer)),
            }
            try:
                await asyncio.wait(copies, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for copy in copies:
                    copy.cancel()
                await asyncio.gather(*copies, return_exceptions=True)
        finally:
            self._running -= 1
            if process is not None:
                await channel.end(process)


def prove(token: str, challenge: str) -> bytes:
    return hmac.digest(token.encode(), challenge.encode(), "sha256").hex().encode()


async def call(address: str, port: int, token: str) -> LineChannel:
    """
    A channel to a responder.

    Raises:
        Silent: Nobody answers there, or it is no responder; a wrong token shows at the first question.
    """
    try:
        async with asyncio.timeout(GREET_S):
            reader, writer = await asyncio.open_connection(address, port, limit=MESSAGE_MAX)
    except (OSError, TimeoutError) as error:
        raise Silent(f"has no responder at {address}:{port}: {error or 'no answer'}") from error
    what = f"something else than a responder at {address}:{port}"
    with contextlib.suppress(TimeoutError, ValueError, OSError):
        async with asyncio.timeout(GREET_S):
            hello = await reader.readline()
        match hello.split():
            case [name, number, challenge] if (name, number) == (_HELLO, b"%d" % _GREETING):
                writer.write(prove(token, challenge.decode()) + b"\n")
                return LineChannel(reader, writer)
            case [name, number, *_] if name == _HELLO and (theirs := int(number[:_NUMBER_MAX])) != _GREETING:
                what = f"a responder at {address}:{port} that greets by version {theirs}, this side by {_GREETING}: "
                what += "install the same version on both"
    writer.close()
    raise Silent(f"has {what}")


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError, ValueError):
        while line := await source.readline():
            target.write(line)
            await target.drain()
