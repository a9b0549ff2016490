"""
An agent without containers: a unix socket for the engine, a real WebSocket to the coordinator, and slots that do what
they are told at once. It keeps its slots over links and coordinators, and notes what should never happen.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from pydantic import TypeAdapter

from astra_agent import wire
from astra_netprobe.messages import QUESTION, Failed
from tests.fakes.agent_socket import FakeAgentSocket
from tests.fakes.probe_member import FakeMember
from tests.fakes.runs import facts

_TO_AGENT: TypeAdapter[wire.ToAgent] = TypeAdapter(wire.ToAgent)
_ALIVE = ("armed", "running", "stopping")


@dataclass(slots=True)
class FakeSlot:
    request: wire.SlotRequest
    rev: int = 0
    phase: wire.SlotPhase = "ready"
    detail: str = ""
    fault: wire.Fault | None = None
    term: int = 0
    attempts: dict[int, wire.AttemptStatus] = field(default_factory=dict)
    arms: dict[int, wire.Arm] = field(default_factory=dict)


class FakeAgent(FakeAgentSocket):
    """
    Attributes:
        name: Of its machine.
        held: Slots by ID, until they are finished.
        started: How often each (slot, attempt) was started.
        wrong: What should never happen and did, as sentences.
        slow: New slots stay `preparing` until `ready` is called.
        stubborn: Attempts do not end when they are told to stop.
        welcomes: Terms of the coordinators that have welcomed it.
        leased: Leases that were answered.
        unacknowledged: Reports by sequence number.
        logs: Output by (slot, attempt).
        break_off: Logs end without being closed.
        log_sent: Bytes of logs that went out.
        network: Rates of slow links by address, as `FakeMember` has them; a cluster's agents share it.
        probe_max_bps: What it sends in a probe at most by its own setting; 0: as much as goes.
        answers_probes: While it is not set, a probe waits for this machine.
        refuses_probes: A sentence, when it takes no part in any.
        own_addresses: Slots have an address of their own, `slot_address`.
        probed_slots: Of each probe the slot in whose network it was; None: in the machine's.
        probes, probes_most: Probes that it takes part in, now and at any time.
    """

    def __init__(self, name: str, folder: Path, token: str, gpus: int = 8) -> None:
        super().__init__(folder / f"{name}.sock")
        self.name = name
        self.facts = facts(name, gpus=gpus)
        self.held: dict[str, FakeSlot] = {}
        self.started: Counter[tuple[str, int]] = Counter()
        self.wrong: list[str] = []
        self.told: list[tuple[str, str]] = []
        """Slot and sentence."""
        self.slow = False
        self.stubborn = False
        self.welcomes: list[int] = []
        self.leased: list[int] = []
        self.unacknowledged: dict[int, wire.SlotStatus] = {}
        self.logs: dict[tuple[str, int], bytes] = {}
        self.break_off = False
        self.log_sent = 0
        self.network: dict[str, float] = {}
        self.probe_max_bps = 0.0
        self.answers_probes = asyncio.Event()
        self.answers_probes.set()
        self.refuses_probes = ""
        self.own_addresses = False
        self.probed_slots: list[str | None] = []
        self.probes = self.probes_most = 0
        self.looked_ahead: wire.LookAhead | None = wire.LookAhead()
        """What it says of a run that is submitted; None: it closes without a word."""
        self.boot = "boot-1"
        self._token = token
        self._seq = 0
        self._socket: aiohttp.ClientWebSocketResponse | None = None
        self._task: asyncio.Task[None] | None = None
        self._streams: set[asyncio.Task[None]] = set()

    # Link ------------------------------------------------------------------------------------------------------------

    def connect(self, url: str) -> None:
        """Keep a link to the coordinator at *url*, again and again, until `disconnect`."""
        self._task = asyncio.ensure_future(self._keep_link(url))

    async def disconnect(self) -> None:
        """Idempotent."""
        for task in (*self._streams, self._task):
            if task is not None:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
        self._task = None

    async def stop(self) -> None:
        await self.disconnect()
        await super().stop()

    async def _keep_link(self, url: str) -> None:
        async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {self._token}"}) as session:
            while True:
                with suppress(aiohttp.ClientError, ConnectionError):
                    async with session.ws_connect(f"{url}/v1/agents/link") as socket:
                        await self._speak(session, url, socket)
                await asyncio.sleep(0.02)

    async def _speak(self, session: aiohttp.ClientSession, url: str, socket: aiohttp.ClientWebSocketResponse) -> None:
        statuses = tuple(self.status(slot) for slot in self.held)
        await self._send(socket, wire.Hello(version="0", boot=self.boot, facts=self.facts, slots=statuses))
        for seq, status in sorted(self.unacknowledged.items()):
            await self._send(socket, wire.Report(seq=seq, status=status))
        self._socket = socket
        try:
            async for message in socket:
                match _TO_AGENT.validate_json(message.data):
                    case wire.Welcome(term=term):
                        self.welcomes.append(term)
                    case wire.LeaseAck(n=n):
                        self.leased.append(n)
                    case wire.ReportAck(seq=seq):
                        self.unacknowledged.pop(seq, None)
                    case wire.DirectiveMessage(directive=directive):
                        await self.obey(directive)
                    case wire.OpenStream() as opened:
                        task = asyncio.ensure_future(self._stream(session, url, opened))
                        self._streams.add(task)
                        task.add_done_callback(self._streams.discard)
        finally:
            self._socket = None

    async def _send(self, socket: aiohttp.ClientWebSocketResponse | None, message: wire.Wire) -> None:
        if socket is not None:
            with suppress(ConnectionError):
                await socket.send_str(message.model_dump_json())

    async def say(self, message: wire.Wire) -> None:
        await self._send(self._socket, message)

    async def lease(self, n: int) -> None:
        await self.say(wire.Lease(n=n))

    # Slots -----------------------------------------------------------------------------------------------------------

    def on_put(self, slot: str, request: wire.SlotRequest) -> None:
        if slot not in self.held:
            self.held[slot] = FakeSlot(request, phase="preparing" if self.slow else "ready")
            self._report_soon(slot)

    def on_finish(self, slot: str) -> None:
        self.held.pop(slot, None)

    async def ready(self, slot: str) -> None:
        self.held[slot].phase = "ready"
        await self.report(slot)

    async def fail(self, slot: str, detail: str, fault: wire.Fault) -> None:
        held = self.held[slot]
        held.phase, held.detail, held.fault = "failed", detail, fault
        await self.report(slot)

    async def exit(self, slot: str, code: int, attempt: int | None = None) -> None:
        """The program of the newest, or of this, attempt ends."""
        held = self.held[slot]
        number = max(held.attempts) if attempt is None else attempt
        held.attempts[number] = wire.AttemptStatus(attempt=number, state="exited", code=code)
        await self.report(slot)

    @property
    def slot_address(self) -> str:
        """Of the slots here: they have the machine's, or all one other."""
        return self.facts.address.replace("10.0.", "10.99.", 1) if self.own_addresses else self.facts.address

    def status(self, slot: str) -> wire.SlotStatus:
        held = self.held[slot]
        return wire.SlotStatus(
            slot=slot,
            rev=held.rev,
            run=held.request.run,
            worker=held.request.worker,
            phase=held.phase,
            detail=held.detail,
            fault=held.fault,
            address=self.slot_address if held.phase == "ready" else None,
            port=29500 if held.phase == "ready" else None,
            term=held.term,
            attempts=tuple(held.attempts[number] for number in sorted(held.attempts)),
            engine_ref=held.request.engine_ref,
            incarnation=held.request.incarnation,
            starts=held.request.starts,
        )

    def forget_everything(self) -> None:
        """The machine was booted, or its agent's state removed."""
        self.held.clear()
        self.slots.clear()
        self.unacknowledged.clear()
        self.boot += "'"

    def running(self) -> list[tuple[str, int]]:
        """(slot, attempt) of every program that runs."""
        return [(s, a.attempt) for s, h in self.held.items() for a in h.attempts.values() if a.state == "running"]

    async def say_again(self, status: wire.SlotStatus) -> None:
        """A report that was on its way for long."""
        self._seq += 1
        self.unacknowledged[self._seq] = status
        await self._send(self._socket, wire.Report(seq=self._seq, status=status))

    async def obey(self, directive: wire.Directive) -> None:
        held = self.held.get(directive.slot)
        if held is None:
            if not isinstance(directive, wire.Tell):
                await self._send(self._socket, wire.SlotGone(slot=directive.slot))
            return
        if directive.term < held.term:
            self.wrong.append(f"{directive.kind} of term {directive.term} after {held.term}")
            return
        held.term = directive.term
        match directive:
            case wire.Arm(attempt=attempt) if attempt not in held.attempts:
                held.arms[attempt] = directive
                self._move(held, attempt, "armed")
            case wire.Start(attempt=attempt) if held.attempts[attempt].state == "armed":
                older = [a for n, a in held.attempts.items() if n < attempt and a.state in _ALIVE]
                if older:
                    self.wrong.append(f"attempt {attempt} of {directive.slot} started beside {older[0].attempt}")
                self.started[directive.slot, attempt] += 1
                self._move(held, attempt, "running")
            case wire.Stop(attempt=attempt):
                for number, seen in held.attempts.items():
                    if number <= attempt and seen.state in _ALIVE and not self.stubborn:
                        self._move(held, number, "exited", code=143)
            case wire.Finish(code=code, reason=reason):
                self.finish(directive.slot, code, reason)
            case wire.Tell(sentence=sentence):
                self.told.append((directive.slot, sentence))
                return
            case _:
                return
        await self.report(directive.slot)

    def _move(self, held: FakeSlot, attempt: int, state: wire.AttemptState, **more: Any) -> None:
        held.attempts[attempt] = wire.AttemptStatus(attempt=attempt, state=state, **more)

    def _report_soon(self, slot: str) -> None:
        task = asyncio.ensure_future(self.report(slot))
        self._streams.add(task)
        task.add_done_callback(self._streams.discard)

    async def report(self, slot: str) -> None:
        if slot not in self.held:
            return
        self.held[slot].rev += 1
        await self.say_again(self.status(slot))

    # Streams ---------------------------------------------------------------------------------------------------------

    def streams_open(self) -> int:
        return len(self._streams)

    async def _stream(self, session: aiohttp.ClientSession, url: str, opened: wire.OpenStream) -> None:
        async with session.ws_connect(f"{url}/v1/agents/streams/{opened.stream}") as socket:
            match opened.request:
                case wire.LogsRequest() as request:
                    await self._send_log(socket, request)
                case wire.LookupRequest() as lookup:
                    await socket.send_str(self.look_up(lookup).model_dump_json())
                case wire.ExecRequest() as wanted:
                    await self._echo(socket, wanted)
                case wire.InventoryRequest():
                    await socket.send_str(json.dumps({"machine": self.name}))
                case wire.LookAheadRequest():
                    if self.looked_ahead is not None:
                        await socket.send_str(self.looked_ahead.model_dump_json())
                case wire.ProbeRequest(slot=slot):
                    self.probed_slots.append(slot)
                    await self._take_part(socket, slot)

    async def _take_part(self, socket: aiohttp.ClientWebSocketResponse, slot: str | None) -> None:
        """Until the other side closes, whatever it has asked meanwhile."""
        asked: asyncio.Queue[str] = asyncio.Queue()
        answering = asyncio.ensure_future(self._answer_probe(socket, asked, slot))
        self.probes += 1
        self.probes_most = max(self.probes_most, self.probes)
        try:
            async for message in socket:
                asked.put_nowait(message.data)
        finally:
            answering.cancel()
            self.probes -= 1

    async def _answer_probe(
        self, socket: aiohttp.ClientWebSocketResponse, asked: asyncio.Queue[str], slot: str | None
    ) -> None:
        member = FakeMember(self.network, self.probe_max_bps)
        while True:
            question = QUESTION.validate_json(await asked.get())
            await self.answers_probes.wait()
            why = self.refuses_probes
            if slot is not None and slot not in self.held:
                why = f"there is no slot {slot} on {self.name}"
            refusal = Failed(sentence=why) if why else None
            await socket.send_str((refusal or member.answer(question)).model_dump_json())

    def look_up(self, request: wire.LookupRequest) -> wire.Lookup:
        """Every name is 10.0.0.1, but for `nobody`, which can't be asked about."""
        if request.name == "nobody":
            return wire.Lookup(error="the name server can't be asked: Connection refused")
        record = wire.LookupRecord(name=f"{request.name}.", type=request.type, ttl_s=1, data="10.0.0.1")
        return wire.Lookup(server="169.254.53.53", rcode="NOERROR", took_s=0.001, records=(record,))

    async def _send_log(self, socket: aiohttp.ClientWebSocketResponse, request: wire.LogsRequest) -> None:
        log = self.logs.get((request.slot, request.attempt or 0))
        if log is None:
            await socket.close(code=4404, message=b"there is no attempt with a log on this machine")
            return
        for place in range(0, len(log), 65536):
            await socket.send_bytes(log[place : place + 65536])
            self.log_sent = min(place + 65536, len(log))
        await socket.close(code=1001 if self.break_off else 1000)

    async def _echo(self, socket: aiohttp.ClientWebSocketResponse, request: wire.ExecRequest) -> None:
        """Say the command, then everything that comes on standard input, until its end."""
        await socket.send_bytes(b"\1" + " ".join(request.command).encode())
        async for message in socket:
            if message.type is aiohttp.WSMsgType.BINARY:
                await socket.send_bytes(b"\1" + message.data)
            else:
                await socket.send_str(wire.ExecExit(code=7).model_dump_json())
                return
