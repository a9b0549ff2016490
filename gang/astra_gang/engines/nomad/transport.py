"""
One request to Nomad's HTTP API, with a bound, the namespace on it, and the token as it is in its file now.

A read is asked again, with growing pauses, while Nomad is busy, restarts or elects a leader. A write is asked once: who
does not hear its answer looks what became of it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, Self

import aiohttp
from yarl import URL

from astra_agent.errors import AstraError, InvalidRequest, Unavailable
from astra_gang.engines.nomad.refusals import Call, Denied, Need, of_token, refusal
from astra_gang.engines.pauses import pauses

_log = logging.getLogger(__name__)

PATIENCE_S = 15.0
"""How long a read that fails is asked again. An election takes a few seconds."""
ANSWER_S = 10.0
"""For an answer that Nomad does not hold back."""
_AGAIN_FIRST_S = 0.1
_TOKEN_S = 2.0
"""For what Nomad says of a token, on top of the answer that it explains."""
_CONNECT_S = 5.0
_CONNECTIONS = 48
"""Of the 100 that a server lets one address have by default."""
_DOTS_OF_IDENTITY = 2
"""The identity of a job is a JWT; a token of the ACLs is a UUID."""
_JITTER = 16
"""Nomad holds a blocking query up to this part of its wait longer."""


@dataclass(frozen=True, slots=True)
class Access:
    """
    Where Nomad is, and as whom we come.

    Attributes:
        address: `http://` or `https://`, host and port of any server or client.
        token_file: Read at every call, so that it may be replaced; None: no ACLs.
        ca_file: Of the servers' certificate; None: the system's.
        cert_file, key_file: Of a client certificate, where Nomad wants one.
    """

    address: str
    token_file: Path | None = None
    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None

    def token(self) -> str | None:
        """
        Raises:
            Unavailable: The file can't be read now.
        """
        if self.token_file is None:
            return None
        try:
            return self.token_file.read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise Unavailable(f"token_file {self.token_file} can't be read ({error})") from error

    def called(self) -> str:
        return f"the token in {self.token_file}" if self.token_file else "a caller without a token"

    def tls(self) -> ssl.SSLContext | bool:
        """
        Raises:
            InvalidRequest: A file is no certificate or key.
        """
        if not self.address.startswith("https:"):
            return True
        try:
            context = ssl.create_default_context(cafile=str(self.ca_file) if self.ca_file else None)
            if self.cert_file is not None:
                context.load_cert_chain(self.cert_file, self.key_file)
        except (OSError, ssl.SSLError) as error:
            raise InvalidRequest(
                f"[engine] ca_file, cert_file or key_file can't be used ({error})", "engine"
            ) from error
        return context


@dataclass(frozen=True, slots=True)
class Answered:
    """*index*: of `X-Nomad-Index`, for a blocking query; 0 where the answer has none."""

    status: int
    body: Any
    index: int = 0


class Transport:
    """Used inside `async with`."""

    def __init__(self, access: Access, patience_s: float = PATIENCE_S) -> None:
        self.access = access
        self._patience_s = patience_s
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        connector = aiohttp.TCPConnector(limit=_CONNECTIONS, ssl=self.access.tls())
        self._session = aiohttp.ClientSession(connector=connector)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()

    async def read(
        self,
        path: str,
        what: str,
        need: Need,
        *,
        namespace: str,
        index: int = 0,
        wait_s: float = 0.0,
        query: Mapping[str, str] | None = None,
    ) -> Answered:
        """
        GET, until Nomad answers or patience is over. With *index*, it answers once that is exceeded, or after *wait_s*.

        Raises:
            NotFound, InvalidRequest, Unavailable: As `refusals.refusal` says.
        """
        asked = dict(query or {})
        if index:
            asked |= {"index": str(index), "wait": f"{wait_s:g}s"}
        within_s = ANSWER_S + (wait_s + wait_s / _JITTER if index else 0.0)
        now = asyncio.get_running_loop().time
        # Of one that Nomad holds back for a while, from its first failure.
        until = None if index else now() + self._patience_s
        for pause_s in pauses(_AGAIN_FIRST_S):
            try:
                return await self.ask("GET", path, what, need, namespace=namespace, query=asked, within_s=within_s)
            except Unavailable as error:
                until = now() + self._patience_s if until is None else until
                if now() + pause_s > until:
                    raise
                _log.info("nomad_asked_again what=%r reason=%r", what, str(error))
            await asyncio.sleep(pause_s)
        raise AssertionError("pauses never end")

    async def ask(
        self,
        method: str,
        path: str,
        what: str,
        need: Need,
        *,
        namespace: str,
        query: Mapping[str, str] | None = None,
        body: object = None,
        within_s: float = ANSWER_S,
        accept: tuple[int, ...] = (),
    ) -> Answered:
        """
        One request.

        Args:
            accept: Statuses that are an answer too, beside 2xx.

        Raises:
            Conflict, NotFound, InvalidRequest: Nomad refused; nothing happened.
            Unavailable: It could not, or nobody knows: an answer was lost.
        """
        call = Call(what, need, namespace, self.access.called())
        data = None if body is None else json.dumps(body)
        timeout = aiohttp.ClientTimeout(total=within_s, connect=_CONNECT_S)
        try:
            async with self.open(method, path, namespace=namespace, query=query, data=data, timeout=timeout) as answer:
                text = (await answer.read()).decode(errors="replace")
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            why = str(error) or f"no answer within {within_s:g} s"
            raise Unavailable(f"Nomad does not answer at {self.access.address} ({why})") from error
        if answer.status >= 300 and answer.status not in accept:
            raise await self.explained(refusal(call, answer.status, text), namespace)
        return Answered(answer.status, _parsed(text), _index(answer))

    async def explained(self, error: AstraError, namespace: str) -> AstraError:
        """The same, but for a denial whose reason is the token itself."""
        return (await self.bad_token(namespace) or error) if isinstance(error, Denied) else error

    async def bad_token(self, namespace: str) -> Unavailable | None:
        """That the token is none any more; None: it is one, or Nomad does not say, as of the identity of a job."""
        timeout = aiohttp.ClientTimeout(total=_TOKEN_S)
        try:
            token = self.access.token()
            if not token or token.count(".") == _DOTS_OF_IDENTITY:
                return None
            async with self.open("GET", "/v1/acl/token/self", namespace=namespace, timeout=timeout) as answer:
                body = _parsed((await answer.read()).decode(errors="replace"))
                return of_token(self.access.called(), answer.status, body, _date(answer))
        except (aiohttp.ClientError, TimeoutError, OSError, Unavailable):
            return None

    def open(
        self,
        method: str,
        path: str,
        *,
        namespace: str,
        query: Mapping[str, str] | list[tuple[str, str]] | None = None,
        data: str | None = None,
        timeout: aiohttp.ClientTimeout,
    ) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        """The bare request, for who reads the answer piece by piece. *path*: each part escaped already."""
        assert self._session is not None, "used inside `async with`"
        pairs = [("namespace", namespace), *(query.items() if isinstance(query, Mapping) else query or [])]
        url = URL(f"{self.access.address.rstrip('/')}{path}", encoded=True).with_query(pairs)
        token = self.access.token()
        headers = {"X-Nomad-Token": token} if token else {}
        if data is not None:
            headers["Content-Type"] = "application/json"
        return self._session.request(method, url, data=data, headers=headers, timeout=timeout, allow_redirects=False)


def _parsed(text: str) -> Any:
    """JSON, or the text where it is none: some answers are."""
    try:
        return json.loads(text) if text else None
    except ValueError:
        return text


def _index(answer: aiohttp.ClientResponse) -> int:
    text = answer.headers.get("X-Nomad-Index", "")
    return int(text) if text.isdecimal() else 0


def _date(answer: aiohttp.ClientResponse) -> datetime | None:
    """When it was answered, by the clock of who did."""
    try:
        return parsedate_to_datetime(answer.headers.get("Date", ""))
    except ValueError:
        return None
