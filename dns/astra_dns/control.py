"""
How a name server is told what to answer, by whoever runs it; it asks nobody by itself.

One connection holds for as long as its other end lives; the server goes on answering without it, with what it was told
last. A new connection begins with everything the server has, so that nothing has to be remembered by the other side.

| op | does | answer |
|---|---|---|
| hello | | protocol, settings, serial, runs by workspace and name, sockets by name with their workspace |
| put | part of a run: *addresses* are added up until the part with *last* | |
| drop | a run | |
| publish | all changes at once | serial |
| listen | on the socket that comes along, for *workspace*, as *name* | |
| unlisten | *name* | |
| take | | the socket *name* comes along, which the server keeps using |
| query | *packet* in hex, as *workspace* would ask | packet |
| show | | upstreams, loops, counters as text |
| stop | the process ends | |
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import socket
from collections.abc import Callable, Iterator
from typing import Any

from astra_dns import channel
from astra_dns.channel import Message
from astra_dns.counters import Counters
from astra_dns.forward import Forwarder
from astra_dns.records import Draft, RunKey, RunNames
from astra_dns.server import Server
from astra_dns.slices import until_due

log = logging.getLogger(__name__)

_QUERY_S = 5.0


class Control:
    """
    Args:
        settings: What the process was started with: who finds others there starts another one.
        stop: Called when the process is to end.
    """

    def __init__(
        self, draft: Draft, server: Server, forwarder: Forwarder, counters: Counters, settings: Message,
        stop: Callable[[], None],
    ) -> None:  # fmt: skip
        self._draft = draft
        self._server = server
        self._forwarder = forwarder
        self._counters = counters
        self._settings = settings
        self._stop = stop
        self._parts: dict[RunKey, dict[str, tuple[str, ...]]] = {}
        self._changing = asyncio.Lock()
        self._is_unfrozen = False

    @property
    def is_busy(self) -> bool:
        """Whether names have been taken in that a search for cycles would have to go through."""
        return self._is_unfrozen or self._changing.locked()

    async def serve(self, connection: socket.socket) -> None:
        """Until the other side is gone. Owns *connection*, which does not block."""
        loop = asyncio.get_running_loop()
        readable = asyncio.Event()
        loop.add_reader(connection, readable.set)
        try:
            while True:
                try:
                    received = channel.receive(connection)
                except BlockingIOError:
                    readable.clear()
                    await readable.wait()
                    continue
                if received is None:
                    return
                answer, descriptors = await self._obey(*received)
                if answer is not None:
                    channel.send(connection, answer, descriptors)
                await asyncio.sleep(0)  # whoever tells much at once does not keep those waiting who ask
        except (OSError, ValueError, KeyError, TypeError) as error:
            log.warning("control_lost reason=%r", error)
        finally:
            loop.remove_reader(connection)
            connection.close()
            self._parts.clear()

    async def _obey(self, message: Message, given: tuple[int, ...]) -> tuple[Message | None, tuple[int, ...]]:
        """Raises: KeyError, TypeError or ValueError for what is no message of ours."""
        match message["op"]:
            case "hello":
                return self._hello(), ()
            case "put":
                await self._put(message)
            case "drop":
                self._draft.drop((message["workspace"], message["run"]))
            case "publish":
                return await self._publish(), ()
            case "listen":
                self._server.add(message["name"], message["workspace"], socket.socket(fileno=given[0]))
                given = given[1:]
            case "unlisten":
                self._server.remove(message["name"])
            case "take":
                return self._take(message["name"])
            case "query":
                return {"packet": await self._query(message["workspace"], bytes.fromhex(message["packet"]))}, ()
            case "show":
                return self._show(), ()
            case "stop":
                self._stop()
            case unknown:
                raise ValueError(f"there is no op {unknown!r}")
        for descriptor in given:
            os.close(descriptor)
        return None, ()

    def _hello(self) -> Message:
        return {
            "protocol": channel.PROTOCOL,
            "settings": self._settings,
            "pid": os.getpid(),
            "sockets": {name: workspace for name, (workspace, _) in self._server.sockets.items()},
            "runs": [list(key) for key in self._draft.runs],
        }

    async def _put(self, message: Message) -> None:
        key = message["workspace"], message["run"]
        parts = self._parts.setdefault(key, {})
        parts.update({worker: tuple(addresses) for worker, addresses in message["addresses"].items()})
        if message["last"]:
            addresses = self._parts.pop(key)
            about: dict[str, Any] = {name: message[name] for name in ("leader", "port", "attempt", "world_size")}
            await self._steps(self._draft.putting(RunNames(*key, addresses, **about)))

    async def _steps(self, steps: Iterator[None]) -> None:
        async with self._changing:
            while not until_due(steps):  # noqa: ASYNC110 -- nothing is waited for: others have their turn
                await asyncio.sleep(0)
            self._is_unfrozen = True

    async def _publish(self) -> Message:
        async with self._changing:
            snapshot = self._draft.freeze()
        self._server.publish(snapshot)
        gc.freeze()
        self._is_unfrozen = False
        return {"serial": snapshot.serial}

    def _take(self, name: str) -> tuple[Message, tuple[int, ...]]:
        found = self._server.sockets.get(name)
        return ({"name": name}, ()) if found is None else ({"name": name}, (found[1].fileno(),))

    async def _query(self, workspace: str, packet: bytes) -> str | None:
        said: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
        self._server.take(workspace, packet, lambda found: None if said.done() else said.set_result(found))
        try:
            async with asyncio.timeout(_QUERY_S):
                found = await said
        except TimeoutError:
            return None
        return None if found is None else found.hex()

    def _show(self) -> Message:
        entries = sum(view.count for view in self._server.snapshot.views.values())
        upstreams = self._forwarder.upstreams
        text = self._counters.text(entries=entries, cached=len(self._forwarder.cache), healthy=upstreams)
        return {"upstreams": upstreams, "loops": list(self._forwarder.loops), "metrics": text}
