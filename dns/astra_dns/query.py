"""
A query, read from its packet. Never follows a compression pointer: none is allowed where a question stands.
"""

from __future__ import annotations

from struct import unpack_from
from typing import NamedTuple

from astra_dns.names import MAX_LABEL_BYTES, MAX_NAME_BYTES

HEADER_BYTES = 12
MIN_UDP_BYTES = 512
MAX_UDP_BYTES = 1232
"""What fits into one packet of every network's smallest size (DNS flag day 2020): no fragments, ever."""
MAX_TCP_BYTES = 65535

A, NS, SOA, PTR, HINFO, TXT, AAAA, SRV, OPT = 1, 2, 6, 12, 13, 16, 28, 33, 41
IXFR, AXFR, ANY = 251, 252, 255
IN = 1

NOERROR, FORMERR, SERVFAIL, NXDOMAIN, NOTIMP, REFUSED, BADVERS = 0, 1, 2, 3, 4, 5, 16

QR, OPCODE, AA, TC, RD, RA, CD = 0x8000, 0x7800, 0x0400, 0x0200, 0x0100, 0x0080, 0x0010
DO = 0x8000


class Edns(NamedTuple):
    """What the asker's OPT record says. Options in it, cookies too, are read over: none is implemented."""

    payload_bytes: int
    version: int
    dnssec_ok: bool


class Query(NamedTuple):
    """
    A tuple, not a dataclass: it is made once for each packet, and this is three times as fast.

    Attributes:
        flags: The second word of the header, as it came.
        question: Name, type and class as they came, in the asker's own case.
        name: The name in lower case, absolute.
        starts: Where each label of *name* begins, in order; the root has none.
    """

    flags: int
    question: bytes
    name: bytes
    starts: tuple[int, ...]
    rtype: int
    rclass: int
    edns: Edns | None

    def ends_with(self, suffix: bytes) -> bool:
        """Whether *suffix*, absolute and in lower case, is this name or one above it."""
        at = len(self.name) - len(suffix)
        return self.name.endswith(suffix) and (at in self.starts or at == len(self.name) - 1)


class MalformedError(Exception):
    """No query that can be answered but with *rcode*."""

    def __init__(self, rcode: int) -> None:
        super().__init__(rcode)
        self.rcode = rcode


def parse(packet: bytes) -> Query | None:
    """
    None for what must not be answered at all: shorter than a header, or itself an answer (two servers that answer each
    other's errors never stop).

    Raises:
        MalformedError: with the code to answer.
    """
    if len(packet) < HEADER_BYTES:
        return None
    flags, questions, answers, authorities, additionals = unpack_from("!5H", packet, 2)
    if flags & QR:
        return None
    if flags & OPCODE:
        raise MalformedError(NOTIMP)
    if questions != 1:
        raise MalformedError(FORMERR)
    end, starts = _read_name(packet)
    if end + 4 > len(packet):
        raise MalformedError(FORMERR)
    rtype, rclass = unpack_from("!2H", packet, end)
    edns = None
    if additionals or answers or authorities or len(packet) != end + 4:
        edns = _read_records(packet, end + 4, answers + authorities, additionals)
    name = packet[HEADER_BYTES:end].lower()
    return Query(flags, packet[HEADER_BYTES : end + 4], name, starts, rtype, rclass, edns)


def _read_name(packet: bytes) -> tuple[int, tuple[int, ...]]:
    """Where the question's name ends, and where its labels begin, counted from the name's own begin."""
    at = HEADER_BYTES
    last = len(packet)
    starts: list[int] = []
    while at < last:
        size = packet[at]
        if not size:
            if at + 1 - HEADER_BYTES > MAX_NAME_BYTES:
                break
            return at + 1, tuple(starts)
        if size > MAX_LABEL_BYTES:
            break
        starts.append(at - HEADER_BYTES)
        at += 1 + size
    raise MalformedError(FORMERR)


def _read_records(packet: bytes, at: int, before: int, additionals: int) -> Edns | None:
    """Read over all records behind the question; the OPT record among the additional ones is wanted, once at most."""
    edns = None
    for number in range(before + additionals):
        owner = at
        at = skip_name(packet, at)
        if at + 10 > len(packet):
            raise MalformedError(FORMERR)
        rtype, rclass, ttl, size = unpack_from("!2HIH", packet, at)
        at += 10 + size
        if at > len(packet):
            raise MalformedError(FORMERR)
        if rtype == OPT:
            if edns is not None or packet[owner] or number < before:
                raise MalformedError(FORMERR)
            _check_options(packet, at - size, at)
            edns = Edns(rclass, ttl >> 16 & 0xFF, bool(ttl & DO))
    if at != len(packet):
        raise MalformedError(FORMERR)
    return edns


def _check_options(packet: bytes, at: int, end: int) -> None:
    """Each option has a code, a size and as many bytes."""
    while at < end:
        if at + 4 > end:
            raise MalformedError(FORMERR)
        at += 4 + (packet[at + 2] << 8 | packet[at + 3])
    if at != end:
        raise MalformedError(FORMERR)


def skip_name(packet: bytes, at: int) -> int:
    """Behind a name that may end in a pointer, which must point backwards; where it points to is not looked at."""
    begin = at
    while at < len(packet):
        size = packet[at]
        if not size:
            if at + 1 - begin > MAX_NAME_BYTES:
                break
            return at + 1
        if size >= 0xC0:
            if at + 1 < len(packet) and HEADER_BYTES <= (size & 0x3F) << 8 | packet[at + 1] < begin:
                return at + 2
            break
        if size > MAX_LABEL_BYTES:
            break
        at += 1 + size
    raise MalformedError(FORMERR)
