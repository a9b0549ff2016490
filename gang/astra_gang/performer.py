"""
Does what the core decides: directives to agents at once, requests to the engine in order, one run at a time.

It keeps no truth. What is wanted is read off the state (`outstanding`), again after every change; what it remembers is
only when each thing was last tried, so that an answer which does not come is asked for again, with growing pauses.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Protocol

from astra_agent import wire
from astra_agent.errors import AstraError, NoCapacity, Unavailable
from astra_gang.clock import Clock
from astra_gang.core import (
    Arm,
    Decision,
    Event,
    GiveBack,
    GivenBack,
    NotReserved,
    Reserve,
    Reserved,
    RunState,
    Start,
    Stop,
    outstanding,
)
from astra_gang.engine import Engine
from astra_gang.environment import environment
from astra_gang.hosts import hosts, run_names
from astra_gang.plan import offer, placed
from astra_gang.roster import Roster
from astra_gang.store import RunRecord

_log = logging.getLogger(__name__)

RETRY_FIRST_S = 3.0
"""An answer takes about 0.1 s; one that was lost is missed after this."""
RETRY_MAX_S = 30.0

Post = Callable[[str, Event], Awaitable[None]]


class Agents(Protocol):
    def send(self, machine: str, directive: wire.Directive) -> bool:
        """Hand it to the machine's link, in order; False when there is none now. Never waits."""
        ...

    def tell(self, machine: str, names: wire.Names) -> bool:
        """As `send`."""
        ...


@dataclass(slots=True)
class _Tried:
    machine: str | None
    again_at: float
    pause_s: float


