"""Rounds of `ib_write_bw` among the machines of a probe: neighbours of the first ring, one way, then the other."""

from __future__ import annotations

from collections.abc import Mapping

from astra_netprobe import plan
from astra_netprobe.company import Company
from astra_netprobe.messages import Question, RdmaDone, RdmaPort, RdmaWrite
from astra_netprobe.readings import RdmaFlow

SECONDS = 1.0
"""perftest takes whole ones."""
START_S = 8.0
"""Memory is registered and queues are made before the first byte."""
_LISTEN = 18515
"""perftest's own; each round has one more, since a port may be in use for a while after its end."""


class RdmaRounds:
    """Never loses a probe: what does not come about is a reading with a reason."""

    def __init__(self, company: Company, ports: Mapping[str, tuple[RdmaPort, ...]]) -> None:
        self._company = company
        self._ports = ports

    async def neighbours(self) -> None:
        """The first port of each machine to its neighbours', in the order of ranks."""
        names = tuple(self._company.machines)
        ring = list(zip(names, (*names[1:], names[0]), strict=True))
        ways = ring if len(names) > 2 else ring[:1]
        rounds = [pairs for turned in (False, True) for pairs in plan.disjoint(_turned(ways) if turned else ways)]
        for number, pairs in enumerate(rounds):
            await self._round(_LISTEN + number, pairs)

    async def _round(self, listen: int, pairs: tuple[tuple[str, str], ...]) -> None:
        asked: dict[str, Question] = {}
        for sender, receiver in pairs:
            called, calling = self._ports[receiver][0], self._ports[sender][0]
            bounds = {"listen": listen, "seconds": SECONDS, "limit_s": START_S + SECONDS}
            asked[receiver] = RdmaWrite.model_validate(
                {"device": called.device, "port": called.port, "gid": called.gid, **bounds}
            )
            asked[sender] = RdmaWrite.model_validate(
                {"device": calling.device, "port": calling.port, "gid": calling.gid, **bounds,
                 "to": self._company.machines[receiver].peer.address}
            )  # fmt: skip
        answers = await self._company.ask_all(asked, START_S + SECONDS)
        flows = []
        for sender, receiver in pairs:
            calling, called = self._ports[sender][0], self._ports[receiver][0]
            answer = answers.get(sender)
            done = answer if isinstance(answer, RdmaDone) else RdmaDone(reason="it took no part any more")
            flows.append(
                RdmaFlow(
                    sender, receiver, calling.device, called.device, done.rate_bps,
                    min(calling.rate_bps, called.rate_bps), done.reason,
                )
            )  # fmt: skip
        self._company.note(rdma=(*self._company.evidence.rdma, *flows))


def _turned(ways: list[tuple[str, str]]) -> list[tuple[str, str]]:
    return [(other, one) for one, other in ways]
