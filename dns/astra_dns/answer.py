"""
From a packet to the packet that answers it, by one workspace's view. Nothing is waited for, nothing is asked.

The existence of a name decides between "no such name" and "no such record", the type never does: a musl client takes
NXDOMAIN for AAAA as the end of the whole name, and NODATA as the end of its search list. What is not ours is handed
back as a `Query`, to be forwarded; neither silence nor REFUSED is an answer for a program that only looks a name up.
"""

from __future__ import annotations

from struct import pack
from typing import NamedTuple

from astra_dns.query import (
    AA,
    AAAA,
    ANY,
    BADVERS,
    CD,
    DO,
    FORMERR,
    HEADER_BYTES,
    HINFO,
    IN,
    MAX_TCP_BYTES,
    MAX_UDP_BYTES,
    MIN_UDP_BYTES,
    NOERROR,
    NXDOMAIN,
    OPT,
    PTR,
    QR,
    RA,
    RD,
    REFUSED,
    SERVFAIL,
    SOA,
    SRV,
    TC,
    A,
    Edns,
    MalformedError,
    Query,
    parse,
)
from astra_dns.records import TTL_S, Records, View

_LOCALHOST = b"\x09localhost\0"
_LOCALHOST_RECORDS: Records = ((A, bytes([127, 0, 0, 1])), (AAAA, bytes(15) + b"\1"))
_LOOPBACK = b"\x011\x010\x010\x03127\x07in-addr\x04arpa\0"
_NOWHERE = (b"\x07invalid\0", b"\x05onion\0")
"""RFC 6761 and 7686: nothing is there, and no other server is to hear of the question."""
_REVERSE = (b"\x07in-addr\x04arpa\0", b"\x03ip6\x04arpa\0")
_TO_QUESTION = 0xC000 | HEADER_BYTES
_TRANSACTIONS = range(249, 255)
"""TKEY, TSIG, IXFR, AXFR, MAILB, MAILA: asked of name servers, not of resolvers."""
_ANY_RECORDS: Records = ((HINFO, b"\x07RFC8482\x00"),)
"""The least that answers ANY; whoever wants an address asks for it."""
_OPT_BYTES = 11


class _Found(NamedTuple):
    """*records* None: no such name. *zone* is what an SOA record is for; None: there is none to show."""

    records: Records | None
    zone: bytes | None


def answer(view: View, packet: bytes, *, over_tcp: bool = False) -> bytes | Query | None:
    """
    The answer; the query when it is not ours to answer; None when there is to be none.

    The bytes behind the ID depend on nothing but the view and the bytes behind the packet's ID.
    """
    try:
        query = parse(packet)
    except MalformedError as error:
        return _bare(packet, error.rcode)
    if query is None:
        return None
    rcode = _refusal(query)
    if rcode is not None:
        return packet[:2] + reply(query, rcode, (), room=room(query, over_tcp=over_tcp), flags=0)
    found = _find(view, query)
    if found is None:
        return query
    return packet[:2] + _compose(view, query, found, room(query, over_tcp=over_tcp))


def failure(query: Query, rcode: int = SERVFAIL) -> bytes:
    """An answer, without its ID, that says *rcode* and nothing else."""
    return reply(query, rcode, (), room=MIN_UDP_BYTES, flags=0)


def room(query: Query, *, over_tcp: bool) -> int:
    """How many bytes an answer may have."""
    if over_tcp:
        return MAX_TCP_BYTES
    if query.edns is None:
        return MIN_UDP_BYTES
    return max(MIN_UDP_BYTES, min(query.edns.payload_bytes, MAX_UDP_BYTES))


def _bare(packet: bytes, rcode: int) -> bytes:
    """To what can't be understood: a header."""
    flags = (packet[2] << 8 | packet[3]) & (0x7800 | RD) | QR | RA | rcode
    return packet[:2] + pack("!5H", flags, 0, 0, 0, 0)


def _refusal(query: Query) -> int | None:
    if query.edns is not None and query.edns.version:
        return BADVERS
    if query.rtype == OPT:
        return FORMERR
    if query.rclass != IN or query.rtype in _TRANSACTIONS:
        return REFUSED
    return None


# Finding -----------------------------------------------------------------------------------------------------------


