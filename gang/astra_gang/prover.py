"""
Leads the proof of the network of every run that wants one: a probe between its machines, through their agents, in the
network of its slots where these have addresses of their own.

What is wanted is read off the runs, so a coordinator that starts again begins anew, and what is not wanted any more, as
after a stop, ends at once. On no machine are there two proofs at a time: they would measure each other.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace

from astra_agent.errors import AstraError
from astra_agent.wire import ProbeRequest
from astra_gang import witness
from astra_gang.core import Prove, Proved, outstanding
from astra_gang.core.proof import is_proving
from astra_gang.core.slots import find_slot
from astra_gang.core.state import Slot
from astra_gang.performer import Post
from astra_gang.roster import Roster
from astra_gang.store import RunRecord
from astra_gang.streams import Streams
from astra_netprobe import plan, settings, ways
from astra_netprobe.bounds import levelled
from astra_netprobe.channel import Channel, Silent
from astra_netprobe.conductor import Conductor
from astra_netprobe.readings import Evidence
from astra_netprobe.verdict import Asked, Verdict
from astra_netprobe.ways import SocketChannel, Way

_log = logging.getLogger(__name__)

TRIES = 3
"""When a machine took no part: its agent was restarted, or had other probes to serve."""
_AGAIN_S = 3.0
_OPEN_S = 5.0
"""An agent with a link opens a stream in milliseconds."""
_MORE_MAX = 3
"""Findings beyond the first that are told."""


@dataclass(slots=True)
class _Going:
    decision: Prove
    task: asyncio.Task[None]


class Prover:
    """
    Args:
        post: Feeds the answer to the loop; returns once it is recorded.
    """

    def __init__(self, *, roster: Roster, streams: Streams, post: Post) -> None:
        self._roster = roster
        self._streams = streams
        self._post = post
        self._wanted: dict[str, tuple[RunRecord, Prove]] = {}
        self._going: dict[str, _Going] = {}
        self._changed = asyncio.Event()
        self._turns = _Turns()

    def look(self, run: RunRecord) -> None:
        """Begin what this run wants, end what it does not want any more. Idempotent; never waits."""
        uid = run.state.uid
        if is_proving(run.state):
            wanted = (found for found in outstanding(run.state) if isinstance(found, Prove))
            self._wanted[uid] = (run, next(wanted))
        elif self._wanted.pop(uid, None) is None:
            return
        self._changed.set()

    async def run(self) -> None:
        """Own the proofs until cancelled."""
        async with asyncio.TaskGroup() as group:
            while True:
                await self._changed.wait()
                self._changed.clear()
                for uid, going in list(self._going.items()):
                    wanted = self._wanted.get(uid)
                    if wanted is None or wanted[1] != going.decision:
                        going.task.cancel()
                        del self._going[uid]
                for uid, (run, decision) in self._wanted.items():
                    if uid not in self._going:
                        self._going[uid] = _Going(decision, group.create_task(self._prove(run, decision)))

    async def _prove(self, run: RunRecord, decision: Prove) -> None:
        uid, name = run.state.uid, run.state.name
        try:
            verdict = await self._verdict(run, decision)
            _log.info("proof run=%s verdict=%s sentence=%r notes=%r",
                      name, verdict.state, verdict.sentence, "; ".join(verdict.notes))  # fmt: skip
            await self._post(uid, _answer(decision, verdict))
        except AstraError as error:
            _log.warning("proof_not_recorded run=%s reason=%r", name, str(error))  # it stays outstanding
        except Exception:  # noqa: BLE001
            # What a probe makes of the answers of some machine ends no coordinator: its runs need it.
            _log.exception("bug proof run=%s", name)
            bug = Verdict("unmeasured", "the coordinator has a bug here; its log says more")
            with suppress(AstraError):
                await self._post(uid, _answer(decision, bug))
        finally:
            if (going := self._going.get(uid)) is not None and going.decision == decision:
                del self._going[uid]

    async def _verdict(self, run: RunRecord, decision: Prove) -> Verdict:
        """The core bounds the waits in here: it wants no answer any more after `prove_wait_s`."""
        limit_s = run.state.policy.prove_s
        asked = Asked.of(run.spec.min_gbps, run.state.tier)
        slots = dict(zip(decision.machines, decision.slots, strict=True))
        for turn in range(TRIES):
            await self._connected(decision.machines)
            third = self._witness(run, decision.machines) if turn == 0 else None
            taking_part = (*decision.machines, third) if third is not None else decision.machines
            async with self._turns.on(taking_part):
                ways_to = [self._way(name, find_slot(run.state, slots.get(name, ""))) for name in taking_part]
                verdict, took_part = await self._measure(ways_to, third, asked, limit_s)
            if took_part or turn == TRIES - 1:
                break
            _log.warning("proof_again run=%s reason=%r", run.state.name, verdict.sentence)
            await asyncio.sleep(_AGAIN_S)
        return verdict

    async def _connected(self, machines: Collection[str]) -> None:
        """After a restart of the coordinator its agents need a moment; one that is away for long is lost."""
        came = asyncio.Event()
        self._roster.changes.append(came.set)
        try:
            while not all(map(self._roster.is_connected, machines)):
                await came.wait()
                came.clear()
        finally:
            self._roster.changes.remove(came.set)

    def _witness(self, run: RunRecord, machines: Sequence[str]) -> str | None:
        seen = {name: found for name in self._roster.names() if (found := self._roster.get(name)) is not None}
        unfit = {machine for machine, _ in run.state.avoid} | self._turns.busy
        unfit |= {name for name in seen if self._roster.is_silent(name)}
        idle = [
            found.facts
            for name, found in seen.items()
            if found.connected and not found.slots and name not in unfit and self._roster.withdrawn(name) is None
        ]
        chosen = witness.choose([seen[name].facts for name in machines if name in seen], idle)
        return None if chosen is None else chosen.name

    async def _measure(
        self, ways_to: Sequence[Way], third: str | None, asked: Asked, limit_s: float
    ) -> tuple[Verdict, bool]:
        """The verdict, and whether all was done for it: every machine took part, and it is not for a witness's sake."""
        conductor: Conductor | None = None
        is_over = False
        try:
            async with asyncio.timeout(limit_s), ways.opened(ways_to) as endpoints:
                conductor = Conductor(endpoints, settings.within(limit_s, len(ways_to)))
                await conductor.run()
        except TimeoutError:
            is_over = True
        if conductor is None:
            return Verdict("unmeasured", f"the ways to the machines could not be opened in {limit_s:g} s"), False
        evidence = conductor.evidence
        verdict = witness.verdict(evidence, third, asked)
        if verdict.state == "sound" and (is_over or _is_open(evidence)) and _has_suspects(evidence):
            why = f"some link seems slow, but the time of {limit_s:g} s was over before it was known which"
            return replace(verdict, state="unmeasured", sentence=why), True
        # More tries show no more of what was asked, where all else is known.
        is_known = verdict.state != "unmeasured" or witness.verdict(evidence, third).state != "unmeasured"
        return verdict, is_known or not (evidence.absent or third)

    def _way(self, machine: str, slot: Slot | None) -> Way:
        """Of a machine with *slot* in the slot's network, where that has an address of its own."""
        seen = self._roster.get(machine)
        address = seen.facts.address if seen is not None else ""
        if slot is None or slot.address in (None, address):
            return Way(machine, address, self._open(machine, ProbeRequest()))
        return Way(machine, slot.address or "", self._open(machine, ProbeRequest(slot=slot.id)))

    @asynccontextmanager
    async def _open(self, machine: str, request: ProbeRequest) -> AsyncIterator[Channel]:
        stream = self._streams.open(machine, request)
        try:
            async with asyncio.timeout(_OPEN_S):
                socket = await stream.__aenter__()
        except (AstraError, TimeoutError) as error:
            raise Silent(f"takes no part: {str(error) or f'its agent opened no way in {_OPEN_S:g} s'}") from error
        try:
            yield SocketChannel(socket)
        finally:
            await stream.__aexit__(None, None, None)


class _Turns:
    """On each machine one at a time. *busy*: those that have one now."""

    def __init__(self) -> None:
        self.busy: set[str] = set()
        self._freed = asyncio.Condition()

    @asynccontextmanager
    async def on(self, machines: Collection[str]) -> AsyncIterator[None]:
        async with self._freed:
            await self._freed.wait_for(lambda: self.busy.isdisjoint(machines))
            self.busy.update(machines)
        try:
            yield
        finally:
            self.busy.difference_update(machines)
            async with self._freed:
                self._freed.notify_all()


def _answer(decision: Prove, verdict: Verdict) -> Proved:
    findings = [verdict.sentence, *verdict.more[:_MORE_MAX]]
    if left := len(verdict.more) - _MORE_MAX:
        findings += [f"and {left} more"] if left > 0 else []
    return Proved(decision.slots, verdict.state, "; ".join(findings), verdict.blamed)


def _is_open(evidence: Evidence) -> bool:
    """The plan would go on if there were time."""
    return plan.next_step(evidence) is not None


def _has_suspects(evidence: Evidence) -> bool:
    return any(plan.suspect_hops(hops) for hops in levelled(evidence).rings)
