"""How long upstream answers are kept, fresh and stale, and how many: packets and times in, values out."""

from __future__ import annotations

import dns.flags
import dns.message
import dns.rcode
import dns.rrset
import pytest

from astra_dns import cache
from astra_dns.cache import STALE_S, Cache
from astra_dns.query import parse
from astra_dns.upstream_answer import MAX_NEGATIVE_TTL_S, MAX_TTL_S, STALE_TTL_S, UpstreamAnswer, read

QUESTION = dns.message.make_query("www.example.com", "A")


def upstream_answer(rcode: str, **sections: list[str]) -> UpstreamAnswer:
    """As read from a packet of these records, by section."""
    message = dns.message.make_response(QUESTION, recursion_available=True)
    message.set_rcode(dns.rcode.from_text(rcode))
    for name, lines in sections.items():
        for line in lines:
            owner, ttl, rtype, data = line.split(maxsplit=3)
            getattr(message, name).append(dns.rrset.from_text(owner, int(ttl), "IN", rtype, data))
    return read(message.to_wire(), QUESTION.to_wire()[12:])


def a(ttl_s: int, owner: str = "www.example.com.") -> str:
    return f"{owner} {ttl_s} A 192.0.2.1"


def soa(ttl_s: int, minimum_s: int) -> str:
    return f"example.com. {ttl_s} SOA ns.example.com. admin.example.com. 1 7200 900 86400 {minimum_s}"


ALIAS = "www.example.com. 7 CNAME other.example.com."


@pytest.mark.parametrize(
    ("rcode", "sections", "kept_s"),
    [
        ("NOERROR", {"answer": [a(12)]}, 12),
        ("NOERROR", {"answer": [a(0)]}, 0),
        ("NOERROR", {"answer": [a(86400)]}, MAX_TTL_S),
        ("NOERROR", {"answer": [ALIAS, a(40, "other.example.com.")]}, 7),
        ("NOERROR", {"answer": [a(12)], "authority": [soa(5, 5)], "additional": [a(3, "ns.example.com.")]}, 12),
        ("NXDOMAIN", {"authority": [soa(20, 9)]}, 9),
        ("NXDOMAIN", {"authority": [soa(9, 20)]}, 9),
        ("NXDOMAIN", {"authority": [soa(86400, 3600)]}, MAX_NEGATIVE_TTL_S),
        ("NXDOMAIN", {"authority": [soa(300, 0)]}, 0),
        ("NXDOMAIN", {}, 0),
        ("NXDOMAIN", {"answer": [ALIAS], "authority": [soa(20, 9)]}, 9),
        ("NXDOMAIN", {"answer": [ALIAS]}, 0),
        ("NXDOMAIN", {"additional": [soa(20, 9)]}, 0),
        ("NOERROR", {"authority": [soa(9, 20)]}, 9),
        ("NOERROR", {"authority": ["example.com. 300 NS ns.example.com."]}, 0),
        ("SERVFAIL", {"authority": [soa(20, 9)]}, 0),
        ("REFUSED", {"answer": [a(12)]}, 0),
    ],
)
def test_an_answer_is_kept_as_long_as_its_records_say_and_no_longer_than_ours(
    rcode: str, sections: dict[str, list[str]], kept_s: int
) -> None:
    assert upstream_answer(rcode, **sections).ttl_s == kept_s


def test_what_is_cut_short_is_not_kept() -> None:
    message = dns.message.make_response(QUESTION)
    message.flags |= dns.flags.TC
    message.answer.append(dns.rrset.from_text("www.example.com.", 30, "IN", "A", "192.0.2.1"))
    assert read(message.to_wire(), QUESTION.to_wire()[12:]).ttl_s == 0


def test_a_minute_and_half_a_minute_are_the_most() -> None:
    assert (MAX_TTL_S, MAX_NEGATIVE_TTL_S, STALE_S) == (60, 30, 3600)


# The cache ---------------------------------------------------------------------------------------------------------

YES = upstream_answer("NOERROR", answer=[a(12)])
NO = upstream_answer("NXDOMAIN", authority=[soa(9, 20)])


@pytest.mark.parametrize(("answer", "ttl_s"), [(YES, 12), (NO, 9)])
@pytest.mark.parametrize(
    ("past_s", "state"),
    [(-0.1, "fresh"), (0.0, "stale"), (STALE_S - 0.1, "stale"), (STALE_S, "gone"), (10 * STALE_S, "gone")],
)
def test_an_answer_is_fresh_in_its_time_and_stale_for_an_hour(
    answer: UpstreamAnswer, ttl_s: int, past_s: float, state: str
) -> None:
    kept = Cache()
    kept.put("key", answer, 1000.0)
    found = kept.get("key", 1000.0 + ttl_s + past_s)
    if state == "gone":
        assert found is None
        assert len(kept) == 0
        assert kept.get("key", 1000.0) is None
        return
    assert found is not None
    assert (found.answer, found.fresh, found.age_s) == (answer, state == "fresh", int(ttl_s + past_s))


def test_a_stale_answer_is_given_on_for_a_few_seconds_and_a_fresh_one_for_what_is_left() -> None:
    query = dns.message.make_query("www.example.com", "A")
    for age_s, left_s in ((0, 12), (5, 7), (12, STALE_TTL_S), (3000, STALE_TTL_S)):
        assert dns.message.from_wire(reply(query, YES, age_s)).answer[0].ttl == left_s


def reply(query: dns.message.Message, answer: UpstreamAnswer, age_s: int) -> bytes:
    packet = query.to_wire()
    parsed = parse(packet)
    assert parsed is not None
    return packet[:2] + answer.reply(parsed, 512, age_s)


def test_what_may_not_be_kept_is_not_and_leaves_what_was_there() -> None:
    kept = Cache()
    kept.put("key", YES, 0.0)
    kept.put("key", upstream_answer("SERVFAIL"), 1.0)
    found = kept.get("key", 2.0)
    assert found is not None
    assert found.answer is YES


def test_past_so_many_answers_the_longest_unused_goes() -> None:
    kept = Cache(max_answers=3)
    for number in range(3):
        kept.put(number, YES, 0.0)
    kept.get(0, 1.0)
    kept.put(3, YES, 1.0)
    assert [number for number in range(4) if kept.get(number, 2.0) is not None] == [0, 2, 3]


def test_past_so_many_bytes_the_longest_unused_go_and_what_is_gone_counts_no_more() -> None:
    size = cache._size(YES)
    kept = Cache(max_bytes=20 * size)
    for number in range(100):
        kept.put(number, YES, 0.0)
        kept.put(number, YES, 0.0)
        assert len(kept) == min(number + 1, 20)
    for number in range(80, 100):
        assert kept.get(number, STALE_S + 100) is None
    for number in range(20):
        kept.put(number, YES, STALE_S + 100)
    assert len(kept) == 20


def test_one_answer_has_no_more_than_a_sixteenth_of_the_room() -> None:
    big = upstream_answer("NOERROR", answer=[f"www.example.com. 30 TXT {' '.join(['x' * 250] * 4)}"])
    kept = Cache(max_bytes=16 * len(big.body))
    kept.put("big", big, 0.0)
    kept.put("small", YES, 0.0)
    assert (kept.get("big", 1.0), len(kept)) == (None, 1)
