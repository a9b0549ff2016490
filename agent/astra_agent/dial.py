"""Connections to the coordinator, made in the network of this machine: cutting that off cuts its agent off, too."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import aiohttp

from astra_agent import namespaces
from astra_agent.config import MIB, AgentConfig
from astra_agent.errors import HostFault, Unavailable

_HANDSHAKE_S = 10.0
_CLOSE_S = 2.0
_MESSAGE_MAX_BYTES = 16 * MIB


class Dialer:
    """An asynchronous context manager; connections that it made end with it."""

    def __init__(self, config: AgentConfig) -> None:
        self._config = config
        self._session: aiohttp.ClientSession | None = None

    @property
    def netns(self) -> Path | None:
        """The network that it dials from."""
        return self._config.netns

    @property
    def probe_max_gbps(self) -> float:
        """What this machine sends in a probe at most; 0: as much as goes."""
        return self._config.probe_max_gbps

    async def __aenter__(self) -> Self:
        connector = aiohttp.TCPConnector(socket_factory=_sockets_of(self._config.netns), force_close=True)
        self._session = aiohttp.ClientSession(connector=connector)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def dial(self, path: str) -> aiohttp.ClientWebSocketResponse:
        """
        A WebSocket to *path* on the coordinator.

        Raises:
            Unavailable: nobody answers there, or it answers no. One sentence says which.
        """
        if self._session is None:
            raise RuntimeError("the dialer has not been entered")
        url = self._config.coordinator.rstrip("/") + path
        try:
            async with asyncio.timeout(_HANDSHAKE_S):
                return await self._session.ws_connect(
                    url,
                    headers=self._authorization(),
                    max_msg_size=_MESSAGE_MAX_BYTES,
                    timeout=aiohttp.ClientWSTimeout(ws_close=_CLOSE_S),
                )
        except aiohttp.WSServerHandshakeError as error:
            hint = "; see token_file" if error.status in (401, 403) else ""
            raise Unavailable(f"the coordinator at {url} answers {error.status}{hint}") from error
        except TimeoutError as error:
            raise Unavailable(f"the coordinator at {url} does not answer within {_HANDSHAKE_S:g} s") from error
        except (aiohttp.ClientError, OSError, HostFault) as error:
            raise Unavailable(f"the coordinator at {url} is not reached: {error}") from error

    def _authorization(self) -> dict[str, str]:
        path = self._config.token_file
        if path is None:
            return {}
        try:
            return {"Authorization": f"Bearer {path.read_text().strip()}"}
        except OSError as error:
            raise Unavailable(f"token_file {path} can't be read: {error.strerror}") from error


def _sockets_of(netns: Path | None) -> Callable[[Any], socket.socket]:
    """Makes each socket inside the namespace; it stays there wherever it is used."""

    def make(address: Any) -> socket.socket:
        family, kind, protocol, *_ = address
        return namespaces.inside(netns, lambda: socket.socket(family, kind, protocol))

    return make


async def first_of(*works: Coroutine[Any, Any, None]) -> None:
    """Do all at once; the first that ends ends the others, and what it raises is raised here."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()