class Performer:
    """
    Args:
        post: Feeds an outcome back to the loop; returns once it is recorded.
        term: Of this coordinator; every directive carries it.
        versions: Growing numbers for names: within a term, what is told later is newer.
    """

    def __init__(
        self, *, clock: Clock, engine: Engine, roster: Roster, post: Post, term: int, versions: Iterator[int]
    ) -> None:
        self._clock = clock
        self._roster = roster
        self._engine = engine
        self._post = post
        self._term = term
        self._versions = versions
        self._tried: dict[str, dict[Hashable, _Tried]] = {}
        self._lanes: dict[str, deque[tuple[RunRecord, Reserve | GiveBack]]] = {}
        self._in_flight: set[tuple[str, Hashable]] = set()
        self._lanes_to_open: asyncio.Queue[str] = asyncio.Queue()
        self._agents: Agents | None = None

    async def run(self, agents: Agents) -> None:
        """Own the requests to the engine until cancelled. Before it runs no machine is connected."""
        self._agents = agents
        async with asyncio.TaskGroup() as group:
            while True:
                group.create_task(self._work(await self._lanes_to_open.get()))

    def look(self, run: RunRecord) -> None:
        """Do what this run wants and what has not been tried, or not for long enough."""
        wanted = {_key(decision): decision for decision in outstanding(run.state)}
        tried = {key: note for key, note in self._tried.get(run.state.uid, {}).items() if key in wanted}
        now = self._clock.now()
        for key, decision in wanted.items():
            note = tried.get(key)
            if note is not None and now < note.again_at:
                continue
            pause_s = RETRY_FIRST_S if note is None else min(note.pause_s * 2, RETRY_MAX_S)
            tried[key] = _Tried(getattr(decision, "machine", None), now + pause_s, pause_s)
            self._do(run, key, decision)
        if tried:
            self._tried[run.state.uid] = tried
        else:
            self._tried.pop(run.state.uid, None)

    def next_due(self) -> float | None:
        """When something has to be tried again."""
        return min((note.again_at for tried in self._tried.values() for note in tried.values()), default=None)

    def due(self, now: float) -> list[str]:
        """Uids of the runs to `look` at again by *now*."""
        return [uid for uid, tried in self._tried.items() if any(note.again_at <= now for note in tried.values())]

    def forget_tries(self, machine: str) -> None:
        """Its agent has come (back): whatever it was told before may have been lost."""
        for tried in self._tried.values():
            for key in [key for key, note in tried.items() if note.machine == machine]:
                del tried[key]

    def _do(self, run: RunRecord, key: Hashable, decision: Decision) -> None:
        match decision:
            case Reserve() | GiveBack():
                self._queue(run, key, decision)
            case Arm():
                self._arm(run, decision)
            case Start(slot=slot, attempt=attempt):
                self._send(run.state, decision.machine, wire.Start(slot=slot, term=self._term, attempt=attempt))
            case Stop(slot=slot, attempt=attempt, grace_s=grace_s):
                stop = wire.Stop(slot=slot, term=self._term, attempt=attempt, grace_s=grace_s)
                self._send(run.state, decision.machine, stop)
            case _:
                pass  # Place is the planner's, Prove the prover's; sentences are events already

    def _arm(self, run: RunRecord, decision: Arm) -> None:
        """An agent that calls the leader's slot ready without an address holds up its run, until `arm_timeout_s`."""
        try:
            directive = self._arm_directive(run, decision)
        except ValueError as error:
            _log.error("not_armed run=%s slot=%s reason=%r", run.state.name, decision.slot, str(error))
            return
        self._send(run.state, decision.machine, directive)

    def _arm_directive(self, run: RunRecord, decision: Arm) -> wire.Arm:
        machines = (worker.slot.machine for worker in run.state.workers if worker.slot is not None)
        facts = {name: seen.facts for name in machines if (seen := self._roster.get(name)) is not None}
        return wire.Arm(
            slot=decision.slot,
            term=self._term,
            attempt=decision.attempt,
            env=environment(run.state, run.spec, decision.rank, facts),
            hosts=hosts(run.state),
            placed=placed(run.state, run.spec),
            worker=run.state.workers[decision.rank].name,
            names=run_names(run.state, term=self._term, version=next(self._versions)),
        )

    def _send(self, state: RunState, machine: str, directive: wire.Arm | wire.Start | wire.Stop) -> None:
        sent = self._agents is not None and self._agents.send(machine, directive)
        _log.info(
            "directive run=%s kind=%s machine=%s slot=%s attempt=%d sent=%s",
            state.name, directive.kind, machine, directive.slot, directive.attempt, sent,
        )  # fmt: skip

    # The engine ------------------------------------------------------------------------------------------------------

    def _queue(self, run: RunRecord, key: Hashable, decision: Reserve | GiveBack) -> None:
        uid = run.state.uid
        if (uid, key) in self._in_flight:
            return
        self._in_flight.add((uid, key))
        if uid in self._lanes:
            self._lanes[uid].append((run, decision))
        else:
            self._lanes[uid] = deque([(run, decision)])
            self._lanes_to_open.put_nowait(uid)

    async def _work(self, uid: str) -> None:
        """One run's requests in order; only slots that are given back next to each other go together."""
        lane = self._lanes[uid]
        while lane:
            together = [lane.popleft()]
            while lane and isinstance(lane[0][1], GiveBack) and isinstance(together[-1][1], GiveBack):
                together.append(lane.popleft())
            async with asyncio.TaskGroup() as group:
                for run, decision in together:
                    group.create_task(self._ask(run, decision))
        del self._lanes[uid]

    async def _ask(self, run: RunRecord, decision: Reserve | GiveBack) -> None:
        uid = run.state.uid
        try:
            if isinstance(decision, Reserve):
                await self._post(uid, await self._reserve(run, decision))
            else:
                await self._engine.give_back(decision.slot, decision.code, decision.reason)
                await self._post(uid, GivenBack(decision.slot))
        except AstraError as error:
            # It stays outstanding, so it is asked again.
            _log.warning("engine run=%s decision=%s reason=%r", run.state.name, type(decision).__name__, str(error))
        finally:
            self._in_flight.discard((uid, _key(decision)))

    async def _reserve(self, run: RunRecord, decision: Reserve) -> Event:
        try:
            offers = tuple(offer(run.state, run.spec, assignment) for assignment in decision.assignments)
            await self._engine.reserve(f"{run.state.uid}/{decision.reservation}", offers)
        except (NoCapacity, Unavailable) as error:
            return NotReserved(decision.reservation, str(error))
        return Reserved(decision.reservation)


def _key(decision: Decision) -> Hashable:
    """What makes two decisions the same thing to do: the reason that a slot leaves may be told better later."""
    return ("give back", decision.slot) if isinstance(decision, GiveBack) else decision
