"""
An upstream's answer: whether it is one to our question, how long it is good for, and how it is given on.

Only the frame is read. Names in it are stepped over; a pointer must go backwards, so no name can loop.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import pack, pack_into, unpack_from

from astra_dns.answer import opt_record
from astra_dns.query import (
    CD,
    DO,
    HEADER_BYTES,
    NOERROR,
    NXDOMAIN,
    OPT,
    QR,
    RA,
    RD,
    SOA,
    TC,
    MalformedError,
    Query,
    skip_name,
)

AD = 0x0020
MAX_TTL_S = 60
"""A name that an outside service moves is followed within a minute, whatever its TTL."""
MAX_NEGATIVE_TTL_S = 30
STALE_TTL_S = 5
"""What an answer past its time is given on with: soon there may be a better one."""


@dataclass(frozen=True, slots=True)
class UpstreamAnswer:
    """
    Attributes:
        body: All records, without question and OPT record; offsets in it count from the packet's begin.
        counts: Of answer, authority and additional records in it.
        ttls: Where in *body* TTLs are.
        ttl_s: How long it may be kept; 0: not at all.
    """

    rcode: int
    authentic: bool
    truncated: bool
    body: bytes
    counts: tuple[int, int, int]
    ttls: tuple[int, ...]
    ttl_s: int

    def reply(self, query: Query, room: int, age_s: int = 0) -> bytes:
        """
        For *query*, without its ID: in the asker's case, with TTLs that are *age_s* less (few seconds when it is past
        its time), and within *room* bytes. Of what does not fit, the answers that do are left, and it says that it is
        truncated: a musl before 1.2.4 takes these, since it never asks over TCP.
        """
        opt = b"" if query.edns is None else opt_record(query.edns, self.rcode)
        flags = QR | RA | query.flags & (RD | CD) | self.rcode & 0xF
        if self.authentic and (query.flags & AD or (query.edns is not None and query.edns.dnssec_ok)):
            flags |= AD
        body = self._aged(age_s) if age_s else self.body
        answers, authority, additional = self.counts
        left = room - HEADER_BYTES - len(query.question) - len(opt)
        if self.truncated or len(body) > left:
            flags |= TC
            answers, authority, additional = self._fitting(left), 0, 0
            body = body[: self._end(answers)]
        counted = pack("!5H", flags, 1, answers, authority, additional + (1 if opt else 0))
        return b"".join((counted, query.question, body, opt))

    def _fitting(self, left: int) -> int:
        """How many answers end within *left* bytes of the body."""
        return next((count for count in range(self.counts[0], 0, -1) if self._end(count) <= left), 0)

    def _end(self, count: int) -> int:
        """Where the first *count* records end."""
        if not count:
            return 0
        at = self.ttls[count - 1]
        return at + 6 + int(unpack_from("!H", self.body, at + 4)[0])

    def _aged(self, age_s: int) -> bytes:
        changed = bytearray(self.body)
        for at in self.ttls:
            left_s = max(unpack_from("!I", changed, at)[0] - age_s, 0)
            pack_into("!I", changed, at, STALE_TTL_S if age_s >= self.ttl_s else left_s)
        return bytes(changed)


def question_packet(query: Query, payload_bytes: int) -> bytes:
    """What an upstream is asked, without an ID: the asker's question and wishes, and our own size."""
    wishes = query.flags & (RD | CD | AD)
    dnssec_ok = query.edns is not None and query.edns.dnssec_ok
    opt = pack("!BHHIH", 0, OPT, payload_bytes, DO if dnssec_ok else 0, 0)
    return pack("!5H", wishes, 1, 0, 0, 1) + query.question + opt


def is_answer(packet: bytes, question: bytes) -> bool:
    """Whether *packet* answers exactly this question; IDs are the caller's to compare."""
    end = HEADER_BYTES + len(question)
    return (
        len(packet) >= end
        and packet[2] & 0xF8 == 0x80
        and packet[4:6] == b"\0\1"
        and packet[HEADER_BYTES:end].lower() == question.lower()
    )


def read(packet: bytes, question: bytes) -> UpstreamAnswer:
    """Of a packet that `is_answer`. Raises: MalformedError."""
    flags, _, answers, authority, additional = unpack_from("!5H", packet, 2)
    begin = at = HEADER_BYTES + len(question)
    ttls: list[int] = []
    positive: list[int] = []
    negative_s = 0
    rcode = flags & 0xF
    end = None
    if flags & TC:
        return UpstreamAnswer(rcode, False, True, b"", (0, 0, 0), (), 0)
    for number in range(answers + authority + additional):
        owner = at
        at = skip_name(packet, at)
        if at + 10 > len(packet):
            raise MalformedError(rcode)
        rtype, _, ttl, size = unpack_from("!2HIH", packet, at)
        if rtype == OPT:
            rcode |= ttl >> 24 << 4
            # What stands behind it is additional and would have to be shifted: it goes with it.
            end, additional = owner, number - answers - authority
            break
        ttls.append(at + 4 - begin)
        at += 10 + size
        if at > len(packet):
            raise MalformedError(rcode)
        if number < answers:
            positive.append(ttl)
        elif rtype == SOA and number < answers + authority and size >= 20:
            negative_s = min(ttl, unpack_from("!I", packet, at - 4)[0])
    if additional < 0:
        raise MalformedError(rcode)
    body = packet[begin : at if end is None else end]
    ttl_s = _kept_s(rcode, positive, negative_s)
    return UpstreamAnswer(rcode, bool(flags & AD), False, body, (answers, authority, additional), tuple(ttls), ttl_s)


def _kept_s(rcode: int, positive: list[int], negative_s: int) -> int:
    if rcode == NOERROR and positive:
        return min(*positive, MAX_TTL_S)
    return min(negative_s, MAX_NEGATIVE_TTL_S) if rcode in (NOERROR, NXDOMAIN) else 0
