"""
The machines of a probe while it goes on: asking them, leaving out who is silent, keeping what they say.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from astra_netprobe import stats
from astra_netprobe.channel import Endpoint, Silent
from astra_netprobe.messages import Answer, Failed, Peer, Question, Reduced, Transferred
from astra_netprobe.readings import Evidence, Wrong

CPU_BOUND = 0.9
"""Of a machine's processor, in the middle of its rounds: from there on it, not the network, was the limit."""
_MARGIN_S = 1.5
"""For a question and its answer on the way."""

RestOf: TypeAlias = Callable[[Answer, float], float | None]
"""Of an answer, and the seconds that it took: how many the rest still has; None: as many as before."""


def soon_after_broken(stall_s: float) -> RestOf:
    """Who takes part in what broke finds that out within *stall_s* itself, and whoever is lost never answers."""

    def rest_of(answer: Answer, _: float) -> float | None:
        is_broken = isinstance(answer, Failed) or (isinstance(answer, Reduced | Transferred) and answer.broken != "")
        return stall_s + _MARGIN_S if is_broken else None

    return rest_of


class Lost(Exception):
    """A machine did not take its part any more: look who is left, and end."""


@dataclass(slots=True)
class Member:
    """A machine that answers; *peer* is how others call it, *processor* its share of each round."""

    endpoint: Endpoint
    peer: Peer
    processor: list[float] = field(default_factory=list)


class Company:
    """
    The machines of one probe that answer, and the evidence that they have given so far.

    Args:
        endpoints: In the order of the run's ranks.
        watch: Is told after every change of the evidence.
    Attributes:
        machines: By name, in the order of ranks; who is silent is taken out.
        until: When the probe's time is over, monotonic seconds.
    """

    def __init__(self, endpoints: Sequence[Endpoint], watch: Callable[[Evidence], None]) -> None:
        self.endpoints = endpoints
        self.machines = {
            endpoint.name: Member(endpoint, Peer(rank=rank, address=endpoint.address, port=0))
            for rank, endpoint in enumerate(endpoints)
        }
        self.evidence = Evidence(machines=tuple(endpoint.name for endpoint in endpoints))
        self.until = 0.0
        self._watch = watch
        self._tag = 0

    async def ask_all(
        self, asked: Mapping[str, Question], limit_s: float, rest_of: RestOf | None = None
    ) -> dict[str, Answer]:
        """
        Everybody at once. Who is silent is taken out and noted; a refusal of a machine's own is noted, too.

        Args:
            rest_of: Of what all do together: who is lost never answers, and the others know long before *limit_s*.
        """
        answers: dict[str, Answer] = {}
        gone: dict[str, str] = {}
        clock = asyncio.get_running_loop().time
        began = clock()

        async def one(name: str, question: Question) -> None:
            try:
                answers[name] = await self.machines[name].endpoint.channel.ask(question, limit_s + _MARGIN_S)
            except Silent as error:
                gone[name] = f"{name} {error}"
                return
            rest_s = rest_of(answers[name], clock() - began) if rest_of is not None else None
            if rest_s is not None and not bound.expired():
                bound.reschedule(min(clock() + rest_s, bound.when() or math.inf))

        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s + 2 * _MARGIN_S) as bound, asyncio.TaskGroup() as group:
                for name, question in asked.items():
                    group.create_task(one(name, question))
        gone |= {
            name: f"{name} does not answer any more, while others do"
            for name in asked
            if name not in answers and name not in gone
        }
        gone |= {
            name: f"{name}: {answer.sentence}"
            for name, answer in answers.items()
            if isinstance(answer, Failed) and answer.rank is None
        }
        for name in gone:
            self.machines.pop(name, None)
        if gone:
            self.note(absent={**self.evidence.absent, **gone})
        return {name: answers[name] for name in asked if name in answers and name not in gone}

    async def ask_willing(self, asked: Mapping[str, Question], limit_s: float) -> None:
        """For questions that all must take part in. Raises: Lost."""
        answers = await self.ask_all(asked, limit_s)
        if len(answers) < len(asked) or any(isinstance(answer, Failed) for answer in answers.values()):
            raise Lost

    # Notes ------------------------------------------------------------------------------------------------------------

    def note(self, **changes: object) -> None:
        self.evidence = replace(self.evidence, **changes)  # type: ignore[arg-type]  # names and types are the fields'
        self._watch(self.evidence)

    def note_wrong(self, found: Mapping[str, Mapping[int, int]]) -> None:
        counts = {(wrong.sender, wrong.receiver): wrong.elements for wrong in self.evidence.wrongs}
        for receiver, by_rank in found.items():
            for rank, elements in by_rank.items():
                pair = (self.name(rank), receiver)
                counts[pair] = counts.get(pair, 0) + elements
        if counts:
            self.note(wrongs=tuple(Wrong(*pair, elements) for pair, elements in counts.items()))

    def cpu_bound(self) -> tuple[str, ...]:
        return tuple(
            name
            for name, machine in self.machines.items()
            if machine.processor and stats.median(machine.processor) > CPU_BOUND
        )

    def peers(self, names: Sequence[str], *, but: str) -> tuple[Peer, ...]:
        return tuple(self.machines[name].peer for name in names if name != but)

    def name(self, rank: int) -> str:
        return self.endpoints[rank].name

    def rank(self, name: str) -> int:
        return self.evidence.machines.index(name)

    def next_tag(self) -> int:
        self._tag += 1
        return self._tag
