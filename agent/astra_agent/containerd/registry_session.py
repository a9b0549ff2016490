"""
HTTP with one repository of one registry endpoint: time-outs, redirects, credentials, and errors as sentences of ours.

Credentials go to the endpoint's own origin and to the token service that it names; never along a redirect.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import aiohttp
from yarl import URL

from astra_agent.containerd.credentials import Found, find_credentials
from astra_agent.containerd.reference import Reference
from astra_agent.containerd.registry_auth import Challenge, TokenRequest, parse_challenges, token_request
from astra_agent.containerd.registry_errors import TransientError, missing, no_connection, refused, unexpected
from astra_agent.containerd.registry_hosts import Endpoint, RegistryConfig, proxy_for, tls_context

_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_MOST_REDIRECTS = 5
_TRY_AGAIN = frozenset({408, 425, 429, 500, 502, 503, 504})
_LONGEST_ERROR_BYTES = 64 * 1024
_LONGEST_TOKEN_BYTES = 256 * 1024


class Session:
    """One for each endpoint of a pull. *http* is shared and stays its owner's."""

    def __init__(
        self, http: aiohttp.ClientSession, endpoint: Endpoint, reference: Reference, image: str,
        own: tuple[str, str] | None, config: RegistryConfig,
    ) -> None:  # fmt: skip
        self.endpoint = endpoint
        self._http = http
        self._reference = reference
        self._image = image
        self._own = None if endpoint.is_mirror else own
        self._config = config
        self._found = Found()
        self._authorization: str | None = None
        self._asking = asyncio.Lock()
        self._tls: dict[str, ssl.SSLContext] = {}

    def url(self, kind: str, version: str) -> URL:
        """*kind* is `manifests` or `blobs`."""
        base = self.endpoint.base
        path = f"{base.path.rstrip('/')}/v2/{self._reference.repository}/{kind}/{version}"
        # Mirrors of several registries tell them apart by this, as containerd asks them.
        query = {"ns": self._reference.registry} if self.endpoint.is_mirror else {}
        return base.with_path(path).with_query(query)

    @asynccontextmanager
    async def get(
        self, url: URL, headers: Mapping[str, str], wanted: str, within_s: float | None = None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """
        An answer of 200 or 206, its body still to be read; errors while reading it are translated, too.

        Args:
            wanted: What it is, for sentences: `the manifest of "busybox:1.36"`.
            within_s: For the whole of it; None: as long as something comes.
        Raises:
            TransientError: Another try may help.
            InvalidRequest: It is not there, or not for us.
            HostFault: TLS.
            Unavailable: The registry answers something that is no answer.
        """
        try:
            async with asyncio.timeout(within_s):
                response = await self._authorized(url, headers)
                try:
                    if response.status not in (200, 206):
                        raise await self._failure(response, wanted)
                    yield response
                finally:
                    response.close()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise no_connection(error, self.endpoint, self._config) from error

    async def _authorized(self, url: URL, headers: Mapping[str, str]) -> aiohttp.ClientResponse:
        """The answer; when that is 401, the answer to a second try with what the registry asks for."""
        shown = self._authorization
        response = await self._follow(url, headers, shown)
        if response.status != 401:
            return response
        challenges = parse_challenges(response.headers.getall("WWW-Authenticate", []))
        async with self._asking:
            # Several layers are refused at once when a token expires: the first one gets another for all.
            if self._authorization == shown:
                self._authorization = await self._authorize(challenges)
        if self._authorization is None:
            return response
        response.close()
        return await self._follow(url, headers, self._authorization)

    async def _follow(self, url: URL, headers: Mapping[str, str], authorization: str | None) -> aiohttp.ClientResponse:
        origin = url.origin()
        for _ in range(_MOST_REDIRECTS + 1):
            own = {"Authorization": authorization} if authorization and url.origin() == origin else {}
            response = await self._ask("GET", url, {**headers, **own})
            if response.status not in _REDIRECTS:
                return response
            target = url.join(URL(response.headers.get("Location", "")))
            response.close()
            if target.scheme not in ("http", "https") or (url.scheme == "https" and target.scheme == "http"):
                raise TransientError(f'it points to "{target.origin() if target.host else target}", away from TLS')
            url = target
        raise TransientError(f"it points on and on, past {_MOST_REDIRECTS} redirects")

    async def _ask(
        self, method: str, url: URL, headers: Mapping[str, str], form: Mapping[str, str] | None = None
    ) -> aiohttp.ClientResponse:
        return await self._http.request(
            method, url, headers=headers, data=form, allow_redirects=False,
            ssl=self._tls_for(url) if url.scheme == "https" else True, proxy=proxy_for(url),
        )  # fmt: skip

    def _tls_for(self, url: URL) -> ssl.SSLContext:
        host = url.host_port_subcomponent if not url.is_default_port() else url.host_subcomponent
        if (key := host or "") not in self._tls:
            self._tls[key] = tls_context(key, self._config)
        return self._tls[key]

    async def _authorize(self, challenges: tuple[Challenge, ...]) -> str | None:
        """What to show: a Bearer token where one is offered, else Basic. None: there is nothing to show."""
        self._found = await find_credentials(self.endpoint.registry, self._own, self._config)
        credentials = self._found.credentials
        for challenge in challenges:
            if challenge.scheme != "bearer":
                continue
            question = token_request(challenge, self.endpoint.base, self._reference.repository, credentials)
            if question is not None:
                return await self._token(question)
        if credentials is not None and any(challenge.scheme == "basic" for challenge in challenges):
            return credentials.basic()
        return None

    async def _token(self, question: TokenRequest) -> str:
        headers = {"Authorization": question.authorization} if question.authorization else {}
        response = await self._ask("POST" if question.form else "GET", question.url, headers, question.form)
        try:
            if response.status in _TRY_AGAIN:
                raise TransientError(f"its token service {question.url.host} answers HTTP {response.status}")
            if response.status != 200:
                raise refused(response.status, self.endpoint, self._reference, self._image, self._found)
            answer = json.loads(await _head(response, _LONGEST_TOKEN_BYTES))
        except ValueError as error:
            raise TransientError(f"its token service {question.url.host} answers no JSON") from error
        finally:
            response.close()
        token = (answer.get("token") or answer.get("access_token")) if isinstance(answer, dict) else None
        if not isinstance(token, str):
            raise TransientError(f"its token service {question.url.host} answers without a token")
        return f"Bearer {token}"

    async def _failure(self, response: aiohttp.ClientResponse, wanted: str) -> Exception:
        body = await _head(response, _LONGEST_ERROR_BYTES)
        if response.status in _TRY_AGAIN:
            return TransientError(f"HTTP {response.status}", _seconds(response.headers.get("Retry-After", "")))
        if response.status == 416:  # asked for the rest, where a connection ended early
            return TransientError("HTTP 416: it has fewer bytes than the manifest says")
        if response.status in (401, 403):
            return refused(response.status, self.endpoint, self._reference, self._image, self._found)
        if response.status == 404 and "/manifests/" in response.url.path:
            return missing(_codes(body), self.endpoint, self._reference, self._image)
        return unexpected(response.status, body, self.endpoint, wanted)


async def _head(response: aiohttp.ClientResponse, most: int) -> bytes:
    """The first *most* bytes of the body."""
    body = b""
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) >= most:
            break
    return body[:most]


def _codes(body: bytes) -> frozenset[str]:
    """The codes in a registry's own error; none when the body is something else."""
    try:
        return frozenset(str(error["code"]) for error in json.loads(body)["errors"])
    except (ValueError, LookupError, TypeError):
        return frozenset()


def _seconds(retry_after: str) -> float:
    return float(retry_after) if retry_after.isdecimal() and len(retry_after) < 6 else 0.0
