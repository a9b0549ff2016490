"""
Leads a probe: asks the machines, keeps the evidence, follows the plan. Bytes move between the machines; here only
questions and answers do.

Every stage has a deadline, and a machine that does not answer is named and left out. When a machine is lost in the
middle, the probe looks once who can still reach whom and ends with what it has.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from astra_netprobe import doubling, plan, stats
from astra_netprobe.channel import Endpoint, Silent
from astra_netprobe.messages import (
    AllReduce,
    Answer,
    Failed,
    FindPeers,
    JoinDoubling,
    JoinRing,
    Leave,
    Open,
    Opened,
    PacketsSent,
    Peer,
    PeersFound,
    Question,
    Reduced,
    RoundTrips,
    RoundTripsDone,
    SendPackets,
    Transfer,
    Transferred,
)  # fmt: skip
from astra_netprobe.plan import PairRound, RingRound
from astra_netprobe.readings import (
    Evidence,
    Flow,
    Hop,
    LargePacket,
    Port,
    Reach,
    RoundTrip,
    Sending,
    Sized,
    Wrong,
)  # fmt: skip

KIB, MIB = 1 << 10, 1 << 20
CPU_BOUND = 0.9
_MARGIN_S = 1.5
"""For a question and its answer on the way."""
_OPEN_S = 5.0
_DOUBT_SHARE = 0.5
_JOIN_S = 0.5
"""For the connections of a pair; one that does not come is waited for no longer than one that stalls."""
_LOOK_AGAIN_S = 3.5
"""With the time that a loss takes to be seen, a probe that lost a machine ends within ten."""


@dataclass(frozen=True, slots=True)
class Settings:
    """
    Attributes:
        budget_s: For everything after the machines were found; large sizes and pairs are cut to fit.
        ring_share: Of the budget, for all-reduces around the first ring.
        iterations: Of each size, when there is time; at least two in any case.
        pair_s: How long each direction of a pair is loaded.
        reach_s: The kernel needs three to find out that nobody has an address.
        stall_s: Without a byte for so long, something is broken.
        max_bps: What each connection may send; 0: as much as goes.
    """

    small_sizes: tuple[int, ...] = (8, KIB, 64 * KIB)
    large_sizes: tuple[int, ...] = (MIB, 4 * MIB, 16 * MIB, 64 * MIB, 256 * MIB)
    budget_s: float = 20.0
    ring_share: float = 0.4
    iterations: int = 10
    small_iterations: int = 100
    pair_s: float = 0.5
    trips: int = 200
    streams: int = 1
    reach_s: float = 4.0
    packet_s: float = 1.5
    stall_s: float = 3.0
    max_bps: float = 0.0
    matrix_max: int = plan.MATRIX_MAX


class Lost(Exception):
    """A machine did not take its part any more: look who is left, and end."""


@dataclass(slots=True)
class _Machine:
    """One that answers; *peer* is how others call it."""

    endpoint: Endpoint
    peer: Peer
    processor: list[float] = field(default_factory=list)


class Conductor:
    """
    Args:
        endpoints: In the order of the run's ranks.
        watch: Is told after every step.
    """

    def __init__(
        self,
        endpoints: Sequence[Endpoint],
        settings: Settings | None = None,
        watch: Callable[[Evidence], None] | None = None,
    ) -> None:
        self._endpoints = endpoints
        self._settings = settings or Settings()
        self._watch = watch or (lambda evidence: None)
        self._machines: dict[str, _Machine] = {}
        self._tag = 0
        self._until = 0.0
        self.evidence = Evidence(machines=tuple(endpoint.name for endpoint in endpoints))

    async def run(self) -> Evidence:
        """The whole probe. May be cancelled; the channels stay the caller's to close."""
        await self._open()
        try:
            await self._reach(self._settings.reach_s)
            self._until = time.monotonic() + self._settings.budget_s
            self._leave_out_failed()
            await self._packets()
            self._leave_out_failed()
            if len(self._machines) >= 2:
                await self._all_reduces()
                await self._follow_plan()
                await self._round_trips()
        except Lost:
            await self._look_again()
        self._note(cpu_bound=self._cpu_bound())
        return self.evidence

    # Who is there -----------------------------------------------------------------------------------------------------

    async def _open(self) -> None:
        secret = secrets.token_hex(16)
        asked: dict[str, Question] = {
            endpoint.name: Open(rank=rank, secret=secret, address=endpoint.address, max_bps=self._settings.max_bps)
            for rank, endpoint in enumerate(self._endpoints)
        }
        self._machines = {
            endpoint.name: _Machine(endpoint, Peer(rank=rank, address=endpoint.address, port=0))
            for rank, endpoint in enumerate(self._endpoints)
        }
        ports = []
        for name, answer in (await self._ask_all(asked, _OPEN_S)).items():
            if isinstance(answer, Opened):
                known = self._machines[name]
                known.peer = known.peer.model_copy(update={"port": answer.port, "packet_port": answer.packet_port})
                ports.append(
                    Port(name, known.peer.address, answer.device, answer.driver, answer.mtu, answer.speed_bps,
                         answer.duplex)
                )  # fmt: skip
        self._note(ports=tuple(ports))

    async def _reach(self, limit_s: float) -> None:
        """Everybody calls everybody, both ways; takes the place of what was known before."""
        names = tuple(self._machines)
        asked: dict[str, Question] = {
            name: FindPeers(peers=self._peers(names, but=name), limit_s=limit_s) for name in names
        }
        found = []
        for name, answer in (await self._ask_all(asked, 2 * limit_s)).items():
            if isinstance(answer, PeersFound):
                found += [Reach(name, self._name(rank), outcome) for rank, outcome in answer.outcomes.items()]
        self._note(reaches=tuple(found))

    async def _packets(self) -> None:
        """Along the hops of both rings; between all of few machines."""
        names = tuple(self._machines)
        if len(names) < 2:
            return
        edges = self._edges(names)
        asked: dict[str, Question] = {
            name: SendPackets(peers=tuple(self._machines[other].peer for other in edges[name]), limit_s=2.0)
            for name in names
        }
        packets = []
        for name, answer in (await self._ask_all(asked, 4.0)).items():
            if isinstance(answer, PacketsSent):
                packets += [
                    LargePacket(name, other, answer.mtu, rank in answer.small, rank in answer.large)
                    for other in edges[name]
                    for rank in (self._machines[other].peer.rank,)
                    if other in self._machines
                ]
        self._note(packets=tuple(packets))

    def _edges(self, names: Sequence[str]) -> dict[str, list[str]]:
        if len(names) <= self._settings.matrix_max:
            return {name: [other for other in names if other != name] for name in names}
        edges: dict[str, list[str]] = {name: [] for name in names}
        for order in (tuple(names), plan.second_ring(names)):
            for name, other in zip(order, (*order[1:], order[0]), strict=True):
                edges[name].append(other)
        return edges

    def _leave_out_failed(self) -> None:
        """Until no two that are left have a broken way between them; the evidence keeps what was seen of the others."""
        ways = [(reach.source, reach.target) for reach in self.evidence.reaches if reach.outcome != "reached"]
        ways += [(hole.sender, hole.receiver) for hole in self.evidence.packets if not hole.large_arrived]
        while ways := [way for way in ways if way[0] in self._machines and way[1] in self._machines]:
            counts: dict[str, int] = {}
            for name in (name for way in ways for name in way):
                counts[name] = counts.get(name, 0) + 1
            del self._machines[max(counts, key=lambda name: counts[name])]

    async def _look_again(self) -> None:
        """Who reaches whom now."""
        await self._reach(min(self._settings.reach_s, _LOOK_AGAIN_S))

    # All-reduces ------------------------------------------------------------------------------------------------------

    async def _all_reduces(self) -> None:
        """Small messages by doubling, then the first ring through growing sizes while there is time."""
        names = tuple(self._machines)
        tag = await self._join_doubling(names)
        for size in self._settings.small_sizes:
            await self._reduce(names, tag, "doubling", size, self._settings.small_iterations)
        await self._leave(names, tag)
        tag = await self._join_ring(names)
        until = time.monotonic() + self._settings.ring_share * (self._until - time.monotonic())
        rate = 0.0
        hops: tuple[Hop, ...] = ()
        for size in self._settings.large_sizes:
            left = until - time.monotonic()
            each = size / rate if rate else 0.0
            if rate and 3 * each > left:
                break
            iterations = min(self._settings.iterations, max(2, int(left / 2 / each) - 1)) if rate else 2
            sized, hops = await self._reduce(names, tag, "ring", size, iterations)
            rate = stats.algbw(size, stats.median(sized.times_s))
        await self._leave(names, tag)
        self._note(rings=(hops,))

    async def _second_ring(self, order: tuple[str, ...]) -> None:
        tag = await self._join_ring(order)
        ring = [sized for sized in self.evidence.sizes if sized.algorithm == "ring"]
        size, seconds = ring[-1].size_bytes, stats.median(ring[-1].times_s)
        while size > MIB and 3 * seconds > max(1.0, 0.2 * (self._until - time.monotonic())):
            size, seconds = size // 2, seconds / 2
        _, hops = await self._reduce(order, tag, "ring", size, 2, keep=False)
        await self._leave(order, tag)
        self._note(rings=(*self.evidence.rings, hops))

    async def _join_ring(self, order: Sequence[str]) -> int:
        tag = self._next_tag()
        asked: dict[str, Question] = {}
        for position, name in enumerate(order):
            following, previous = order[(position + 1) % len(order)], order[position - 1]
            asked[name] = JoinRing(
                tag=tag, position=position, count=len(order), next=self._machines[following].peer,
                previous=self._machines[previous].peer.rank, streams=self._settings.streams,
                limit_s=self._settings.reach_s,
            )  # fmt: skip
        await self._ask_willing(asked, 2 * self._settings.reach_s)
        return tag

    async def _join_doubling(self, names: Sequence[str]) -> int:
        tag = self._next_tag()
        asked: dict[str, Question] = {
            name: JoinDoubling(
                tag=tag,
                position=position,
                count=len(names),
                peers=tuple((i, self._machines[names[i]].peer) for i in doubling.peers(position, len(names))),
                limit_s=self._settings.reach_s,
            )
            for position, name in enumerate(names)
        }
        await self._ask_willing(asked, 2 * self._settings.reach_s)
        return tag

    async def _reduce(
        self, order: Sequence[str], tag: int, algorithm: str, size: int, iterations: int, *, keep: bool = True
    ) -> tuple[Sized, tuple[Hop, ...]]:
        """One size, all ranks; raises Lost, with the evidence of it noted, when it broke."""
        limit_s = max(self._until - time.monotonic(), 5.0)
        question = AllReduce.model_validate(
            {"tag": tag, "algorithm": algorithm, "size_bytes": size, "iterations": iterations,
             "stall_s": self._settings.stall_s, "limit_s": limit_s}
        )  # fmt: skip
        answers = await self._ask_all(dict.fromkeys(order, question), limit_s + self._settings.stall_s)
        done = {name: answer for name, answer in answers.items() if isinstance(answer, Reduced)}
        self._note_wrong({name: answer.wrong for name, answer in done.items()})
        is_whole = len(done) == len(order) and not any(answer.broken for answer in done.values())
        hops = self._hops(order, done, is_whole=is_whole) if algorithm == "ring" else ()
        for name, answer in done.items():
            if algorithm == "ring" and size >= 4 * MIB:
                self._machines[name].processor.append(answer.processor)
        sized = _sized(algorithm, size, len(order), done)
        if keep and sized.times_s:
            self._note(sizes=(*self.evidence.sizes, sized))
        if not is_whole:
            if hops:
                self._note(rings=(*self.evidence.rings, hops))
            raise Lost
        return sized, hops

    def _hops(self, order: Sequence[str], done: Mapping[str, Reduced], *, is_whole: bool) -> tuple[Hop, ...]:
        hops = []
        for position, name in enumerate(order):
            answer = done.get(name)
            if answer is not None and answer.sent is not None:
                sending = _sending(answer)
                following = order[(position + 1) % len(order)]
                broken = not is_whole and answer.sent.is_stuck
                hops.append(Hop(name, following, sending.busy, sending.rate, sending.retransmits, broken))
        return tuple(hops)

    async def _leave(self, names: Sequence[str], tag: int) -> None:
        await self._ask_willing(dict.fromkeys(names, Leave(tag=tag)), self._settings.reach_s)

    # Pairs ------------------------------------------------------------------------------------------------------------

    async def _follow_plan(self) -> None:
        """What looks slow may take some more time than the budget: a doubt helps nobody."""
        while (left := self._until - time.monotonic()) > -_DOUBT_SHARE * self._settings.budget_s:
            present = replace(self.evidence, machines=tuple(self._machines))
            in_time = left > 0
            match self._next(present) if in_time else plan.again(present.machines, present.flows):
                case None:
                    return
                case RingRound(order):
                    await self._second_ring(order)
                case PairRound() as step:
                    await self._pair_round(step)

    def _next(self, present: Evidence) -> plan.Step | None:
        return plan.next_step(present, matrix_max=self._settings.matrix_max)

    async def _pair_round(self, step: PairRound) -> None:
        tag, seconds = self._next_tag(), self._settings.pair_s
        bounds = {
            "seconds": seconds,
            "stall_s": self._settings.stall_s,
            "limit_s": seconds + 2 * self._settings.stall_s,
        }
        asked: dict[str, Question] = {}
        for one, other in step.pairs:
            first, second = self._machines[one].peer, self._machines[other].peer
            common = {"tag": tag, "streams": self._settings.streams, **bounds}
            back: dict[str, object] = {"from_rank": second.rank} if step.both else {}
            forth: dict[str, object] = {"to": first} if step.both else {}
            asked[one] = Transfer.model_validate({**common, "to": second, **back})
            asked[other] = Transfer.model_validate({**common, "from_rank": first.rank, **forth})
        answers = await self._ask_all(asked, bounds["limit_s"] + self._settings.reach_s)
        done = {name: answer for name, answer in answers.items() if isinstance(answer, Transferred)}
        turned = [(other, one) for one, other in step.pairs if step.both]
        flows = [self._flow(one, other, done, both=step.both) for one, other in (*step.pairs, *turned)]
        for name, answer in done.items():
            self._machines[name].processor.append(answer.processor)
        self._note_wrong({flow.receiver: {self._rank(flow.sender): flow.wrong} for flow in flows if flow.wrong})
        self._note(rounds=(*self.evidence.rounds, tuple(flows)))
        if len(done) < len(asked) or any(flow.broken for flow in flows):
            raise Lost

    def _flow(self, one: str, other: str, done: Mapping[str, Transferred], *, both: bool) -> Flow:
        sender, receiver = done.get(one), done.get(other)
        sent = sender.sent if sender is not None else None
        rate = Sending(sent.seconds, sent.acked_bytes, sent.busy_s, sent.window_s).rate if sent is not None else 0.0
        return Flow(
            one, other, rate, both=both,
            reached=8 * receiver.received_bytes / receiver.received_s if receiver and receiver.received_s else 0.0,
            retransmits=sent.retransmits if sent is not None else 0,
            wrong=receiver.wrong if receiver is not None else 0,
            broken=bool(sender is None or receiver is None or sender.broken or receiver.broken),
        )  # fmt: skip

    async def _round_trips(self) -> None:
        """Of all pairs of few machines, else of neighbours in the first ring; each in one pair at a time."""
        names = tuple(self._machines)
        rounds = (
            plan.tournament(names)
            if len(names) <= self._settings.matrix_max
            else plan.disjoint(zip(names, (*names[1:], names[0]), strict=True))
        )
        for pairs in rounds:
            if time.monotonic() >= self._until:
                return
            await self._round_trip_round(pairs)

    async def _round_trip_round(self, pairs: Sequence[tuple[str, str]]) -> None:
        tag = self._next_tag()
        bounds = {"tag": tag, "count": self._settings.trips, "seconds": self._settings.pair_s,
                  "limit_s": self._settings.pair_s + self._settings.stall_s}  # fmt: skip
        asked: dict[str, Question] = {}
        for one, other in pairs:
            asked[one] = RoundTrips.model_validate({**bounds, "to": self._machines[other].peer})
            asked[other] = RoundTrips.model_validate({**bounds, "from_rank": self._rank(one)})
        answers = await self._ask_all(asked, bounds["limit_s"] + self._settings.reach_s)
        trips = []
        for one, other in pairs:
            answer = answers.get(one)
            if isinstance(answer, RoundTripsDone) and answer.times_s:
                times = answer.times_s
                middle, tail = stats.median(times), stats.quantile(times, 0.99)
                trips.append(RoundTrip(one, other, middle, tail, max(times), len(times)))
        self._note(trips=(*self.evidence.trips, *trips))

    # Asking -----------------------------------------------------------------------------------------------------------

    async def _ask_all(self, asked: Mapping[str, Question], limit_s: float) -> dict[str, Answer]:
        """Everybody at once. Who is silent is taken out and noted; a refusal of a machine's own is noted, too."""
        answers: dict[str, Answer] = {}
        gone: dict[str, str] = {}

        async def one(name: str, question: Question) -> None:
            try:
                answers[name] = await self._machines[name].endpoint.channel.ask(question, limit_s + _MARGIN_S)
            except Silent as error:
                gone[name] = f"{name} {error}"

        async with asyncio.TaskGroup() as group:
            for name, question in asked.items():
                group.create_task(one(name, question))
        gone |= {
            name: f"{name}: {answer.sentence}"
            for name, answer in answers.items()
            if isinstance(answer, Failed) and answer.rank is None
        }
        for name in gone:
            self._machines.pop(name, None)
        if gone:
            self._note(absent={**self.evidence.absent, **gone})
        return {name: answers[name] for name in asked if name in answers and name not in gone}

    async def _ask_willing(self, asked: Mapping[str, Question], limit_s: float) -> None:
        """For questions that all must take part in. Raises: Lost."""
        answers = await self._ask_all(asked, limit_s)
        if len(answers) < len(asked) or any(isinstance(answer, Failed) for answer in answers.values()):
            raise Lost

    # Notes ------------------------------------------------------------------------------------------------------------

    def _note(self, **changes: object) -> None:
        self.evidence = replace(self.evidence, **changes)  # type: ignore[arg-type]  # names and types are the fields'
        self._watch(self.evidence)

    def _note_wrong(self, found: Mapping[str, Mapping[int, int]]) -> None:
        counts = {(wrong.sender, wrong.receiver): wrong.elements for wrong in self.evidence.wrongs}
        for receiver, by_rank in found.items():
            for rank, elements in by_rank.items():
                pair = (self._name(rank), receiver)
                counts[pair] = counts.get(pair, 0) + elements
        if counts:
            self._note(wrongs=tuple(Wrong(*pair, elements) for pair, elements in counts.items()))

    def _cpu_bound(self) -> tuple[str, ...]:
        return tuple(
            name
            for name, machine in self._machines.items()
            if machine.processor and stats.median(machine.processor) > CPU_BOUND
        )

    def _peers(self, names: Sequence[str], *, but: str) -> tuple[Peer, ...]:
        return tuple(self._machines[name].peer for name in names if name != but)

    def _name(self, rank: int) -> str:
        return self._endpoints[rank].name

    def _rank(self, name: str) -> int:
        return self.evidence.machines.index(name)

    def _next_tag(self) -> int:
        self._tag += 1
        return self._tag


def _sending(answer: Reduced) -> Sending:
    sent = answer.sent
    if sent is None:
        return Sending(0.0, 0, 0.0)
    return Sending(sent.seconds, sent.acked_bytes, sent.busy_s, sent.window_s, sent.retransmits, sent.rtt_s)


def _sized(algorithm: str, size: int, ranks: int, done: Mapping[str, Reduced]) -> Sized:
    """Each iteration took as long as its slowest rank took."""
    times = [answer.times_s for answer in done.values()]
    count = min((len(row) for row in times), default=0) if len(done) == ranks else 0
    return Sized(
        size_bytes=size,
        ranks=ranks,
        algorithm="ring" if algorithm == "ring" else "doubling",
        times_s=tuple(max(row[i] for row in times) for i in range(count)),
        first_s=max((answer.first_s for answer in done.values()), default=0.0),
        wrong=sum(sum(answer.wrong.values()) for answer in done.values()),
    )
