"""
Probes of the network for a caller of the API: where a run would go, and a way to a machine's part in a probe.

The caller leads the probe; here questions and answers are only handed on. Who may do so has the operator's token.
"""

from __future__ import annotations

from collections.abc import Mapping

from aiohttp import web
from pydantic import ValidationError

from astra_agent.errors import InvalidRequest, NoCapacity, NotFound, Unavailable
from astra_agent.wire import ProbeRequest
from astra_gang import plan
from astra_gang.core import SPARE
from astra_gang.engine import Engine
from astra_gang.placement import NotPlaceable
from astra_gang.query import Query
from astra_gang.spec import parse
from astra_gang.streams import MESSAGE_MAX, Streams, join

_PING_S = 30.0
_CLOSE_S = 3.0


class Probing:
    def __init__(self, engine: Engine, streams: Streams) -> None:
        self._engine = engine
        self._streams = streams

    async def take_part(self, request: web.Request) -> web.WebSocketResponse:
        """
        `GET /v1/machines/<machine>/probe`, a WebSocket: questions and answers as `wire.ProbeRequest` says, with
        `?slot=` in the network of a slot there.

        Raises:
            NotFound: There is no such machine. A slot that is not there is told by its agent.
            Unavailable: It is not connected.
        """
        slot = Query(request, ("slot",)).text("slot")
        try:
            asked = ProbeRequest(slot=slot)
        except ValidationError as error:
            raise InvalidRequest(f"slot is {(slot or '')[:64]!r}: that is no slot's ID", "slot") from error
        machine = request.match_info["machine"]
        connected = {found.facts.name: found.connected for found in await self._engine.machines()}
        if machine not in connected:
            raise NotFound(f"there is no machine {machine[:64]}: there are {', '.join([*connected][:16]) or 'none'}")
        if not connected[machine]:
            raise Unavailable(f"machine {machine} is not connected: its agent does not run, or can't reach us")
        client = web.WebSocketResponse(timeout=_CLOSE_S, max_msg_size=MESSAGE_MAX, heartbeat=_PING_S)
        if not client.can_prepare(request).ok:
            raise InvalidRequest("a probe needs a WebSocket: send the headers of its hand-shake")
        async with self._streams.open(machine, asked) as agent:
            await client.prepare(request)
            await join(agent, client)
            await client.close()
        return client

    async def place(self, document: object) -> Mapping[str, object]:
        """
        Machines in order of rank, as the run of *document* would get them now.

        Raises:
            InvalidRequest: The document is no run that can be.
            NoCapacity: There is no room; the sentence says for what.
        """
        spec = parse(document)
        machines = await self._engine.machines()
        found = plan.where(spec, machines)
        if isinstance(found, NotPlaceable):
            raise NoCapacity(found.reason)
        addresses = {machine.facts.name: machine.facts.address for machine in machines}
        items = [
            {"rank": assignment.rank, "name": assignment.machine, "address": addresses[assignment.machine]}
            for assignment in found.assignments
            if assignment.rank != SPARE
        ]
        return {
            "machines": items, "tier": found.tier, "domain": found.domain, "why": found.why, "min_gbps": spec.min_gbps,
        }  # fmt: skip
