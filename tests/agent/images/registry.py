"""A registry in memory that does what a test tells it to: tokens, redirects, no ranges, errors for a while."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web

from tests.containers.images import OCI_MANIFEST, Image, digest


@dataclass(slots=True)
class Request:
    path: str
    authorization: str | None
    range: str | None


@dataclass(slots=True)
class FakeRegistry:
    """
    Serves *image* as any tag of any repository.

    Attributes:
        token: When set, it wants `Bearer <token>` and names its own `/token`.
        basic: When set, it wants exactly this Authorization.
        blobs_at: When set, blobs are redirected to that URL.
        failures: Answered first, one each, whatever is asked for.
        cut_after: Blobs end after so many bytes, the connection with them.
        asked: Every request.
    """

    image: Image
    token: str | None = None
    basic: str | None = None
    blobs_at: str | None = None
    failures: list[web.Response] = field(default_factory=list)
    cut_after: int | None = None
    knows_ranges: bool = True
    media_type: str = OCI_MANIFEST
    token_answer: dict[str, object] = field(default_factory=dict)
    asked: list[Request] = field(default_factory=list)
    host: str = ""

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[FakeRegistry]:
        app = web.Application()
        app.router.add_route("*", "/token", self._token)
        app.router.add_get("/blob/{digest}", self._blob)
        app.router.add_get("/v2/{repository:.+}/manifests/{version}", self._manifest)
        app.router.add_get("/v2/{repository:.+}/blobs/{digest}", self._blob)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.host = f"127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield self
        finally:
            await runner.cleanup()

    def paths(self, part: str) -> list[str]:
        return [request.path for request in self.asked if part in request.path]

    def _refusal(self, request: web.Request) -> web.Response | None:
        authorization = request.headers.get("Authorization")
        self.asked.append(Request(request.path_qs, authorization, request.headers.get("Range")))
        if self.failures:
            return self.failures.pop(0)
        if self.token is not None and authorization != f"Bearer {self.token}":
            challenge = f'Bearer realm="http://{self.host}/token",service="s",scope="repository:a/b:pull"'
            return web.Response(status=401, headers={"WWW-Authenticate": challenge})
        if self.basic is not None and authorization != self.basic:
            return web.Response(status=401, headers={"WWW-Authenticate": 'Basic realm="x"'})
        return None

    async def _token(self, request: web.Request) -> web.Response:
        form = await request.post()
        query = "&".join(f"{key}={value}" for key, value in form.items() if isinstance(value, str))
        self.asked.append(Request(f"{request.path_qs}#{query}", request.headers.get("Authorization"), None))
        return web.json_response(self.token_answer or {"token": self.token})

    async def _manifest(self, request: web.Request) -> web.Response:
        if refusal := self._refusal(request):
            return refusal
        return web.Response(body=self.image.manifest, content_type=self.media_type)

    async def _blob(self, request: web.Request) -> web.StreamResponse:
        if refusal := self._refusal(request):
            return refusal
        wanted = request.match_info["digest"]
        if self.blobs_at and request.path.startswith("/v2"):
            return web.Response(status=307, headers={"Location": f"{self.blobs_at}/{wanted}"})
        blob = {digest(blob): blob for blob in self.image.blobs}[wanted]
        start = request.headers.get("Range", "bytes=0-").removeprefix("bytes=").removesuffix("-")
        offset = int(start) if self.knows_ranges else 0
        response = web.StreamResponse(status=206 if offset else 200)
        response.content_length = len(blob) - offset
        await response.prepare(request)
        end = None if self.cut_after is None else offset + self.cut_after
        await response.write(blob[offset:end])
        if end is not None and end < len(blob):
            assert request.transport is not None
            request.transport.close()
        return response
