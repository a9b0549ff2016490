"""A server on loopback, asked over UDP and TCP, in front of upstreams that do whatever upstreams do."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

import dns.asyncquery
import dns.flags
import dns.message
import dns.rcode
import pytest

from astra_dns import forward
from astra_dns.cache import Cached
from astra_dns.counters import Counters
from astra_dns.forward import LIMIT_S, LIMIT_SICK_S, MAX_IN_FLIGHT, MAX_WAITING, TRY_S, Forwarder
from astra_dns.query import Query, parse
from astra_dns.server import Server
from astra_dns.tcp import MAX_CONNECTIONS, MAX_PIPELINED
from astra_dns.upstream import PORTS, SICK_AFTER, TCP_TIMEOUT_S
from tests.dns.names_of_runs import LLAMA, snapshot
from tests.fakes.eventually import until
from tests.fakes.upstream import FakeUpstream, address, bound_pair, code, silence, truncated
from tests.levels import ROOT

WAIT_S = 15.0
CLIENT_S = 2.0
"""What the README promises to be within; a busy machine is, too, once in a few times."""


@dataclass
class Running:
    server: Server
    forwarder: Forwarder
    counters: Counters
    ports: dict[str, int]

    async def ask(
        self, name: str, kind: str = "A", *, workspace: str = "nlp", tcp: bool = False, **how: object
    ) -> dns.message.Message:
        query = dns.message.make_query(name, kind, **how)  # type: ignore[arg-type]
        over = dns.asyncquery.tcp if tcp else dns.asyncquery.udp
        return await over(query, "127.0.0.1", WAIT_S, self.ports[workspace])


@contextlib.asynccontextmanager
async def running(*upstreams: str, port: int = 9) -> AsyncIterator[Running]:
    counters = Counters()
    forwarder = Forwarder(counters, port=port)
    server = Server(snapshot(), forwarder, counters)
    ports = {}
    for workspace in ("nlp", "vision"):
        udp, tcp = bound_pair()
        ports[workspace] = udp.getsockname()[1]
        server.add(f"{workspace}-udp", workspace, udp)
        server.add(f"{workspace}-tcp", workspace, tcp)
    forwarder.set_upstreams(upstreams)
    try:
        yield Running(server, forwarder, counters, ports)
    finally:
        await server.close()
        await forwarder.close()


@contextlib.asynccontextmanager
async def in_front_of(
    answers: Callable[[dns.message.Message], list[bytes]],
) -> AsyncIterator[tuple[Running, FakeUpstream]]:
    async with FakeUpstream(answers).serve() as upstream, running("127.0.0.1", port=upstream.port) as one:
        yield one, upstream


def texts(message: dns.message.Message) -> list[str]:
    return [str(rdata) for rrset in message.answer for rdata in rrset]


# Our own names -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tcp", [False, True])
async def test_each_socket_answers_for_its_own_workspace(tcp: bool) -> None:
    async with running() as one:
        assert texts(await one.ask("llama-0", tcp=tcp)) == ["10.0.0.1"]
        assert texts(await one.ask("llama-0", workspace="vision", tcp=tcp)) == ["10.0.9.9"]


async def test_a_snapshot_takes_the_place_of_another_between_two_questions() -> None:
    async with running() as one:
        await one.ask("llama-0")
        moved = type(LLAMA)("nlp", "llama", {"llama-0": ("10.0.0.77",)}, "llama-0", 1)
        one.server.publish(snapshot(moved))
        assert texts(await one.ask("llama-0")) == ["10.0.0.77"]
        assert (await one.ask("llama-1")).rcode() == dns.rcode.NXDOMAIN
        assert (await one.ask("llama-0", workspace="vision")).rcode() == dns.rcode.NXDOMAIN


async def test_many_questions_on_one_connection_are_all_answered() -> None:
    async with running() as one:
        reader, writer = await asyncio.open_connection("127.0.0.1", one.ports["nlp"])
        queries = [dns.message.make_query("llama-1", kind) for kind in ("A", "AAAA", "TXT") * 50]
        for query in queries:
            packet = query.to_wire()
            writer.write(len(packet).to_bytes(2, "big") + packet)
        said = set()
        async with asyncio.timeout(WAIT_S):
            for _ in queries:
                size = int.from_bytes(await reader.readexactly(2), "big")
                said.add(dns.message.from_wire(await reader.readexactly(size)).id)
        assert said == {query.id for query in queries}
        writer.close()


async def test_questions_under_way_on_one_connection_are_bounded_and_all_are_answered_in_the_end() -> None:
    async with in_front_of(silence) as (one, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", one.ports["nlp"])
        outside = [dns.message.make_query(f"{number}.example.com", "A") for number in range(MAX_PIPELINED + 20)]
        for query in outside:
            packet = query.to_wire()
            writer.write(len(packet).to_bytes(2, "big") + packet)
        await until(lambda: one.counters.tcp_requests == MAX_PIPELINED)
        assert texts(await one.ask("llama-0")) == ["10.0.0.1"]
        assert one.counters.tcp_requests == MAX_PIPELINED
        rcodes = {}
        async with asyncio.timeout(WAIT_S):
            for _ in outside:
                size = int.from_bytes(await reader.readexactly(2), "big")
                said = dns.message.from_wire(await reader.readexactly(size))
                rcodes[said.id] = said.rcode()
        assert rcodes == {query.id: dns.rcode.SERVFAIL for query in outside}
        writer.close()


async def test_connections_are_bounded_and_those_without_a_question_end() -> None:
    async with running() as one, contextlib.AsyncExitStack() as stack:

        async def connected() -> asyncio.StreamReader:
            reader, writer = await asyncio.open_connection("127.0.0.1", one.ports["nlp"])
            stack.callback(writer.close)
            return reader

        idle = [await connected() for _ in range(MAX_CONNECTIONS)]
        async with asyncio.timeout(WAIT_S):
            assert await (await connected()).read() == b""
            assert one.counters.ignored["too many connections"] == 1
            assert texts(await one.ask("llama-0")) == ["10.0.0.1"]
            assert {await reader.read() for reader in idle} == {b""}
        assert texts(await one.ask("llama-0", tcp=True)) == ["10.0.0.1"]


async def test_garbage_gets_a_header_or_nothing_and_the_next_question_its_answer() -> None:
    async with running() as one:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asker:
            for packet in (b"", b"x", bytes(12), b"\xff" * 600, bytes(4000)):
                asker.sendto(packet, ("127.0.0.1", one.ports["nlp"]))
        assert texts(await one.ask("llama-0")) == ["10.0.0.1"]
        assert one.counters.panics == 0


# Everything else ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tcp", [False, True])
async def test_an_outside_name_is_the_upstreams_answer_in_the_askers_case(tcp: bool) -> None:
    async with in_front_of(address("192.0.2.7")) as (one, _):
        message = await one.ask("WWW.example.com", tcp=tcp)
        assert texts(message) == ["192.0.2.7"]
        assert str(message.answer[0].name) == "WWW.example.com."
        assert message.flags & dns.flags.RA


async def test_what_was_asked_before_is_remembered_with_less_time_to_live() -> None:
    async with in_front_of(address("192.0.2.7", ttl_s=30)) as (one, upstream):
        for name in ("www.example.com", "WWW.example.com", "www.EXAMPLE.com"):
            assert texts(await one.ask(name)) == ["192.0.2.7"]
        assert upstream.asked["www.example.com."] == 1
        assert one.counters.cache_hits["success"] == 2


async def test_a_no_is_remembered_as_long_as_its_soa_says() -> None:
    async with in_front_of(code(dns.rcode.NXDOMAIN, negative_ttl_s=60)) as (one, upstream):
        for _ in range(3):
            assert (await one.ask("none.example")).rcode() == dns.rcode.NXDOMAIN
        assert upstream.asked["none.example."] == 1


async def test_a_no_is_asked_again_once_its_time_is_over() -> None:
    async with in_front_of(code(dns.rcode.NXDOMAIN, negative_ttl_s=1)) as (one, upstream):
        assert (await one.ask("none.example")).rcode() == dns.rcode.NXDOMAIN
        upstream.answers = address("192.0.2.7")
        await asyncio.sleep(1.1)
        assert texts(await one.ask("none.example")) == ["192.0.2.7"]


async def test_a_no_without_an_soa_is_asked_again() -> None:
    async with in_front_of(code(dns.rcode.NXDOMAIN)) as (one, upstream):
        for _ in range(2):
            await one.ask("none.example")
        assert upstream.asked["none.example."] == 2


async def test_one_question_of_many_askers_is_asked_once() -> None:
    async with in_front_of(silence) as (one, upstream):
        asked = [asyncio.create_task(one.ask("www.example.com")) for _ in range(20)]
        await until(lambda: upstream.asked["www.example.com."])
        upstream.answers = address("192.0.2.7")
        assert {tuple(texts(message)) for message in await asyncio.gather(*asked)} == {("192.0.2.7",)}
        assert upstream.asked["www.example.com."] == 2, "once in silence, once again"
        assert one.counters.coalesced == 19


async def test_nobody_can_foresee_port_and_id_of_a_question() -> None:
    async with in_front_of(address("192.0.2.7")) as (one, upstream):
        await asyncio.gather(*(one.ask(f"{number}.example.com") for number in range(40)))
        ports, numbers = zip(*upstream.heard, strict=True)
        assert len(set(ports)) == PORTS
        assert len(set(numbers)) > 30
        assert list(numbers) != sorted(numbers)


def question(name: str) -> Query:
    query = parse(dns.message.make_query(name, "A").to_wire())
    assert query is not None
    return query


async def test_what_is_under_way_is_bounded_and_whoever_comes_then_is_told_at_once() -> None:
    async with in_front_of(silence) as (one, _):
        ended: list[Cached | None] = []
        for number in range(MAX_IN_FLIGHT):
            one.forwarder.ask(question(f"{number}.example.com"), ended.append)
        for _ in range(MAX_WAITING - 1):
            one.forwarder.ask(question("0.example.com"), ended.append)
        assert (ended, one.counters.rejected) == ([], 0)
        one.forwarder.ask(question("one.more.example.com"), ended.append)
        one.forwarder.ask(question("0.example.com"), ended.append)
        assert (ended, one.counters.rejected) == ([None, None], 2)
        assert texts(await one.ask("llama-0")) == ["10.0.0.1"]
        await until(lambda: len(ended) == MAX_IN_FLIGHT + MAX_WAITING + 1)
        assert set(ended) == {None}


async def test_a_truncated_answer_is_got_whole_over_tcp_and_cut_for_whoever_asked_over_udp() -> None:
    async with in_front_of(truncated) as (one, upstream):
        upstream.over_tcp = address("192.0.2.1", count=100)
        message = await one.ask("many.example.com")
        assert message.flags & dns.flags.TC
        assert 20 < len(texts(message)) < 32
        assert len(texts(await one.ask("many.example.com", tcp=True))) == 100
        assert upstream.asked["many.example.com. tcp"] == 1


async def test_wrong_answers_are_waited_out() -> None:
    def lies(query: dns.message.Message) -> list[bytes]:
        right = address("192.0.2.7")(query)[0]
        wrong_id = bytes([right[0] ^ 1]) + right[1:]
        wrong_question = address("192.0.2.66")(dns.message.make_query("evil.example", "A", id=query.id))[0]
        no_answer = right[:2] + bytes([right[2] & 0x7F]) + right[3:]
        return [wrong_id, wrong_question, no_answer, right[:20], b"", right[: len(right) - 14], right]

    async with in_front_of(lies) as (one, _):
        assert texts(await one.ask("www.example.com")) == ["192.0.2.7"]
        assert one.counters.lies["127.0.0.1"] >= 4


async def test_the_next_upstream_answers_for_one_that_fails_or_is_silent() -> None:
    for bad in (silence, code(dns.rcode.SERVFAIL), code(dns.rcode.REFUSED)):
        async with FakeUpstream(bad).serve("127.0.0.2") as first:
            async with FakeUpstream(address("192.0.2.7")).serve("127.0.0.3", first.port):
                async with running("127.0.0.2", "127.0.0.3", port=first.port) as one:
                    assert texts(await one.ask("www.example.com")) == ["192.0.2.7"]


async def test_no_such_name_is_final_whatever_the_next_upstream_would_say() -> None:
    async with FakeUpstream(code(dns.rcode.NXDOMAIN)).serve("127.0.0.2") as first:
        async with FakeUpstream(address("192.0.2.7")).serve("127.0.0.3", first.port) as second:
            async with running("127.0.0.2", "127.0.0.3", port=first.port) as one:
                assert (await one.ask("www.example.com")).rcode() == dns.rcode.NXDOMAIN
                assert second.asked["www.example.com."] == 0


def test_the_times_that_are_set_keep_the_promise() -> None:
    assert LIMIT_SICK_S < LIMIT_S < CLIENT_S
    assert 2 * TRY_S < LIMIT_S, "a second server has as long as the first"
    assert TCP_TIMEOUT_S < LIMIT_S


async def test_dead_upstreams_end_in_servfail_in_time_and_own_names_are_answered_meanwhile() -> None:
    async def failed(name: str) -> float:
        """After how many seconds."""
        began_s = time.monotonic()
        dead = asyncio.create_task(one.ask(name))
        assert texts(await one.ask("llama-0")) == ["10.0.0.1"]
        assert not dead.done()
        assert (await dead).rcode() == dns.rcode.SERVFAIL
        return time.monotonic() - began_s

    async with in_front_of(silence) as (one, _):
        took_s = [await failed(f"{number}.example.com") for number in range(SICK_AFTER)]
        assert LIMIT_S - 0.1 < min(took_s) < CLIENT_S
        assert one.forwarder.upstreams == {"127.0.0.1": False}
        took_s = [await failed(f"{number}.example.org") for number in range(3)]
        assert LIMIT_SICK_S - 0.1 < min(took_s) < LIMIT_SICK_S + CLIENT_S - LIMIT_S


async def test_without_any_upstream_an_outside_name_fails_at_once() -> None:
    async with running() as one:
        assert (await one.ask("www.example.com")).rcode() == dns.rcode.SERVFAIL
        assert texts(await one.ask("llama-0")) == ["10.0.0.1"]


async def test_an_upstream_that_comes_back_is_used_again() -> None:
    async with in_front_of(silence) as (one, upstream):
        await asyncio.gather(*(one.ask(f"{number}.example.com") for number in range(4)))
        assert one.forwarder.upstreams == {"127.0.0.1": False}
        upstream.answers = address("192.0.2.7")
        await until(lambda: one.forwarder.upstreams["127.0.0.1"])
        assert texts(await one.ask("5.example.com")) == ["192.0.2.7"]


async def test_what_was_known_is_said_again_when_nobody_answers_any_more() -> None:
    async with in_front_of(address("192.0.2.7", ttl_s=1)) as (one, upstream):
        assert texts(await one.ask("www.example.com")) == ["192.0.2.7"]
        upstream.answers = silence
        await asyncio.sleep(1.1)
        message = await one.ask("www.example.com")
        assert texts(message) == ["192.0.2.7"]
        assert message.answer[0].ttl == 5


async def test_a_server_that_forwards_to_us_is_found_out() -> None:
    udp, tcp = bound_pair()
    async with running("127.0.0.1", port=udp.getsockname()[1]) as one:
        one.server.add("loop-udp", "nlp", udp)
        one.server.add("loop-tcp", "nlp", tcp)
        await until(lambda: one.forwarder.loops)
        assert (await one.ask("www.example.com")).rcode() == dns.rcode.SERVFAIL


async def test_a_server_that_forwards_to_us_is_used_once_it_does_not_and_found_out_when_it_does_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert 10 <= forward.LOOP_EVERY_S <= 30
    monkeypatch.setattr(forward, "LOOP_EVERY_S", 0.05)
    monkeypatch.setattr(forward, "CHECK_EVERY_S", 0.2)
    async with in_front_of(address("192.0.2.7")) as (one, upstream):
        here = ("127.0.0.1", one.ports["nlp"])

        def forwards_to_us(query: dns.message.Message) -> list[bytes]:
            """And to others, whose answer comes first."""
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asker:
                asker.sendto(query.to_wire(), here)
            return address("192.0.2.7")(query)

        for _ in range(2):
            upstream.answers = forwards_to_us
            await until(lambda: one.forwarder.loops == ("127.0.0.1",))
            assert (await one.ask("www.example.com")).rcode() == dns.rcode.SERVFAIL
            await asyncio.sleep(0.5)
            assert one.forwarder.loops == ("127.0.0.1",), "answers alone are no proof"
            upstream.answers = address("192.0.2.7")
            await until(lambda: not one.forwarder.loops)
        assert texts(await one.ask("www.example.com")) == ["192.0.2.7"]


async def test_a_server_that_forwards_to_us_and_then_says_nothing_stays_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forward, "LOOP_EVERY_S", 0.05)
    monkeypatch.setattr(forward, "CHECK_EVERY_S", 0.1)
    udp, tcp = bound_pair()
    async with running("127.0.0.1", port=udp.getsockname()[1]) as one:
        one.server.add("loop-udp", "nlp", udp)
        one.server.add("loop-tcp", "nlp", tcp)
        await until(lambda: one.forwarder.loops)
        one.server.remove("loop-udp")
        await asyncio.sleep(0.4)
        assert one.forwarder.loops == ("127.0.0.1",)


async def test_loops_are_looked_for_with_one_question_at_a_time_of_each_server() -> None:
    async with in_front_of(silence) as (_, upstream):
        await until(lambda: upstream.asked)
        await asyncio.sleep(0.3)
        assert sum(upstream.asked.values()) == 1


CALLED_AS_IN_COREDNS = {
    "cache_entries", "cache_hits_total", "cache_misses_total", "cache_requests_total", "cache_served_stale_total",
    "dns_requests_total", "dns_responses_total", "forward_healthcheck_broken_total",
    "forward_max_concurrent_rejects_total", "hosts_entries", "panics_total", "proxy_request_duration_seconds",
}  # fmt: skip
"""Of what CoreDNS 1.12.4 says of itself with `prometheus`, `hosts`, `cache` and `forward`."""
OURS = {
    "dns_ignored_total", "forward_coalesced_total", "forward_failures_total", "forward_healthy",
    "forward_requests_total", "forward_wrong_answers_total",
}  # fmt: skip


async def test_the_counters_speak_prometheus() -> None:
    async with in_front_of(address("192.0.2.7")) as (one, upstream):
        await one.ask("llama-0")
        for name in ("www.example.com", "www.example.com", "WWW.example.com"):
            await one.ask(name)
        upstream.answers = code(dns.rcode.NXDOMAIN)
        await one.ask("none.example.com")
        text = one.counters.text(entries=3, cached=1, healthy=one.forwarder.upstreams)
        assert 'astra_dns_requests_total{proto="udp"} 5\n' in text
        assert 'astra_dns_responses_total{rcode="NOERROR"} 4\n' in text
        assert 'astra_cache_hits_total{type="success"} 2\n' in text
        assert "astra_cache_requests_total 4\n" in text
        assert 'astra_forward_healthy{to="127.0.0.1"} 1\n' in text
        about = 'proxy_name="forward",to="127.0.0.1",rcode='
        for rcode in ("NOERROR", "NXDOMAIN"):
            assert f'astra_proxy_request_duration_seconds_count{{{about}"{rcode}"}} 1\n' in text
        names = {line.split()[2].removeprefix("astra_") for line in text.splitlines() if line.startswith("# TYPE")}
        assert names == CALLED_AS_IN_COREDNS | OURS
        readme = (ROOT / "dns/README.md").read_text()
        assert all(f"`{name}" in readme for name in names)


async def test_questions_while_no_server_is_known_to_answer_are_counted() -> None:
    async with in_front_of(silence) as (one, _):
        await asyncio.gather(*(one.ask(f"{number}.example.com") for number in range(4)))
        assert one.counters.broken == 0
        await one.ask("4.example.com")
        assert one.counters.broken == 1


def test_a_counter_is_told_to_the_last_digit() -> None:
    text = Counters(cache_misses=123_456_789).text(entries=0, cached=0, healthy={})
    assert "astra_cache_misses_total 123456789\n" in text
