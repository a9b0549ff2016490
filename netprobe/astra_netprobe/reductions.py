"""All-reduces among the machines of a probe: small ones by doubling, then rings, whose hops are evidence."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from astra_netprobe import doubling, stats
from astra_netprobe.company import Company, Lost, RestOf, soon_after_broken
from astra_netprobe.messages import AllReduce, Answer, JoinDoubling, JoinRing, Leave, Question, Reduced
from astra_netprobe.readings import Hop, Sending, Sized
from astra_netprobe.settings import MIB, Settings

_PROCESSOR_BYTES = 4 * MIB
"""Of smaller all-reduces the share of the processor says nothing."""


class Reductions:
    """All-reduces of all machines. Every method raises Lost when one of them takes no part any more."""

    def __init__(self, company: Company, settings: Settings) -> None:
        self._company = company
        self._settings = settings

    async def first(self) -> None:
        """Small messages by doubling, then the first ring through growing sizes while there is time."""
        names = tuple(self._company.machines)
        tag = await self._join_doubling(names)
        for size in self._settings.small_sizes:
            await self._reduce(names, tag, "doubling", size, self._settings.small_iterations)
        await self._leave(names, tag)
        tag = await self._join_ring(names)
        until = time.monotonic() + self._settings.ring_share * (self._company.until - time.monotonic())
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
        self._company.note(rings=(hops,))

    async def second_ring(self, order: tuple[str, ...]) -> None:
        tag = await self._join_ring(order)
        ring = [sized for sized in self._company.evidence.sizes if sized.algorithm == "ring"]
        size, seconds = ring[-1].size_bytes, stats.median(ring[-1].times_s)
        while size > MIB and 3 * seconds > max(1.0, 0.2 * (self._company.until - time.monotonic())):
            size, seconds = size // 2, seconds / 2
        _, hops = await self._reduce(order, tag, "ring", size, 2, keep=False)
        await self._leave(order, tag)
        self._company.note(rings=(*self._company.evidence.rings, hops))

    async def _join_ring(self, order: Sequence[str]) -> int:
        tag = self._company.next_tag()
        asked: dict[str, Question] = {}
        for position, name in enumerate(order):
            following, previous = order[(position + 1) % len(order)], order[position - 1]
            asked[name] = JoinRing(
                tag=tag, position=position, count=len(order), next=self._company.machines[following].peer,
                previous=self._company.machines[previous].peer.rank, streams=self._settings.streams,
                limit_s=self._settings.reach_s,
            )  # fmt: skip
        await self._company.ask_willing(asked, self._settings.reach_s)
        return tag

    async def _join_doubling(self, names: Sequence[str]) -> int:
        tag = self._company.next_tag()
        asked: dict[str, Question] = {
            name: JoinDoubling(
                tag=tag,
                position=position,
                count=len(names),
                peers=tuple((i, self._company.machines[names[i]].peer) for i in doubling.peers(position, len(names))),
                limit_s=self._settings.reach_s,
            )
            for position, name in enumerate(names)
        }
        await self._company.ask_willing(asked, self._settings.reach_s)
        return tag

    async def _reduce(
        self, order: Sequence[str], tag: int, algorithm: str, size: int, iterations: int, *, keep: bool = True
    ) -> tuple[Sized, tuple[Hop, ...]]:
        """One size, all ranks; raises Lost, with the evidence of it noted, when it broke."""
        limit_s = max(self._company.until - time.monotonic(), 5.0)
        question = AllReduce.model_validate(
            {"tag": tag, "algorithm": algorithm, "size_bytes": size, "iterations": iterations,
             "stall_s": self._settings.stall_s, "limit_s": limit_s}
        )  # fmt: skip
        answers = await self._company.ask_all(
            dict.fromkeys(order, question), limit_s + self._settings.stall_s, self._rest_of(iterations + 1)
        )
        done = {name: answer for name, answer in answers.items() if isinstance(answer, Reduced)}
        self._company.note_wrong({name: answer.wrong for name, answer in done.items()})
        is_whole = len(done) == len(order) and not any(answer.broken for answer in done.values())
        hops = self._hops(order, done, is_whole=is_whole) if algorithm == "ring" else ()
        for name, answer in done.items():
            if algorithm == "ring" and size >= _PROCESSOR_BYTES:
                self._company.machines[name].processor.append(answer.processor)
        sized = _sized(algorithm, size, len(order), done)
        if keep and sized.times_s:
            self._company.note(sizes=(*self._company.evidence.sizes, sized))
        if not is_whole:
            if hops:
                self._company.note(rings=(*self._company.evidence.rings, hops))
            raise Lost
        return sized, hops

    def _rest_of(self, iterations: int) -> RestOf:
        """Whoever is done waits for none of the others; these are in their last iteration, or lost."""
        after_broken = soon_after_broken(self._settings.stall_s)

        def rest_of(answer: Answer, seconds: float) -> float:
            return after_broken(answer, seconds) or self._settings.stall_s + 2 * seconds / iterations

        return rest_of

    def _hops(self, order: Sequence[str], done: Mapping[str, Reduced], *, is_whole: bool) -> tuple[Hop, ...]:
        hops = []
        for position, name in enumerate(order):
            answer = done.get(name)
            if answer is not None and (sent := answer.sent) is not None:
                sending = Sending(sent.seconds, sent.acked_bytes, sent.busy_s, sent.window_s)
                hops.append(
                    Hop(
                        name, order[(position + 1) % len(order)], sending.busy, sending.rate, sent.retransmits,
                        broken=not is_whole and sent.is_stuck, rtt_s=sent.rtt_s, cwnd=sent.cwnd, lost=sent.lost,
                    )
                )  # fmt: skip
        return tuple(hops)

    async def _leave(self, names: Sequence[str], tag: int) -> None:
        await self._company.ask_willing(dict.fromkeys(names, Leave(tag=tag)), self._settings.reach_s)


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
