"""
Rounds of `ib_write_bw` among the machines of a probe: neighbours of the first ring, one way, then the other.

All ports of a machine at once, so that there are as many rounds whatever their number; then, by itself, each whose rate
says more without the load of the others.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping, Sequence

from astra_netprobe import plan, rdma_lines, rdma_verdict
from astra_netprobe.company import Company
from astra_netprobe.messages import Question, RdmaDone, RdmaPort, RdmaWrite, RdmaWrites, RdmaWritesDone
from astra_netprobe.rdma_lines import Line
from astra_netprobe.readings import RdmaFlow

SECONDS = 1.0
"""perftest takes whole ones."""
START_S = 8.0
"""Memory is registered and queues are made before the first byte."""
LISTEN = 18515
"""perftest's own."""
LISTENS = 256
"""
How many TCP ports from `LISTEN` on a rail has, the next rail those behind them. Each measurement takes the next one: a
port may be in use for a while after its end.
"""

Way = tuple[str, str]


class RdmaRounds:
    """
    Never loses a probe: what does not come about is a reading with a reason.

    Args:
        ports: Of each machine, those that are active.
        rail: Distinguishes probes that go on at the same time on the same machines.
    """

    def __init__(self, company: Company, ports: Mapping[str, tuple[RdmaPort, ...]], rail: int = 0) -> None:
        self._company = company
        self._lines, left = rdma_lines.lines({name: ports[name] for name in company.machines})
        first = LISTEN + rail * LISTENS
        self._listens = itertools.cycle(range(first, first + LISTENS))
        company.note(rdma_left=left)

    async def all_ports(self) -> None:
        """Each machine's ports to its neighbours', in the order of ranks, all at once."""
        for ways in self._rounds():
            await self._round(ways, self._lines)

    async def by_themselves(self) -> None:
        """Of several ports those that are in doubt, one after the other, for as long as there is time."""
        for number in rdma_verdict.doubts(self._company.evidence.rdma) if len(self._lines) > 1 else ():
            line = next(line for line in self._lines if line.number == number)
            for ways in self._rounds():
                if time.monotonic() >= self._company.until:
                    return
                await self._round(ways, [line])

    def _rounds(self) -> list[tuple[Way, ...]]:
        names = tuple(self._company.machines)
        if len(names) < 2:
            return []
        ring = list(zip(names, (*names[1:], names[0]), strict=True))
        ways = ring if len(names) > 2 else ring[:1]
        return [pairs for turned in (False, True) for pairs in plan.disjoint(_turned(ways) if turned else ways)]

    async def _round(self, ways: Sequence[Way], lines: Sequence[Line]) -> None:
        machines = self._company.machines
        ways = [way for way in ways if way[0] in machines and way[1] in machines]
        asked: dict[str, Question] = {}
        for sender, receiver in ways:
            listens = [next(self._listens) for _ in lines]
            address = machines[receiver].peer.address
            asked[receiver] = RdmaWrites(writes=tuple(map(_write, (line.ports[receiver] for line in lines), listens)))
            asked[sender] = RdmaWrites(
                writes=tuple(
                    _write(line.ports[sender], listen, address) for line, listen in zip(lines, listens, strict=True)
                )
            )
        answers = await self._company.ask_all(asked, START_S + SECONDS)
        flows = []
        for sender, receiver in ways:
            answer = answers.get(sender)
            for place, line in enumerate(lines):
                done = RdmaDone(reason="it took no part any more")
                if isinstance(answer, RdmaWritesDone) and place < len(answer.done):
                    done = answer.done[place]
                flows.append(_flow(sender, receiver, line, done, together=len(lines) > 1))
        self._company.note(rdma=(*self._company.evidence.rdma, *flows))


def _write(port: RdmaPort, listen: int, to: str | None = None) -> RdmaWrite:
    return RdmaWrite(
        device=port.device, port=port.port, gid=port.gid, listen=listen, to=to, seconds=SECONDS,
        limit_s=START_S + SECONDS,
    )  # fmt: skip


def _flow(sender: str, receiver: str, line: Line, done: RdmaDone, *, together: bool) -> RdmaFlow:
    calling, called = line.ports[sender], line.ports[receiver]
    return RdmaFlow(
        sender, receiver, rdma_lines.name(calling), rdma_lines.name(called), done.rate_bps,
        min(calling.rate_bps, called.rate_bps), done.reason, line.number, together,
    )  # fmt: skip


def _turned(ways: list[Way]) -> list[Way]:
    return [(other, one) for one, other in ways]
