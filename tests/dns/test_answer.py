"""Packets in, packets out: what is said to whom, how long it may be, and what gets no answer."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType

import dns.edns
import dns.flags
import dns.message
import dns.name
import dns.rcode
import pytest

from astra_dns import ready
from astra_dns.answer import answer
from astra_dns.query import MAX_UDP_BYTES, Query
from astra_dns.ready import KEPT_BYTES, Ready
from astra_dns.records import Draft, RunNames
from tests.dns.names_of_runs import LLAMA, snapshot

Trace = Callable[[FrameType, str, object], "Trace"]
VIEW = snapshot().view("nlp")
ZONE = "nlp.astra.internal"


def ask(name: str, kind: str = "A", *, over_tcp: bool = False, **how: object) -> dns.message.Message:
    said = answer(VIEW, dns.message.make_query(name, kind, **how).to_wire(), over_tcp=over_tcp)  # type: ignore[arg-type]
    assert isinstance(said, bytes)
    return dns.message.from_wire(said)


def texts(message: dns.message.Message) -> list[str]:
    return [str(rdata) for rrset in message.answer for rdata in rrset]


@pytest.mark.parametrize("name", ["llama-1", "llama-1.nlp", f"llama-1.{ZONE}", f"LLaMA-1.{ZONE}"])
def test_a_worker_has_three_names_in_any_case(name: str) -> None:
    message = ask(name)
    assert texts(message) == ["10.0.0.2"]
    assert message.question[0].name == dns.name.from_text(name)
    assert texts(ask(name, "AAAA")) == ["fd00::2"]


@pytest.mark.parametrize("kind", ["AAAA", "HTTPS", "MX", "TXT", "TYPE65280", "CNAME"])
def test_a_type_that_a_worker_does_not_have_is_no_data_never_no_name(kind: str) -> None:
    message = ask(f"llama-0.{ZONE}", kind)
    assert (message.rcode(), message.answer) == (dns.rcode.NOERROR, [])
    assert [str(rrset.name) for rrset in message.authority] == ["astra.internal."]


@pytest.mark.parametrize(
    "name", [f"llama-7.{ZONE}", f"x.y.{ZONE}", "llama-0.vision.astra.internal", "api.astra.internal"]
)
def test_an_unknown_name_of_the_zone_is_no_name_with_an_soa_of_the_zone(name: str) -> None:
    message = ask(name)
    assert message.rcode() == dns.rcode.NXDOMAIN
    assert [str(rrset.name) for rrset in message.authority] == ["astra.internal."]
    assert message.authority[0].ttl <= 2
    assert message.authority[0][0].minimum <= 2


def test_another_workspaces_name_looks_like_one_that_never_existed() -> None:
    theirs, never = ask("llama-0.vision.astra.internal"), ask("llama-0.nobody.astra.internal")
    assert (theirs.rcode(), theirs.flags) == (never.rcode(), never.flags)
    assert theirs.authority == never.authority


def path_taken(name: str) -> list[str]:
    """Every line of the name server's code on the way to the answer; where that is the same, so is the time."""
    lines: list[str] = []

    def trace(frame: FrameType, event: str, _: object) -> Trace:
        if event == "line":
            lines.append(f"{frame.f_code.co_qualname}:{frame.f_lineno}")
        return trace

    packet = dns.message.make_query(name, "A").to_wire()
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        answer(VIEW, packet)
    finally:
        sys.settrace(before)
    return lines


@pytest.mark.parametrize(
    ("theirs", "never"),
    [
        ("llama-0.vision.astra.internal", "llama-7.vosion.astra.internal"),
        ("llama-0.vision", "llama-7.vosion"),
        ("9.9.0.10.in-addr.arpa", "8.8.0.10.in-addr.arpa"),
    ],
)
def test_another_workspaces_name_takes_no_other_time_than_one_that_never_existed(theirs: str, never: str) -> None:
    assert path_taken(theirs) == path_taken(never)
    assert path_taken(theirs) != path_taken("llama-0.nlp.astra.internal")


def test_a_plain_unknown_name_is_answered_here_and_not_kept_by_anybody() -> None:
    message = ask("llama-7")
    assert (message.rcode(), message.authority) == (dns.rcode.NXDOMAIN, [])


def test_names_that_only_have_names_below_exist() -> None:
    for name in (ZONE, "_tcp.llama", f"_tcp.llama.{ZONE}", "nlp"):
        assert (ask(name).rcode(), ask(name).answer) == (dns.rcode.NOERROR, [])


def test_the_rendezvous_is_the_leaders_port_with_its_addresses_at_hand() -> None:
    message = ask("_rendezvous._tcp.llama", "SRV")
    assert texts(message) == [f"0 0 29500 llama.{ZONE}."]
    assert [(str(rrset.name), str(rrset[0])) for rrset in message.additional] == [(f"llama.{ZONE}.", "10.0.0.1")]


def test_the_runs_text_is_its_attempt_and_world_size() -> None:
    assert texts(ask("llama", "TXT")) == ['"attempt=3" "world_size=2"']


def test_an_address_has_the_names_of_this_workspaces_workers_only() -> None:
    assert sorted(texts(ask("1.0.0.10.in-addr.arpa", "PTR"))) == [f"etl-executor-0.{ZONE}.", f"llama-0.{ZONE}."]
    theirs = dns.message.make_query("9.9.0.10.in-addr.arpa", "PTR").to_wire()
    assert isinstance(answer(VIEW, theirs), Query), "forwarded, like any address that nobody here has"


