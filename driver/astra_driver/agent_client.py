"""
This machine's agent, by its unix socket. A call is bounded and safe to repeat; nothing is kept here.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import TypeVar
from urllib.parse import urlencode

from pydantic import ValidationError

from astra_agent import errors
from astra_agent.errors import AstraError, DeadlineExceeded, InvalidRequest, NotFound, Unavailable
from astra_agent.wire import (
    PROTOCOL,
    AgentHealth,
    ExecRequest,
    MachineFacts,
    SignalRequest,
    SlotEnding,
    SlotRequest,
    SlotStatus,
    SlotUsage,
    StopRequest,
    Wire,
)
from astra_driver import unix_http
from astra_driver.unix_http import WebSocket

_CALL_S = 5.0
_SILENCE_S = 15.0
"""The agent says something three times as often to whoever watches."""
_LINE_BYTES = 1024**2
_MESSAGE_BYTES = 4 * 1024**2
M = TypeVar("M", bound=Wire)
_ERRORS: dict[str, type[AstraError]] = {
    cls.__name__: cls for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, AstraError)
}


class AgentClient:
    """
    Every method raises:

        Unavailable: nobody answers at *socket*, or another version does.
        DeadlineExceeded: no answer in time; what was asked for may have happened.
        and what the agent itself answers: InvalidRequest, NotFound, Conflict, HostFault, Unavailable.
    """

    def __init__(self, socket: str) -> None:
        self.socket = socket

    # What it is ---------------------------------------------------------------------------------------------------

    async def health(self) -> AgentHealth:
        """Of whatever version; `check_protocol` judges it."""
        text = await self._ask("GET", "/v1/health")
        try:
            known = {key: value for key, value in json.loads(text).items() if key in AgentHealth.model_fields}
            return AgentHealth.model_validate(known)
        except (ValueError, AttributeError) as error:
            raise Unavailable(f"who answers at {self.socket} is no agent of this version") from error

    async def facts(self) -> MachineFacts:
        return self._read(MachineFacts, await self._ask("GET", "/v1/facts"))

    # Slots --------------------------------------------------------------------------------------------------------

    async def put(self, request: SlotRequest) -> SlotStatus:
        """Returns once the agent has recorded the slot."""
        text = await self._ask("PUT", f"/v1/slots/{request.slot}", request.model_dump_json())
        return self._read(SlotStatus, text)

    async def wait(self, slot: str, timeout_s: float) -> SlotEnding | None:
        """How it ended; None when it has not within *timeout_s*."""
        text = await self._ask("GET", f"/v1/slots/{slot}/wait?timeout_s={timeout_s:g}", timeout_s=timeout_s + _CALL_S)
        return self._read(SlotEnding, text) if text else None

    async def stop(self, slot: str, request: StopRequest) -> None:
        await self._ask("POST", f"/v1/slots/{slot}/stop", request.model_dump_json())

    async def destroy(self, slot: str, incarnation: str) -> None:
        """Whatever is left of this incarnation goes; none of it will come any more."""
        query = urlencode({"code": 137, "reason": "Destroyed", "incarnation": incarnation})
        await self._ask("DELETE", f"/v1/slots/{slot}?{query}")

    async def signal(self, slot: str, request: SignalRequest) -> None:
        await self._ask("POST", f"/v1/slots/{slot}/signal", request.model_dump_json())

    async def usage(self, slot: str) -> SlotUsage:
        return self._read(SlotUsage, await self._ask("GET", f"/v1/slots/{slot}/usage"))

    # Streams ------------------------------------------------------------------------------------------------------

    async def watch(self) -> AsyncIterator[SlotStatus | None]:
        """
        The status of each slot as it is, then None, then each change; None again when there is none for a while. Ends
        with an error only.
        """
        try:
            async with unix_http.request(self.socket, "GET", "/v1/watch", None, _SILENCE_S) as answer:
                if answer.status != 200:
                    raise self._error(answer.status, await answer.text())
                async for line in answer.lines(_LINE_BYTES):
                    yield self._read(SlotStatus, line.decode()) if line else None
        except (OSError, ValueError) as error:
            raise self._away(error) from error
        raise Unavailable(f"the agent at {self.socket} has ended")

    @contextlib.asynccontextmanager
    async def exec(self, request: ExecRequest) -> AsyncIterator[WebSocket]:
        """A connection in the frames that `ExecRequest` describes, with the request sent."""
        target = f"/v1/slots/{request.slot}/exec"
        try:
            async with unix_http.websocket(self.socket, target, _MESSAGE_BYTES, _CALL_S) as connection:
                await connection.send(request.model_dump_json())
                yield connection
        except OSError as error:
            raise self._away(error) from error

    # Inside -------------------------------------------------------------------------------------------------------

    async def _ask(self, method: str, path: str, body: str | None = None, timeout_s: float = _CALL_S) -> str:
        try:
            async with asyncio.timeout(timeout_s):
                async with unix_http.request(self.socket, method, path, body, timeout_s) as answer:
                    text = await answer.text()
        except TimeoutError as error:
            raise DeadlineExceeded(f"the agent at {self.socket} does not answer within {timeout_s:g} s") from error
        except (OSError, ValueError) as error:
            raise self._away(error) from error
        if answer.status >= 400:
            raise self._error(answer.status, text)
        return text

    def _away(self, error: Exception) -> Unavailable:
        why = f" ({error.strerror})" if isinstance(error, OSError) and error.strerror else ""
        return Unavailable(f"the agent of this machine does not answer at {self.socket}{why}")

    def _error(self, status: int, text: str) -> AstraError:
        """What the agent has said, as the error that it was there."""
        try:
            said = json.loads(text)["error"]
            message, cls = str(said["message"]), _ERRORS.get(said["code"], Unavailable)
        except (ValueError, KeyError, TypeError):
            return NotFound(text[:200]) if status == 404 else Unavailable(f"HTTP {status} of the agent: {text[:200]}")
        return InvalidRequest(message, said.get("field")) if cls is InvalidRequest else cls(message)

    def _read(self, model: type[M], text: str) -> M:
        try:
            return model.model_validate_json(text)
        except ValidationError as error:
            raise Unavailable(f"the agent at {self.socket} says what is not known here: {error}") from error


def check_protocol(health: AgentHealth) -> str | None:
    """A sentence when that agent is of another protocol than this plugin."""
    if health.protocol == PROTOCOL:
        return None
    older = "agent" if health.protocol < PROTOCOL else "plugin"
    return (
        f"the agent ({health.version}) speaks protocol {health.protocol}, this plugin {PROTOCOL}: "
        f"install the same version of both; the {older} is the older one"
    )
