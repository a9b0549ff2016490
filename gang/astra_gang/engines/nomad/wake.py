"""
The event stream, as a reason to look and nothing else: it loses, repeats, and may hold what is none of our business.

A refused stream is silent: no first line within 3 s means refused. A line may be cut, or be words: then the stream is
over. After every start and every gap everybody is woken once, since nobody knows what was missed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Callable
from dataclasses import dataclass

import aiohttp

from astra_agent.errors import AstraError, Unavailable
from astra_gang.engines.nomad.refusals import NODES, Call, Need, refusal
from astra_gang.engines.nomad.transport import Transport

_log = logging.getLogger(__name__)

FIRST_LINE_S = 3.0
SILENCE_S = 45.0
"""A heartbeat comes every 30 s."""
_AGAIN_FIRST_S, _AGAIN_MAX_S = 0.5, 10.0
_LINE_MAX = 16 * 2**20
"""Bytes. Every report of a client brings its whole node."""
_CHUNK = 64 * 1024
_NEED = Need(
    f"read-job or {NODES.name}",
    f"{NODES.rule}, and the identity of a job follows events from Nomad 1.9.6 on only (Enterprise 1.7.18, 1.8.10)",
)
"""An identity that Nomad does not take here is refused as one without the rights is (seen: 1.6.5)."""
TOPICS = ("Job", "Allocation", "Evaluation", "Node")


@dataclass(frozen=True, slots=True)
class Wake:
    """
    Something happened to this thing.

    Attributes:
        topic: One of `TOPICS`; empty: anything may have happened, look at all of it.
        key: ID of the job, allocation, evaluation or node.
        job: ID of the job that it belongs to, where it does.
    """

    topic: str = ""
    key: str = ""
    namespace: str = ""
    job: str = ""


EVERYTHING = Wake()


class Wakes:
    """
    Args:
        heard: Called with each; must not wait.
        namespace: Others' events are dropped: 1.6 sends those of all to who may read one.
    """

    def __init__(
        self,
        transport: Transport,
        heard: Callable[[Wake], None],
        *,
        namespace: str,
        first_line_s: float = FIRST_LINE_S,
        again_first_s: float = _AGAIN_FIRST_S,
    ) -> None:
        self._transport = transport
        self._heard = heard
        self._namespace = namespace
        self._first_line_s = first_line_s
        self._again_first_s = again_first_s
        self._lines = 0
        """Of the stream that is followed."""
        self.trouble: str | None = None
        """A sentence while there is no stream; everything is then looked at by the clock only."""

    async def run(self) -> None:
        """For ever."""
        pause_s = self._again_first_s
        while True:
            self._lines = 0
            try:
                await self._follow()
            except AstraError as error:
                if str(error) != self.trouble:
                    self.trouble = str(error)
                    _log.warning("no_event_stream reason=%r", self.trouble)
            if self._lines > 1:
                pause_s = self._again_first_s
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, _AGAIN_MAX_S)

    async def _follow(self) -> None:
        """One stream, until it ends in whatever way."""
        query = [("topic", f"{topic}:*") for topic in TOPICS]
        timeout = aiohttp.ClientTimeout(total=None, connect=5.0, sock_read=SILENCE_S)
        try:
            async with self._transport.open(
                "GET", "/v1/event/stream", namespace=self._namespace, query=query, timeout=timeout
            ) as answer:
                await self._take_all(answer)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise Unavailable(f"Nomad's event stream broke ({str(error) or f'silent for {SILENCE_S:g} s'})") from error

    async def _take_all(self, answer: aiohttp.ClientResponse) -> None:
        if answer.status != 200:
            call = Call("follow events", _NEED, self._namespace, self._transport.access.called())
            text = (await answer.content.read(1024)).decode(errors="replace")
            raise await self._transport.explained(refusal(call, answer.status, text), self._namespace)
        lines = _Lines(answer.content)
        first: bytes | None = None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._first_line_s):
                first = await lines.next()
        if first is None:
            raise await self._transport.bad_token(self._namespace) or Unavailable(
                f"Nomad refuses its event stream without a word (no line within {self._first_line_s:g} s): the token "
                f"needs read-job in namespace {self._namespace}, and {NODES.rule}"
            )
        self.trouble = None
        self._heard(EVERYTHING)
        line: bytes | None = first
        while line is not None:
            self._lines += 1
            for wake in wakes(line):
                if wake.namespace == self._namespace or wake.topic == "Node":
                    self._heard(wake)
            line = await lines.next()


class _Lines:
    """The lines of a stream, however long; None at its end. A last line without an end is no line."""

    def __init__(self, content: aiohttp.StreamReader) -> None:
        self._content = content
        self._buffer = bytearray()

    async def next(self) -> bytes | None:
        """Raises: Unavailable, for one that has no end."""
        searched = 0
        while (end := self._buffer.find(b"\n", searched)) < 0:
            searched = len(self._buffer)
            if searched > _LINE_MAX:
                raise Unavailable(f"a line of Nomad's event stream is longer than {_LINE_MAX} bytes")
            chunk = await self._content.read(_CHUNK)
            if not chunk:
                return None
            self._buffer += chunk
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        return line


def wakes(line: bytes) -> list[Wake]:
    """
    What one line says.

    Raises:
        Unavailable: It is no JSON: Nomad's last words, or a cut line. The stream is over.
    """
    if not line.strip():
        return []
    try:
        events = json.loads(line).get("Events") or ()
        return [Wake(e["Topic"], str(e.get("Key", "")), str(e.get("Namespace", "")), _job_of(e)) for e in events]
    except (ValueError, AttributeError, KeyError, TypeError) as error:
        words = line[:200].decode(errors="replace")
        raise Unavailable(f"Nomad ended its event stream: {words}") from error


def _job_of(event: dict[str, object]) -> str:
    if event.get("Topic") == "Job":
        return str(event.get("Key", ""))
    payload = event.get("Payload")
    thing = payload.get(str(event.get("Topic"))) if isinstance(payload, dict) else None
    return str(thing.get("JobID", "")) if isinstance(thing, dict) else ""
