"""
An image of a registry: its manifest for this machine, its small blobs checked, its layers streamed.

Mirrors are asked first and given up for the rest of the pull at their first failure; the registry itself is asked with
patience. A layer goes on where it broke off, as often as it makes progress.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from types import TracebackType
from typing import Self

import aiohttp

from astra_agent.containerd.oci import (
    ACCEPTED_MANIFESTS,
    LARGEST_MANIFEST_BYTES,
    Descriptor,
    Manifest,
    Platform,
    choose,
    digest_of,
    is_index,
    media_type_of,
    parse_index,
    parse_manifest,
)
from astra_agent.containerd.reference import Reference
from astra_agent.containerd.registry_errors import Patience, TransientError
from astra_agent.containerd.registry_hosts import RegistryConfig, endpoints
from astra_agent.containerd.registry_session import Session
from astra_agent.errors import AstraError, InvalidRequest, Unavailable

_log = logging.getLogger(__name__)

_AGENT = "astraeus"


class RegistryImage:
    """
    An async context manager: its connections live as long as the block.

    Args:
        image: The image as the user wrote it, for sentences.
        own: User name and password that came with the request; for this registry only.
        waits: Is told, as the rest of a sentence, when a registry has to be asked again.
    """

    def __init__(
        self,
        reference: Reference,
        image: str,
        own: tuple[str, str] | None,
        platform: Platform,
        config: RegistryConfig,
        waits: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._reference = reference
        self._image = image
        self._own = own
        self._platform = platform
        self._config = config
        self._waits = waits
        self._sessions: list[Session] = []
        self._http: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._http = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(
                total=None, sock_connect=self._config.connect_timeout_s, sock_read=self._config.read_timeout_s
            ),
            # Bytes as they are: a digest is of what was sent, whatever a proxy says about its encoding.
            auto_decompress=False,
            headers={"User-Agent": _AGENT, "Accept-Encoding": "identity"},
            cookie_jar=aiohttp.DummyCookieJar(),
        )
        self._sessions = [
            Session(self._http, endpoint, self._reference, self._image, self._own, self._config)
            for endpoint in endpoints(self._reference.registry, self._config)
        ]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._http is not None:
            await self._http.close()

    async def manifest(self) -> Manifest:
        """
        Of the image for this machine's platform.

        Raises:
            InvalidRequest: The image is not there, not for us, no image, or for other platforms only.
            Unavailable: The registry does not answer.
            HostFault: No TLS connection can be made.
        """
        raw, media_type = await self._manifest(self._reference.version)
        if is_index(media_type):
            entry = choose(parse_index(raw, self._image), self._platform, self._image)
            raw, media_type = await self._manifest(entry.digest)
        return parse_manifest(raw, media_type, self._image)

    async def small(self, descriptor: Descriptor) -> bytes:
        """A blob that is read at once, such as the configuration. Checked against its digest. Raises: as `manifest`."""
        if descriptor.size > LARGEST_MANIFEST_BYTES:
            raise InvalidRequest(f'image "{self._image}" has a configuration of {descriptor.size} bytes', "image")
        blob = b"".join([chunk async for chunk in self.blob(descriptor, 0)])
        if digest_of(blob, descriptor.digest) != descriptor.digest:
            raise Unavailable(
                f'registry {self._reference.registry} sent something else than "{descriptor.digest}" of image '
                f'"{self._image}": it, or something between it and this machine, is broken'
            )
        return blob

    async def blob(self, descriptor: Descriptor, offset: int) -> AsyncGenerator[bytes, None]:
        """
        The bytes from *offset* to the end, exactly ``descriptor.size - offset`` of them. Raises: as `manifest`.
        """
        wanted = f'{descriptor.digest[:19]}… of "{self._image}"'
        session = self._sessions[0]
        patience = Patience(session.endpoint, wanted, self._config, self._waits)
        while offset < descriptor.size:
            try:
                async with aclosing(_rest(session, descriptor, offset, wanted)) as rest:
                    async for chunk in rest:
                        offset += len(chunk)
                        patience.progress()
                        yield chunk
            except (TransientError, AstraError) as error:
                if session.endpoint.is_mirror:
                    session = self._without(session, error)
                    patience = Patience(session.endpoint, wanted, self._config, self._waits)
                elif isinstance(error, TransientError):
                    await patience.failed(error)
                else:
                    raise

    async def _manifest(self, version: str) -> tuple[bytes, str]:
        while self._sessions[0].endpoint.is_mirror:
            try:
                return await self._manifest_from(self._sessions[0], version)
            except AstraError as error:
                self._without(self._sessions[0], error)
        return await self._manifest_from(self._sessions[0], version)

    async def _manifest_from(self, session: Session, version: str) -> tuple[bytes, str]:
        wanted = f'the manifest of "{self._image}"'
        patience = Patience(session.endpoint, wanted, self._config, self._waits)
        headers = {"Accept": ", ".join(ACCEPTED_MANIFESTS)}
        within_s = self._config.connect_timeout_s + 4 * self._config.read_timeout_s
        while True:
            try:
                async with session.get(session.url("manifests", version), headers, wanted, within_s) as response:
                    raw = await response.content.read(LARGEST_MANIFEST_BYTES + 1)
                    while len(raw) <= LARGEST_MANIFEST_BYTES and (more := await response.content.read(1 << 20)):
                        raw += more
                    media_type = response.content_type
                return self._checked(raw, media_type, version)
            except TransientError as error:
                await patience.failed(error)

    def _checked(self, raw: bytes, media_type: str, version: str) -> tuple[bytes, str]:
        if len(raw) > LARGEST_MANIFEST_BYTES:
            raise InvalidRequest(f'image "{self._image}" has a manifest of more than 4 MiB', "image")
        if ":" in version and digest_of(raw, version) != version:
            raise TransientError(f"its manifest {version} has another digest")
        # Static file servers that play registry know no media types.
        if not media_type.startswith("application/vnd."):
            media_type = media_type_of(raw, self._image)
        return raw, media_type

    def _without(self, mirror: Session, error: Exception) -> Session:
        """The next place to ask, once *mirror* has failed, possibly for several layers at once."""
        if mirror in self._sessions:
            _log.warning("mirror_given_up image=%s mirror=%s reason=%s", self._image, mirror.endpoint.registry, error)
            self._sessions.remove(mirror)
        return self._sessions[0]


async def _rest(session: Session, descriptor: Descriptor, offset: int, wanted: str) -> AsyncGenerator[bytes, None]:
    """One try of everything from *offset* on. Raises: TransientError, also when it ends too early; as `Session.get`."""
    headers = {"Range": f"bytes={offset}-"} if offset else {}
    async with session.get(session.url("blobs", descriptor.digest), headers, wanted) as response:
        # A server that knows no ranges starts again at the beginning.
        skip = offset if response.status == 200 else 0
        at = offset - skip
        async for chunk in response.content.iter_any():
            at += len(chunk)
            if at > descriptor.size:
                raise TransientError(f"more than the {descriptor.size} bytes that the manifest says")
            rest = chunk[skip:]
            skip = max(0, skip - len(chunk))
            if rest:
                yield rest
    if at < descriptor.size:
        raise TransientError(f"the connection ended after {at} of {descriptor.size} bytes")
