"""
Leads a probe: asks the machines, keeps the evidence, follows the plan. Bytes move between the machines; here only
questions and answers do.

Every stage has a deadline, and a machine that does not answer is named and left out. When a machine is lost in the
middle, the probe looks once who can still reach whom and ends with what it has.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from astra_netprobe import plan
from astra_netprobe.bounds import levelled
from astra_netprobe.calling import reach_s
from astra_netprobe.channel import Endpoint
from astra_netprobe.company import Company, Lost
from astra_netprobe.messages import (
    CountErrors,
    ErrorsCounted,
    FindPeers,
    Open,
    Opened,
    PacketsSent,
    PeersFound,
    Question,
    RdmaPort,
    SendPackets,
)
from astra_netprobe.pair_rounds import PairRounds
from astra_netprobe.plan import PairRound, RingRound
from astra_netprobe.rdma_rounds import RdmaRounds
from astra_netprobe.readings import Evidence, LargePacket, Port, Reach
from astra_netprobe.reductions import Reductions
from astra_netprobe.settings import Settings

_OPEN_S = 10.0
"""A process is started for it, on a machine that may be busy."""
_COUNT_S = 0.5
_DOUBT_SHARE = 0.5
"""Of the budget, on top of it, for measuring again what looks slow."""
_LOOK_AGAIN_S = 3.5
"""With the time that a loss takes to be seen, a probe that lost a machine ends within ten."""


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
        self._settings = settings or Settings()
        self._company = Company(endpoints, watch or (lambda evidence: None))
        self._reductions = Reductions(self._company, self._settings)
        self._pairs = PairRounds(self._company, self._settings)
        self._rdma_ports: dict[str, tuple[RdmaPort, ...]] = {}
        self._rdma: RdmaRounds | None = None

    @property
    def evidence(self) -> Evidence:
        """What is known so far."""
        return self._company.evidence

    async def run(self) -> Evidence:
        """The whole probe. May be cancelled; the channels stay the caller's to close."""
        await self._open()
        try:
            await self._reach(self._settings.reach_s)
            self._company.until = time.monotonic() + self._settings.budget_s
            self._leave_out_failed()
            await self._packets()
            self._leave_out_failed()
            if len(self._company.machines) >= 2:
                await self._reductions.first()
                await self._begin_rdma()
                await self._follow_plan()
                if self._rdma is not None:
                    await self._rdma.by_themselves()
                await self._pairs.round_trips()
        except Lost:
            await self._look_again()
        await self._count_errors()
        self._company.note(cpu_bound=self._company.cpu_bound())
        return self.evidence

    # Who is there -----------------------------------------------------------------------------------------------------

    async def _open(self) -> None:
        secret = secrets.token_hex(16)
        asked: dict[str, Question] = {
            endpoint.name: Open(
                rank=rank,
                secret=secret,
                address=endpoint.address,
                max_bps=self._settings.max_bps,
                device=self._settings.device,
            )
            for rank, endpoint in enumerate(self._company.endpoints)
        }
        ports = []
        bounds: dict[str, float] = {}
        missing: dict[str, str] = {}
        for name, answer in (await self._company.ask_all(asked, _OPEN_S)).items():
            if isinstance(answer, Opened):
                known = self._company.machines[name]
                known.peer = known.peer.model_copy(
                    update={
                        "port": answer.port,
                        "packet_port": answer.packet_port,
                        "address": answer.address or known.peer.address,
                    }
                )
                ports.append(
                    Port(name, known.peer.address, answer.device, answer.driver, answer.mtu, answer.speed_bps,
                         answer.duplex)
                )  # fmt: skip
                self._rdma_ports[name] = answer.rdma
                if answer.max_bps:
                    bounds[name] = answer.max_bps
                if not answer.rdma:
                    missing[name] = answer.no_rdma or "it does not say what RDMA it has"
        self._company.note(ports=tuple(ports), no_rdma=missing, bounds=bounds)

    async def _reach(self, limit_s: float) -> None:
        """Everybody calls everybody, both ways; takes the place of what was known before."""
        names = tuple(self._company.machines)
        asked: dict[str, Question] = {
            name: FindPeers(peers=self._company.peers(names, but=name), limit_s=limit_s) for name in names
        }
        found = []
        for name, answer in (await self._company.ask_all(asked, reach_s(len(names) - 1, limit_s))).items():
            if isinstance(answer, PeersFound):
                found += [Reach(name, self._company.name(rank), outcome) for rank, outcome in answer.outcomes.items()]
        self._company.note(reaches=tuple(found))

    async def _packets(self) -> None:
        """Along the hops of both rings; between all of few machines."""
        names = tuple(self._company.machines)
        if len(names) < 2:
            return
        edges = self._edges(names)
        asked: dict[str, Question] = {
            name: SendPackets(peers=tuple(self._company.machines[other].peer for other in edges[name]), limit_s=2.0)
            for name in names
        }
        packets = []
        for name, answer in (await self._company.ask_all(asked, 4.0)).items():
            if isinstance(answer, PacketsSent):
                packets += [
                    LargePacket(name, other, answer.mtu, rank in answer.small, rank in answer.large)
                    for other in edges[name]
                    for rank in (self._company.machines[other].peer.rank,)
                    if other in self._company.machines
                ]
        self._company.note(packets=tuple(packets))

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
        ways = [(reach.source, reach.target) for reach in self._company.evidence.reaches if reach.outcome != "reached"]
        ways += [(hole.sender, hole.receiver) for hole in self._company.evidence.packets if not hole.large_arrived]
        while ways := [way for way in ways if way[0] in self._company.machines and way[1] in self._company.machines]:
            counts: dict[str, int] = {}
            for name in (name for way in ways for name in way):
                counts[name] = counts.get(name, 0) + 1
            del self._company.machines[max(counts, key=lambda name: counts[name])]

    async def _begin_rdma(self) -> None:
        """Where everybody has it; it does not begin when the time is over."""
        if not self._company.evidence.no_rdma and time.monotonic() < self._company.until:
            self._rdma = RdmaRounds(self._company, self._rdma_ports, self._settings.rail)
            await self._rdma.all_ports()

    async def _look_again(self) -> None:
        """Who reaches whom now."""
        await self._reach(min(self._settings.reach_s, _LOOK_AGAIN_S))

    async def _count_errors(self) -> None:
        answers = await self._company.ask_all(dict.fromkeys(self._company.machines, CountErrors()), _COUNT_S)
        counted = {name: answer.errors for name, answer in answers.items() if isinstance(answer, ErrorsCounted)}
        ports = self._company.evidence.ports
        self._company.note(ports=tuple(replace(port, errors=counted.get(port.machine, 0)) for port in ports))

    # The plan ---------------------------------------------------------------------------------------------------------

    async def _follow_plan(self) -> None:
        """What looks slow may take some more time than the budget: a doubt helps nobody."""
        while (left := self._company.until - time.monotonic()) > -_DOUBT_SHARE * self._settings.budget_s:
            present = levelled(replace(self._company.evidence, machines=tuple(self._company.machines)))
            in_time = left > 0
            match self._next(present) if in_time else plan.again(present.machines, present.flows):
                case None:
                    return
                case RingRound(order):
                    await self._reductions.second_ring(order)
                case PairRound() as step:
                    await self._pairs.load(step)

    def _next(self, present: Evidence) -> plan.Step | None:
        return plan.next_step(present, matrix_max=self._settings.matrix_max)