def test_any_gets_the_least_there_is() -> None:
    assert [rrset.rdtype.name for rrset in ask("llama-1", "ANY").answer] == ["HINFO"]


@pytest.mark.parametrize("kind", ["AXFR", "IXFR", "TKEY"])
@pytest.mark.parametrize("name", ["astra.internal", "example.com"])
def test_transfers_are_refused_and_never_forwarded(name: str, kind: str) -> None:
    assert ask(name, kind, over_tcp=True).rcode() == dns.rcode.REFUSED


def test_another_class_is_refused() -> None:
    assert ask("version.bind", "TXT", rdclass="CH").rcode() == dns.rcode.REFUSED


def test_do_comes_back_cookies_do_not_and_a_later_edns_is_told_ours() -> None:
    cookie = [dns.edns.GenericOption(dns.edns.OptionType.COOKIE, b"12345678")]
    message = ask("llama-0", use_edns=0, want_dnssec=True, options=cookie)
    assert message.ednsflags & dns.flags.DO
    assert (message.options, message.payload) == ((), MAX_UDP_BYTES)
    later = ask("llama-0", use_edns=1)
    assert (later.rcode(), later.edns, later.answer) == (dns.rcode.BADVERS, 0, [])
    assert ask("llama-0").edns == -1


@pytest.mark.parametrize("flags", [0x8000, 0x8180, 0x8583])
def test_an_answer_is_never_answered(flags: int) -> None:
    packet = bytearray(dns.message.make_query("llama-0", "A").to_wire())
    packet[2:4] = flags.to_bytes(2, "big")
    assert answer(VIEW, bytes(packet)) is None


@pytest.mark.parametrize("size", range(12))
def test_less_than_a_header_is_never_answered(size: int) -> None:
    assert answer(VIEW, bytes(size)) is None


def test_a_pointer_in_a_question_is_malformed() -> None:
    packet = dns.message.make_query("llama-0", "A").to_wire()
    bent = packet[:12] + b"\xc0\x0c" + packet[-4:]
    said = answer(VIEW, bent)
    assert isinstance(said, bytes)
    assert (len(said), said[3] & 0xF) == (12, dns.rcode.FORMERR)


@pytest.mark.parametrize(
    ("how", "room"),
    [({}, 512), ({"use_edns": 0, "payload": 100}, 512), ({"use_edns": 0, "payload": 900}, 900),
     ({"use_edns": 0, "payload": 4096}, 1232)],
)  # fmt: skip
def test_an_answer_is_cut_between_records_to_what_the_asker_takes(how: dict[str, int], room: int) -> None:
    many = {f"w-{rank}": (f"10.1.0.{rank}",) for rank in range(1, 2)} | {
        "w-0": tuple(f"10.1.1.{i}" for i in range(100))
    }
    view = snapshot(RunNames("nlp", "w", many, "w-0", 1)).view("nlp")
    query = dns.message.make_query("w", "A", **how).to_wire()  # type: ignore[arg-type]
    said = answer(view, query)
    assert isinstance(said, bytes)
    assert room - 16 < len(said) <= room
    message = dns.message.from_wire(said)
    assert message.flags & dns.flags.TC
    whole = answer(view, query, over_tcp=True)
    assert isinstance(whole, bytes)
    assert len(texts(dns.message.from_wire(whole))) == 100


def test_what_is_ready_is_bounded_and_long_queries_are_not_kept() -> None:
    ready = Ready(VIEW)
    padding: list[dns.edns.Option] = [dns.edns.GenericOption(dns.edns.OptionType.PADDING, bytes(KEPT_BYTES))]
    ready.answer(dns.message.make_query("llama-0", "A", use_edns=0, options=padding).to_wire())
    assert len(ready) == 0
    query = dns.message.make_query("llama-0", "A").to_wire()
    assert ready.answer(query) == ready.answer(query)
    assert len(ready) == 1


def test_answers_that_are_kept_ready_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ready, "KEPT", 100)
    kept = Ready(VIEW)
    for number in range(1000):
        packet = dns.message.make_query(f"llama-{number}.{ZONE}", "A").to_wire()
        assert kept.answer(packet) == answer(VIEW, packet)
        assert len(kept) <= 100


def test_another_zone_has_all_names_and_this_one_is_outside() -> None:
    draft = Draft("Cluster.Example.")
    draft.put(LLAMA)
    view = draft.freeze().view("nlp")

    def asked(name: str, kind: str) -> dns.message.Message | Query | None:
        said = answer(view, dns.message.make_query(name, kind).to_wire())
        return dns.message.from_wire(said) if isinstance(said, bytes) else said

    for name in ("llama-0.nlp.cluster.example", "llama-0.nlp", "llama-0", "llama.nlp.cluster.example"):
        found = asked(name, "A")
        assert isinstance(found, dns.message.Message)
        assert texts(found) == ["10.0.0.1"]
    for name, kind, data in (
        ("1.0.0.10.in-addr.arpa", "PTR", "llama-0.nlp.cluster.example."),
        ("_rendezvous._tcp.llama", "SRV", "0 0 29500 llama.nlp.cluster.example."),
    ):
        found = asked(name, kind)
        assert isinstance(found, dns.message.Message)
        assert texts(found) == [data]
    found = asked("llama-7.nlp.cluster.example", "A")
    assert isinstance(found, dns.message.Message)
    assert (found.rcode(), str(found.authority[0].name)) == (dns.rcode.NXDOMAIN, "cluster.example.")
    assert isinstance(asked("llama-0.nlp.astra.internal", "A"), Query), "a question for the machine's own servers"
