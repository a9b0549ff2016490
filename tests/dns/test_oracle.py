"""
Random, bent and broken packets, answered twice (composed, and ready) and held against what dnspython makes of them.

50,000 packets; `ASTRA_FUZZ_PACKETS=1000000` for the long run, `ASTRA_FUZZ_SEED` for another one.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator

import dns.edns
import dns.exception
import dns.flags
import dns.message
import dns.name
import dns.opcode
import dns.rcode
import dns.rdatatype
import pytest

from astra_dns.answer import answer
from astra_dns.query import Query
from astra_dns.ready import Ready
from tests.dns.names_of_runs import ETL, LLAMA, OTHERS_LLAMA, snapshot
from tests.dns.oracle import FORWARD, Expected, expected

RUNS = (LLAMA, ETL, OTHERS_LLAMA)
PACKETS = int(os.environ.get("ASTRA_FUZZ_PACKETS", "50000"))
SEED = int(os.environ.get("ASTRA_FUZZ_SEED", "1"))
FORMERR, NOTIMP = 1, 4

NAMES = [
    "llama", "llama-0", "llama-1", "llama-7", "etl-driver-0", "nlp", "vision", "localhost", "www.localhost", "invalid",
    "x.invalid", "llama-0.nlp", "llama-1.vision", "llama-7.nlp", "llama-0.nlp.astra.internal", "astra.internal",
    "nlp.astra.internal", "vision.astra.internal", "llama-0.vision.astra.internal", "ns.astra.internal", "internal",
    "_tcp.llama", "_rendezvous._tcp.llama", "_rendezvous._tcp.llama.nlp", "_rendezvous._tcp.etl.nlp.astra.internal",
    "_tcp.llama.nlp.astra.internal", "1.0.0.10.in-addr.arpa", "9.9.0.10.in-addr.arpa", "1.0.0.127.in-addr.arpa",
    "example.com", "a." * 126 + "a", "x" * 63 + ".nlp.astra.internal", ".", "a\\003nlp.", "arpa", "onion", "q.onion",
    dns.reversename.from_address("fd00::2").to_text(),
]  # fmt: skip
KINDS = ["A", "AAAA", "TXT", "SRV", "PTR", "SOA", "NS", "HTTPS", "ANY", "AXFR", "IXFR", "OPT", "MX", "TYPE65280"]


def packets(rng: random.Random, count: int) -> Iterator[bytes]:
    for _ in range(count):
        packet = whole(rng)
        if rng.random() < 0.5:
            packet = bent(rng, packet)
        yield packet


def whole(rng: random.Random) -> bytes:
    name = dns.name.from_text(rng.choice(NAMES))
    name = dns.name.Name([bytes(_other_case(rng, byte) for byte in label) for label in name.labels])
    query = dns.message.make_query(
        name, rng.choice(KINDS), rdclass=rng.choices(["IN", "CH", "ANY", "CLASS9"], [20, 1, 1, 1])[0],
        use_edns=rng.choice([None, 0, 0, 1]), payload=rng.choice([0, 512, 1232, 4096]),
        want_dnssec=rng.random() < 0.3, id=rng.randrange(65536),
    )  # fmt: skip
    if query.edns >= 0 and rng.random() < 0.3:
        cookie = dns.edns.GenericOption(dns.edns.OptionType.COOKIE, rng.randbytes(8))
        query.use_edns(query.edns, query.ednsflags, query.payload, options=[cookie])
    query.flags ^= rng.choice([0, 0, 0, dns.flags.RD, dns.flags.CD, dns.flags.AD, dns.flags.QR, dns.flags.AA])
    if rng.random() < 0.05:
        query.set_opcode(dns.opcode.Opcode(rng.choice([1, 2, 4, 5, 15])))
    return query.to_wire()


def _other_case(rng: random.Random, byte: int) -> int:
    return byte ^ 0x20 if chr(byte).isalpha() and rng.random() < 0.2 else byte


def bent(rng: random.Random, packet: bytes) -> bytes:
    changed = bytearray(packet)
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(changed)) if changed else 0
        match rng.randrange(5):
            case 0 if changed:
                changed[at] = rng.randrange(256)
            case 1 if changed:
                changed[at] ^= 1 << rng.randrange(8)
            case 2:
                del changed[at:]
            case 3:
                changed[at:at] = rng.randbytes(rng.randrange(1, 12))
            case 4:
                changed += changed[at : at + 40]
    return bytes(changed)


@pytest.mark.timeout(120 + PACKETS // 300)
def test_every_packet_gets_what_the_oracle_says() -> None:
    rng = random.Random(SEED)
    frozen = snapshot()
    ready = {workspace: Ready(frozen.view(workspace)) for workspace in ("nlp", "vision", "empty")}
    answered = 0
    for packet in packets(rng, PACKETS):
        workspace = rng.choice(list(ready))
        said = ready[workspace].answer(packet)
        assert said == ready[workspace].answer(packet), packet.hex()
        if isinstance(said, bytes):
            assert said == answer(frozen.view(workspace), packet), packet.hex()
        check(workspace, packet, said)
        answered += isinstance(said, bytes)
    assert answered > PACKETS // 2


def check(workspace: str, packet: bytes, said: bytes | Query | None) -> None:
    if len(packet) < 12 or packet[2] & 0x80:
        assert said is None, packet.hex()
        return
    assert said is not None, packet.hex()
    read = dns.message.from_wire(said) if isinstance(said, bytes) else None
    if read is not None:
        assert isinstance(said, bytes)
        assert read.id == int.from_bytes(packet[:2], "big"), packet.hex()
        assert read.flags & dns.flags.QR, packet.hex()
        assert len(said) <= max(512, 1232 if b"\x00\x00\x29" in packet else 0), packet.hex()
    if packet[2] & 0x78:
        assert read is not None, packet.hex()
        assert read.rcode() == NOTIMP, packet.hex()
        return
    if read is not None and read.rcode() == FORMERR:
        assert is_broken(packet), packet.hex()
        return
    check_meaning(workspace, packet, said, read)


def is_broken(packet: bytes) -> bool:
    """Whether dnspython takes it for no single, well-formed question, or a pointer stands where none may."""
    try:
        message = dns.message.from_wire(packet)
    except (dns.exception.DNSException, ValueError):
        return True
    if len(message.question) != 1 or int.from_bytes(packet[4:6], "big") != 1:
        return True
    question = message.question[0]
    plain = question.name.to_wire()
    assert plain is not None
    return question.rdtype == dns.rdatatype.OPT or packet[12 : 12 + len(plain)].lower() != plain.lower()


def check_meaning(workspace: str, packet: bytes, said: bytes | Query | None, read: dns.message.Message | None) -> None:
    try:
        asked = dns.message.from_wire(packet, one_rr_per_rrset=True)
    except (dns.exception.DNSException, ValueError):
        # Data of a record that has no business in a query; the question and the frame around it are sound.
        asked = dns.message.from_wire(packet, question_only=True)
        if isinstance(said, Query) and said.edns is not None:
            asked.use_edns(said.edns.version)
        elif read is not None:
            asked.use_edns(1 if read.rcode() == dns.rcode.BADVERS else read.edns)
    wanted = expected(RUNS, workspace, asked)
    if wanted == FORWARD:
        assert isinstance(said, Query), packet.hex()
        return
    assert isinstance(wanted, Expected)
    assert read is not None, packet.hex()
    assert read.rcode() == wanted.rcode, packet.hex()
    assert bool(read.flags & dns.flags.AA) == wanted.authoritative, packet.hex()
    assert read.question[0].name.labels == asked.question[0].name.labels, "the asker's own case"
    assert (read.edns >= 0) == (asked.edns >= 0), packet.hex()
    got = {
        (dns.rdatatype.to_text(rrset.rdtype), "" if rrset.rdtype in (6, 13) else str(rdata))
        for rrset in read.answer
        for rdata in rrset
    }
    assert got == set(wanted.data), packet.hex()
    assert all(rrset.name == asked.question[0].name and 0 <= rrset.ttl <= 5 for rrset in read.answer), packet.hex()
