"""An answer as text: the same as an independent reader makes of the same packet, or refused."""

from __future__ import annotations

import random

import dns.exception
import dns.message
import dns.rcode
import dns.rdatatype
import pytest

from astra_dns import lookup
from astra_dns.answer import answer
from astra_dns.query import MalformedError
from tests.dns.names_of_runs import snapshot

RECORDS = """
id 1
opcode QUERY
rcode NOERROR
flags QR RD RA
;QUESTION
www.example.com. IN ANY
;ANSWER
www.example.com. 60 IN CNAME a.b.example.com.
a.b.example.com. 5 IN A 192.0.2.1
a.b.example.com. 5 IN AAAA 2001:db8::1
example.com. 7 IN MX 10 mail.example.com.
example.com. 7 IN TXT "one" "two words"
example.com. 7 IN SOA ns.example.com. host.example.com. 1 2 3 4 5
_x._tcp.example.com. 9 IN SRV 0 1 8080 a.b.example.com.
1.2.0.192.in-addr.arpa. 9 IN PTR a.b.example.com.
"""


def as_dnspython(packet: bytes) -> list[tuple[str, str, int, str]]:
    message = dns.message.from_wire(packet, one_rr_per_rrset=True)
    return [(str(r.name), dns.rdatatype.to_text(r.rdtype), r.ttl, str(r[0])) for r in message.answer]


def test_records_read_as_zone_files_have_them() -> None:
    packet = dns.message.from_text(RECORDS.strip()).to_wire()
    assert [tuple(record) for record in lookup.read(packet).records] == as_dnspython(packet)


@pytest.mark.parametrize(
    ("name", "rtype", "rcode", "data"),
    [
        ("llama-0", "A", "NOERROR", ["10.0.0.1"]),
        ("llama-99", "A", "NXDOMAIN", []),
        ("2.0.0.10.in-addr.arpa", "PTR", "NOERROR", ["llama-1.nlp.astra.internal."]),
    ],
)
def test_our_own_answers_read_back(name: str, rtype: str, rcode: str, data: list[str]) -> None:
    said = answer(snapshot().view("nlp"), lookup.question(name, rtype), over_tcp=True)
    assert isinstance(said, bytes)
    found = lookup.read(said)
    assert (found.rcode, [record.data for record in found.records]) == (rcode, data)


def test_bent_packets_are_read_or_refused_and_never_loop() -> None:
    whole = dns.message.from_text(RECORDS.strip()).to_wire()
    chance = random.Random(5)
    for _ in range(5000):
        packet = bytearray(whole[: chance.randint(0, len(whole))])
        for _ in range(chance.randint(0, 3)):
            if packet:
                packet[chance.randrange(len(packet))] = chance.choice((0, 0xC0, 0xFF, chance.randrange(256)))
        try:
            lookup.read(bytes(packet))
        except MalformedError:
            continue


@pytest.mark.parametrize("name", ["", "a..b", "x" * 64, "é", ".".join(["x" * 60] * 5)])
def test_what_is_no_name_is_refused(name: str) -> None:
    if name:
        with pytest.raises(ValueError, match=r"is no name|ascii"):
            lookup.question(name, "A")
    else:
        assert lookup.question(name, "A").endswith(b"\0\0\1\0\1")
