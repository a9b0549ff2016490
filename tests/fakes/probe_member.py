"""A machine's part in a probe on a network that is only numbers: answers at once what a real member would measure."""

from __future__ import annotations

from astra_netprobe import messages
from astra_netprobe.messages import (
    AllReduce,
    Answer,
    CountErrors,
    Done,
    ErrorsCounted,
    Failed,
    FindPeers,
    JoinDoubling,
    JoinRing,
    Leave,
    Open,
    Opened,
    PacketsSent,
    PeersFound,
    Question,
    Reduced,
    RoundTrips,
    RoundTripsDone,
    SendPackets,
    Sent,
    Transfer,
    Transferred,
)

LINE_BPS = 1e9
_TRIP_S = 1e-4


class FakeMember:
    """
    Args:
        links: Rates of machines' links in both directions, bits per second, by address; all others have `LINE_BPS`.
        max_bps: What this machine sends at most by its own setting, and says so; 0: as much as goes.
    """

    def __init__(self, links: dict[str, float], max_bps: float = 0.0) -> None:
        self._links = links
        self._max_bps = max_bps
        self._address = ""
        self._joined: dict[int, JoinRing | JoinDoubling] = {}

    def answer(self, question: Question) -> Answer:
        if isinstance(question, Open):
            self._address = question.address
            return Opened(port=1, packet_port=2, device="eth0", driver="veth", mtu=1500, max_bps=self._max_bps)
        if not self._address:
            return Failed(sentence="no probe is open")
        match question:
            case FindPeers():
                return PeersFound(outcomes={peer.rank: "reached" for peer in question.peers})
            case SendPackets():
                ranks = tuple(peer.rank for peer in question.peers)
                return PacketsSent(mtu=1500, small=ranks, large=ranks)
            case JoinRing() | JoinDoubling():
                self._joined[question.tag] = question
                return Done()
            case Leave():
                self._joined.pop(question.tag, None)
                return Done()
            case AllReduce():
                return self._reduce(question)
            case Transfer():
                return self._transfer(question)
            case RoundTrips():
                return self._trips(question)
            case CountErrors():
                return ErrorsCounted(errors=0)
            case _:
                return Failed(sentence=f"this machine can't do {question.kind}")

    def _rate(self, other: messages.Peer | None = None) -> float:
        """Towards *other*; None: of what comes in."""
        own = self._max_bps or LINE_BPS if other is not None else LINE_BPS
        ends = (self._address, other.address if other is not None else self._address)
        return min(own, *(self._links.get(end, LINE_BPS) for end in ends))

    def _reduce(self, question: AllReduce) -> Answer:
        """A ring goes at the pace of its slowest hop; the others are idle in between."""
        joined = self._joined.get(question.tag)
        if joined is None:
            return Failed(sentence=f"there is no {question.algorithm} {question.tag}: join it first")
        pace = min([LINE_BPS, self._max_bps or LINE_BPS, *self._links.values()])
        moved = 2 * (joined.count - 1) / joined.count * question.size_bytes
        each_s = 8 * moved / pace + _TRIP_S
        rounds = question.iterations
        to = joined.next if isinstance(joined, JoinRing) else None
        busy_s = rounds * 8 * moved / self._rate(to)
        sent = Sent(seconds=rounds * each_s, acked_bytes=int(rounds * moved), busy_s=busy_s, window_s=0.0,
                    retransmits=0, rtt_s=_TRIP_S)  # fmt: skip
        return Reduced(
            times_s=(each_s,) * question.iterations, first_s=each_s, wrong={}, sent=sent, processor=0.1
        )  # fmt: skip

    def _transfer(self, question: Transfer) -> Transferred:
        rate, seconds = self._rate(question.to), question.seconds
        sent = Sent(seconds=seconds, acked_bytes=int(rate * seconds / 8), busy_s=seconds, window_s=0.0, retransmits=0,
                    rtt_s=_TRIP_S)  # fmt: skip
        took_in = int(self._rate() * seconds / 8) if question.from_rank is not None else 0
        return Transferred(
            sent=sent if question.to is not None else None,
            received_bytes=took_in, received_s=seconds if took_in else 0.0, processor=0.1,
        )  # fmt: skip

    def _trips(self, question: RoundTrips) -> RoundTripsDone:
        return RoundTripsDone(times_s=(_TRIP_S,) * question.count if question.to is not None else ())