def _find(view: View, query: Query) -> _Found | None:
    """None: not ours."""
    name = query.name
    if name.endswith(view.zone) and query.ends_with(view.zone):
        return _Found(_in_zone(view, query), view.zone)
    if (records := view.find(name[:-1])) is not None:
        return _Found(records, name)
    if len(query.starts) == 1 and query.rtype in (A, AAAA) and name not in (_LOCALHOST, *_NOWHERE):
        # A plain name has been through the search list by now; no server outside can know it.
        return _Found(() if name == view.workspace else None, None)
    if name.endswith(view.workspace) and query.ends_with(view.workspace):
        records = view.find(name[: -len(view.workspace)])
        if records is not None:
            return _Found(records, name)
    if name.endswith(_REVERSE):
        records = ((PTR, _LOCALHOST),) if name == _LOOPBACK else view.find_reverse(name)
        return None if records is None else _Found(records, name)
    return _special(query)


def _in_zone(view: View, query: Query) -> Records | None:
    name = query.name
    if name.endswith(view.home) and query.ends_with(view.home) and view.home != view.zone:
        own = name[: -len(view.home)]
        return view.find(own) if own else ()
    if name == view.zone:
        return view.apex
    return view.server_records if name == view.server else None


def _special(query: Query) -> _Found | None:
    if query.ends_with(_LOCALHOST):
        return _Found(_LOCALHOST_RECORDS, None)
    if any(query.ends_with(nowhere) for nowhere in _NOWHERE):
        return _Found(None, None)
    return None


# Composing ---------------------------------------------------------------------------------------------------------


def _compose(view: View, query: Query, found: _Found, limit: int) -> bytes:
    if found.records is None or not (data := _chosen(found.records, query.rtype)):
        rcode = NXDOMAIN if found.records is None else NOERROR
        authority = () if found.zone is None else (_soa(view, query, found.zone),)
        return reply(query, rcode, (), authority=authority, room=limit)
    answers = tuple(_record(_TO_QUESTION, rtype, item) for rtype, item in data)
    return reply(query, NOERROR, answers, additional=_targets(view, data), room=limit)


def _chosen(records: Records, rtype: int) -> Records:
    if rtype == ANY:
        return _ANY_RECORDS if records else ()
    return tuple(record for record in records if record[0] == rtype)


def _record(owner: int, rtype: int, data: bytes) -> bytes:
    return pack("!HHHIH", owner, rtype, IN, TTL_S, len(data)) + data


def _soa(view: View, query: Query, zone: bytes) -> bytes:
    return _record(_TO_QUESTION + len(query.name) - len(zone), SOA, view.soa)


def _targets(view: View, data: Records) -> tuple[bytes, ...]:
    """Addresses of what SRV records point to, so that nobody has to ask again."""
    found = []
    for rtype, item in data:
        if rtype == SRV and (target := item[6:]).endswith(view.home):
            for kind, address in view.find(target[: -len(view.home)]) or ():
                if kind in (A, AAAA):
                    found.append(target + pack("!HHIH", kind, IN, TTL_S, len(address)) + address)
    return tuple(found)


def reply(
    query: Query,
    rcode: int,
    answers: tuple[bytes, ...],
    *,
    authority: tuple[bytes, ...] = (),
    additional: tuple[bytes, ...] = (),
    room: int,
    flags: int = AA,
) -> bytes:
    """
    An answer without its ID, of *room* bytes with it at most: additional records go first, then authority, then
    answers from the last one; then the answer says that it is truncated.
    """
    opt = b"" if query.edns is None else opt_record(query.edns, rcode)
    left = room - HEADER_BYTES - len(query.question) - len(opt)
    flags |= QR | RA | query.flags & (RD | CD) | rcode & 0xF
    size = sum(map(len, answers))
    if size + sum(map(len, authority)) + sum(map(len, additional)) > left:
        additional = ()
        if size + sum(map(len, authority)) > left:
            authority = ()
            flags |= TC
            while size > left:
                size -= len(answers[-1])
                answers = answers[:-1]
    counts = pack("!5H", flags, 1, len(answers), len(authority), len(additional) + (1 if opt else 0))
    return b"".join((counts, query.question, *answers, *authority, *additional, opt))


def opt_record(edns: Edns, rcode: int = NOERROR) -> bytes:
    """Ours: what we take, the high bits of *rcode*, and the asker's DO bit (RFC 3225 wants it back)."""
    return pack("!BHHBBHH", 0, OPT, MAX_UDP_BYTES, rcode >> 4, 0, DO if edns.dnssec_ok else 0, 0)
