"""What names of a workspace are told to its workers, and what one of them would be answered now."""

from __future__ import annotations

from typing import get_args

from aiohttp import WSMsgType
from pydantic import TypeAdapter, ValidationError

from astra_agent.errors import Conflict, InvalidRequest, NotFound, Unavailable
from astra_agent.wire import DnsName, Lookup, LookupRequest, RecordType
from astra_gang import view
from astra_gang.core import Phase, Worker
from astra_gang.hosts import run_names
from astra_gang.loop import Loop
from astra_gang.query import Query
from astra_gang.store import RunRecord
from astra_gang.streams import Streams

ANSWER_S = 10.0
"""From asking an agent to its answer."""
_NAME: TypeAdapter[str] = TypeAdapter(DnsName)
_TYPE: TypeAdapter[RecordType] = TypeAdapter(RecordType)


class Naming:
    def __init__(self, *, loop: Loop, streams: Streams) -> None:
        self._loop = loop
        self._streams = streams

    def told(self, workspace: str) -> view.Json:
        """Of every live run, in order of their names: what name servers answer."""
        runs = [run.state for run in self._loop.ledger.all() if run.state.workspace == workspace]
        live = sorted((run for run in runs if run.phase is not Phase.ENDED), key=lambda run: run.name)
        names = (run_names(run, term=0, version=0) for run in live)
        return {"items": [one.model_dump(mode="json", exclude={"term", "version", "workspace"}) for one in names]}

    async def lookup(self, run: RunRecord, worker: Worker, query: Query) -> view.Json:
        """
        Raises:
            InvalidRequest: A parameter is wrong.
            Conflict: The worker has no slot now.
            NotFound: Its agent can ask nobody for it; the sentence says why.
            Unavailable: Its machine is not connected, or does not answer.
        """
        name, rtype = _parameters(query)
        slot = worker.slot
        if slot is None:
            raise Conflict(f"{worker.name} has no slot now: nobody asks for names there")
        async with self._streams.open(slot.machine, LookupRequest(slot=slot.id, name=name, type=rtype)) as agent:
            try:
                message = await agent.receive(timeout=ANSWER_S)
            except TimeoutError as error:
                raise Unavailable(f"{slot.machine} does not answer within {ANSWER_S:g} s") from error
        found = _lookup(message.data) if message.type is WSMsgType.TEXT else None
        if found is None:
            raise Unavailable(f"the agent of {slot.machine} broke off instead of an answer")
        if found.error:
            raise NotFound(found.error)
        about = {"as": worker.name, "machine": slot.machine, "name": name, "type": rtype}
        return about | found.model_dump(mode="json", exclude={"kind", "error"})


def _parameters(query: Query) -> tuple[str, RecordType]:
    name, rtype = query.text("name") or "", (query.text("type") or "A").upper()
    try:
        _NAME.validate_python(name)
    except ValidationError as error:
        sentence = f"name is {name[:64]!r}: it must be labels of 1 to 63 bytes with dots between"
        raise InvalidRequest(sentence, "name") from error
    try:
        return name, _TYPE.validate_python(rtype)
    except ValidationError as error:
        there = ", ".join(get_args(RecordType))
        raise InvalidRequest(f"type is {rtype[:64]!r}: it must be one of {there}", "type") from error


def _lookup(text: str) -> Lookup | None:
    try:
        return Lookup.model_validate_json(text)
    except ValidationError:
        return None
