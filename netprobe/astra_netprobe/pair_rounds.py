"""Rounds of pairs among the machines of a probe: bytes one way or both, round trips."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from astra_netprobe import plan, stats
from astra_netprobe.company import Company, Lost, soon_after_broken
from astra_netprobe.messages import Question, RoundTrips, RoundTripsDone, Sent, Transfer, Transferred
from astra_netprobe.plan import PairRound
from astra_netprobe.readings import Flow, RoundTrip, Sending
from astra_netprobe.settings import Settings

_NOTHING = Sent(seconds=0.0, acked_bytes=0, busy_s=0.0, window_s=0.0, retransmits=0, rtt_s=0.0)


class PairRounds:
    """Pairs of machines, each in one at a time. All raise Lost when one of them takes no part any more."""

    def __init__(self, company: Company, settings: Settings) -> None:
        self._company = company
        self._settings = settings

    async def load(self, step: PairRound) -> None:
        tag, seconds = self._company.next_tag(), self._settings.pair_s
        bounds = {
            "seconds": seconds,
            "stall_s": self._settings.stall_s,
            "limit_s": seconds + 2 * self._settings.stall_s,
        }
        asked: dict[str, Question] = {}
        for one, other in step.pairs:
            first, second = self._company.machines[one].peer, self._company.machines[other].peer
            common = {"tag": tag, "streams": self._settings.streams, **bounds}
            back: dict[str, object] = {"from_rank": second.rank} if step.both else {}
            forth: dict[str, object] = {"to": first} if step.both else {}
            asked[one] = Transfer.model_validate({**common, "to": second, **back})
            asked[other] = Transfer.model_validate({**common, "from_rank": first.rank, **forth})
        answers = await self._company.ask_all(asked, bounds["limit_s"], soon_after_broken(self._settings.stall_s))
        done = {name: answer for name, answer in answers.items() if isinstance(answer, Transferred)}
        turned = [(other, one) for one, other in step.pairs if step.both]
        flows = [self._flow(one, other, done, both=step.both) for one, other in (*step.pairs, *turned)]
        for name, answer in done.items():
            self._company.machines[name].processor.append(answer.processor)
        self._company.note_wrong(
            {flow.receiver: {self._company.rank(flow.sender): flow.wrong} for flow in flows if flow.wrong}
        )
        self._company.note(rounds=(*self._company.evidence.rounds, tuple(flows)))
        if len(done) < len(asked) or any(flow.broken for flow in flows):
            raise Lost

    def _flow(self, one: str, other: str, done: Mapping[str, Transferred], *, both: bool) -> Flow:
        sender, receiver = done.get(one), done.get(other)
        sent = sender.sent if sender is not None and sender.sent is not None else _NOTHING
        rate = Sending(sent.seconds, sent.acked_bytes, sent.busy_s, sent.window_s).rate
        return Flow(
            one, other, rate, both=both,
            reached=8 * receiver.received_bytes / receiver.received_s if receiver and receiver.received_s else 0.0,
            retransmits=sent.retransmits,
            wrong=receiver.wrong if receiver is not None else 0,
            broken=bool(sender is None or receiver is None or sender.broken or receiver.broken),
            rtt_s=sent.rtt_s, cwnd=sent.cwnd, lost=sent.lost,
        )  # fmt: skip

    async def round_trips(self) -> None:
        """Of all pairs of few machines, else of neighbours in the first ring; each in one pair at a time."""
        names = tuple(self._company.machines)
        rounds = (
            plan.tournament(names)
            if len(names) <= self._settings.matrix_max
            else plan.disjoint(zip(names, (*names[1:], names[0]), strict=True))
        )
        for pairs in rounds:
            if time.monotonic() >= self._company.until:
                return
            await self._ping(pairs)

    async def _ping(self, pairs: Sequence[tuple[str, str]]) -> None:
        tag = self._company.next_tag()
        bounds = {"tag": tag, "count": self._settings.trips, "seconds": self._settings.pair_s,
                  "limit_s": self._settings.pair_s + self._settings.stall_s}  # fmt: skip
        asked: dict[str, Question] = {}
        for one, other in pairs:
            asked[one] = RoundTrips.model_validate({**bounds, "to": self._company.machines[other].peer})
            asked[other] = RoundTrips.model_validate({**bounds, "from_rank": self._company.rank(one)})
        answers = await self._company.ask_all(asked, bounds["limit_s"])
        trips = []
        for one, other in pairs:
            answer = answers.get(one)
            if isinstance(answer, RoundTripsDone) and answer.times_s:
                times = answer.times_s
                middle, tail = stats.median(times), stats.quantile(times, 0.99)
                trips.append(RoundTrip(one, other, middle, tail, max(times), len(times)))
        self._company.note(trips=(*self._company.evidence.trips, *trips))
        if len(answers) < len(asked):
            raise Lost
