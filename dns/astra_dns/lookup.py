"""A question and its answer for a person: a name in, records as text out. Pure; for tools, never on the hot path."""

from __future__ import annotations

from ipaddress import ip_address
from struct import unpack_from
from typing import NamedTuple

from astra_dns.names import MAX_NAME_BYTES, absolute, to_text
from astra_dns.query import (
    AAAA,
    HEADER_BYTES,
    IN,
    NS,
    OPT,
    PTR,
    RD,
    SERVFAIL,
    SOA,
    SRV,
    TXT,
    A,
    MalformedError,
    skip_name,
)  # fmt: skip

CNAME, MX = 5, 15
TYPES = {
    "A": A, "AAAA": AAAA, "CNAME": CNAME, "MX": MX, "NS": NS, "PTR": PTR, "SOA": SOA, "SRV": SRV, "TXT": TXT,
}  # fmt: skip
_NAMES = {number: name for name, number in TYPES.items()}
_RCODES = ("NOERROR", "FORMERR", "SERVFAIL", "NXDOMAIN", "NOTIMP", "REFUSED")
_FIXED_BYTES = {MX: 2, SRV: 6}
"""Before the name in a record's data."""


ANSWER_BYTES = 4096
"""More than any answer over UDP."""


class Record(NamedTuple):
    """*data* as zone files have it."""

    name: str
    type: str
    ttl_s: int
    data: str


class Reply(NamedTuple):
    rcode: str
    records: tuple[Record, ...]


def question(name: str, rtype: str) -> bytes:
    """A packet that asks for it. Raises: ValueError for a name that is none, KeyError for an unknown type."""
    head = b"\0\0" + RD.to_bytes(2, "big") + b"\0\1" + bytes(6)
    return head + absolute(name) + TYPES[rtype].to_bytes(2, "big") + IN.to_bytes(2, "big")


def read(packet: bytes) -> Reply:
    """The answer section of a packet that answers one question. Raises: MalformedError."""
    if len(packet) < HEADER_BYTES:
        raise MalformedError(SERVFAIL)
    flags, _, answers = unpack_from("!3H", packet, 2)
    rcode = flags & 0xF
    at = skip_name(packet, HEADER_BYTES) + 4
    records = []
    for _ in range(answers):
        owner = at
        at = skip_name(packet, at)
        if at + 10 > len(packet):
            raise MalformedError(SERVFAIL)
        rtype, _, ttl_s, size = unpack_from("!2HIH", packet, at)
        at += 10
        if at + size > len(packet):
            raise MalformedError(SERVFAIL)
        if rtype != OPT:
            kind = _NAMES.get(rtype, f"TYPE{rtype}")
            records.append(Record(_name(packet, owner), kind, ttl_s, _data(packet, rtype, at, size)))
        at += size
    return Reply(_RCODES[rcode] if rcode < len(_RCODES) else f"RCODE{rcode}", tuple(records))


def _data(packet: bytes, rtype: int, at: int, size: int) -> str:
    """Raises: MalformedError."""
    raw = packet[at : at + size]
    if (rtype, size) in ((A, 4), (AAAA, 16)):
        return str(ip_address(raw))
    if rtype == TXT:
        return " ".join(_strings(raw))
    if rtype in (NS, PTR, CNAME):
        return _name(packet, at)
    if rtype in _FIXED_BYTES and size > _FIXED_BYTES[rtype]:
        fixed = _FIXED_BYTES[rtype]
        numbers = unpack_from(f"!{fixed // 2}H", raw)
        return f"{' '.join(map(str, numbers))} {_name(packet, at + fixed)}"
    if rtype == SOA:
        second = skip_name(packet, at)
        end = skip_name(packet, second)
        if end + 20 <= len(packet):
            numbers = unpack_from("!5I", packet, end)
            return f"{_name(packet, at)} {_name(packet, second)} {' '.join(map(str, numbers))}"
    return f"\\# {size} {raw.hex()}"


def _strings(raw: bytes) -> list[str]:
    found = []
    at = 0
    while at < len(raw):
        text = raw[at + 1 : at + 1 + raw[at]].decode("ascii", "backslashreplace")
        found.append(f'"{text}"')
        at += 1 + raw[at]
    return found


def _name(packet: bytes, at: int) -> str:
    """Pointers go backwards only, so this ends. Raises: MalformedError."""
    wire = bytearray()
    while len(wire) < MAX_NAME_BYTES:
        end = skip_name(packet, at)
        if end >= 2 and packet[end - 2] >= 0xC0 and end - 2 == _behind_labels(packet, at):
            wire += packet[at : end - 2]
            at = (packet[end - 2] & 0x3F) << 8 | packet[end - 1]
            continue
        return to_text(bytes(wire + packet[at:end]))
    raise MalformedError(SERVFAIL)


def _behind_labels(packet: bytes, at: int) -> int:
    """Where the labels from *at* on end, at a pointer or at the root's zero."""
    while 0 < packet[at] < 0xC0:
        at += 1 + packet[at]
    return at
