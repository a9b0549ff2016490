"""A way to Nomad's API that hands on everything, the event stream too, and fails what a test says."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

import aiohttp
from aiohttp import web
from yarl import URL

from astra_agent import namespaces
from tests.fakes.eventually import eventually

_STREAM = "/v1/event/stream"
_OF_THIS_HOP = {"connection", "keep-alive", "transfer-encoding", "te", "trailer", "upgrade", "content-length", "host"}


@dataclass(frozen=True, slots=True)
class Fault:
    """
    What happens to a request instead of what Nomad would do.

    Attributes:
        how: It is answered with *status*, *text* and *headers*; it has no answer; or its connection is cut, and so are
            all that are open when the fault begins.
        only: Of requests that this is found in: method, a space, path and query.
    """

    how: Literal["answers", "hangs", "cuts"] = "answers"
    status: int = 500
    text: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    only: str = ""


class Proxy:
    """
    Used inside `with`; *port* is Nomad's and *own* the proxy's, both on the loopback of *netns*.

    Attributes:
        failed: Requests that a fault met, as `Fault.only` sees them.
        held_back: Bytes of event streams that were not handed on.
    """

    def __init__(self, netns: Path, port: int, own: int) -> None:
        self.url = f"http://127.0.0.1:{own}"
        self.failed: list[str] = []
        self.held_back = 0
        self._netns = netns
        self._nomad = f"http://127.0.0.1:{port}"
        self._own = own
        self._fault: Fault | None = None
        self._is_silent = False
        self._followed = 0
        self._open: set[asyncio.Transport] = set()
        self._session: aiohttp.ClientSession | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ending: asyncio.Event | None = None
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        eventually(lambda: self._loop is not None, "the proxy serves")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._loop is not None
        assert self._ending is not None
        self._loop.call_soon_threadsafe(self._ending.set)
        self._thread.join(30)

    @contextmanager
    def failing(self, fault: Fault) -> Iterator[None]:
        assert self._loop is not None
        self.failed = []
        self._fault = fault
        if fault.how == "cuts":
            self._loop.call_soon_threadsafe(self._cut_all)
        try:
            yield
        finally:
            self._fault = None

    @contextmanager
    def silent_stream(self) -> Iterator[None]:
        """From when one is followed on, event streams stay open, and new ones open; nothing of them arrives."""
        eventually(lambda: self._followed, "an event stream is followed")
        self.held_back = 0
        self._is_silent = True
        try:
            yield
        finally:
            self._is_silent = False

    # In its thread ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        namespaces.inside(self._netns, lambda: asyncio.run(self._serve()))

    async def _serve(self) -> None:
        self._ending = asyncio.Event()
        app = web.Application(client_max_size=64 * 2**20)
        app.router.add_route("*", "/{path:.*}", self._handle)
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        async with aiohttp.ClientSession(auto_decompress=False, connector=aiohttp.TCPConnector(limit=0)) as session:
            self._session = session
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", self._own).start()
            self._loop = asyncio.get_running_loop()
            await self._ending.wait()
            await runner.cleanup()

    def _cut_all(self) -> None:
        for transport in self._open:
            transport.abort()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        transport = request.transport
        assert isinstance(transport, asyncio.Transport)
        self._open.add(transport)
        try:
            asked, fault = f"{request.method} {request.raw_path}", self._fault
            if fault is not None and re.search(fault.only, asked):
                self.failed.append(asked)
                return await self._fail(fault, transport)
            return await self._hand_on(request, transport)
        finally:
            self._open.discard(transport)

    async def _fail(self, fault: Fault, transport: asyncio.Transport) -> web.Response:
        while fault.how == "hangs" and self._fault is fault:  # noqa: ASYNC110 -- what ends it is in another thread
            await asyncio.sleep(0.05)
        if fault.how != "answers":
            transport.abort()
        return web.Response(status=fault.status, text=fault.text, headers=fault.headers)

    async def _hand_on(self, request: web.Request, transport: asyncio.Transport) -> web.StreamResponse:
        assert self._session is not None
        url = URL(f"{self._nomad}{request.raw_path}", encoded=True)
        headers = [(name, value) for name, value in request.headers.items() if name.lower() not in _OF_THIS_HOP]
        timeout = aiohttp.ClientTimeout(total=None)
        try:
            async with self._session.request(
                request.method, url, headers=headers, data=await request.read() or None, timeout=timeout,
                allow_redirects=False,
            ) as answer:  # fmt: skip
                told = web.StreamResponse(status=answer.status)
                for name, value in answer.headers.items():
                    if name.lower() not in _OF_THIS_HOP:
                        told.headers.add(name, value)
                await told.prepare(request)
                if request.path == _STREAM:
                    await self._hand_on_stream(answer, told)
                else:
                    async for chunk in answer.content.iter_any():
                        await told.write(chunk)
                await told.write_eof()
                return told
        except (aiohttp.ClientError, OSError):
            transport.abort()  # as the caller would see it without us
            raise

    async def _hand_on_stream(self, answer: aiohttp.ClientResponse, told: web.StreamResponse) -> None:
        self._followed += 1
        try:
            async for chunk in answer.content.iter_any():
                if self._is_silent:
                    self.held_back += len(chunk)
                else:
                    await told.write(chunk)
        finally:
            self._followed -= 1
