"""A machine's agent as the embedded engine needs it: three requests on the agent's unix socket."""

from __future__ import annotations

import json
from pathlib import Path

import aiohttp
from yarl import URL

from astra_agent.errors import Conflict, InvalidRequest, Unavailable
from astra_agent.wire import SlotRequest

_TIMEOUT = aiohttp.ClientTimeout(total=10, connect=5)
_BASE = URL("http://agent/v1/slots/")


class AgentSocket:
    """
    Every request is safe to repeat and bounded. Raises, by whose fault it is:

        Unavailable: nobody answers, or the agent can't now.
        Conflict: the agent has another slot of this ID, or had it once.
        InvalidRequest: the agent does not take such a slot.
    """

    def __init__(self, machine: str, path: Path) -> None:
        self._machine = machine
        self._path = path
        self._session: aiohttp.ClientSession | None = None

    async def put(self, request: SlotRequest) -> None:
        """Returns once the agent has recorded the slot."""
        await self._ask("PUT", _BASE / request.slot, body=request.model_dump_json())

    async def finish(self, slot: str, code: int, reason: str) -> None:
        """Returns once the agent has recorded that the slot ends; a slot that it does not have is fine."""
        await self._ask("DELETE", (_BASE / slot).with_query(code=code, reason=reason), missing_is_fine=True)

    async def is_gone(self, slot: str) -> bool:
        return await self._ask("GET", _BASE / slot, missing_is_fine=True) == 404

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def _ask(self, method: str, url: URL, *, body: str | None = None, missing_is_fine: bool = False) -> int:
        if self._session is None:
            connector = aiohttp.UnixConnector(path=str(self._path), limit=8)
            self._session = aiohttp.ClientSession(connector=connector, timeout=_TIMEOUT)
        headers = {"Content-Type": "application/json"} if body is not None else None
        try:
            async with self._session.request(method, url, data=body, headers=headers) as answer:
                if answer.status < 300 or (missing_is_fine and answer.status == 404):
                    return answer.status
                said = await self._sentence(answer)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            why = str(error) or "no answer within 10 s"
            raise Unavailable(f"the agent of {self._machine} does not answer at {self._path} ({why})") from error
        if answer.status == 409:
            raise Conflict(said)
        if answer.status < 500:
            raise InvalidRequest(said)
        raise Unavailable(said)

    async def _sentence(self, answer: aiohttp.ClientResponse) -> str:
        text = (await answer.content.read(4096)).decode(errors="replace")
        try:
            message = str(json.loads(text)["error"]["message"])
        except (ValueError, KeyError, TypeError):
            message = f"HTTP {answer.status} {text[:200]}"
        return f"the agent of {self._machine} says: {message}"
