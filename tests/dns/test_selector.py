"""Sockets that are read before asyncio has its turn, and everything else of the loop as it always is."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, Coroutine, Iterator

import pytest

from astra_dns.counters import Counters
from astra_dns.forward import Forwarder
from astra_dns.selector import PromptSelector
from astra_dns.server import Server
from tests.dns.names_of_runs import snapshot
from tests.dns.test_server import Running, texts
from tests.fakes.eventually import until
from tests.fakes.upstream import bound_pair

Work = Callable[[PromptSelector], Coroutine[None, None, None]]


def run(work: Work) -> None:
    selector = PromptSelector()
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selector)) as runner:
        runner.run(work(selector))


@contextlib.contextmanager
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    first, second = socket.socketpair(type=socket.SOCK_DGRAM)
    with first, second:
        first.setblocking(False)
        second.setblocking(False)
        yield first, second


def test_what_is_there_is_read_before_the_loops_own_readers() -> None:
    async def work(selector: PromptSelector) -> None:
        order: list[str] = []
        with ends() as (ours, peer), ends() as (loops, other):
            asyncio.get_running_loop().add_reader(loops, lambda: order.append(f"loop {loops.recv(9).decode()}"))
            selector.add_reader(ours, lambda: order.append(f"ours {ours.recv(9).decode()}"))
            other.send(b"1")
            peer.send(b"2")
            await until(lambda: len(order) == 2)
            assert order == ["ours 2", "loop 1"]
            selector.remove_reader(ours)
            peer.send(b"3")
            other.send(b"4")
            await until(lambda: len(order) == 3)
            assert order[2] == "loop 4"
            asyncio.get_running_loop().remove_reader(loops)

    run(work)


def test_a_reader_that_fails_does_not_end_the_loop(caplog: pytest.LogCaptureFixture) -> None:
    async def work(selector: PromptSelector) -> None:
        read: list[bytes] = []

        def fails() -> None:
            read.append(ours.recv(9))
            raise ValueError("no")

        with ends() as (ours, peer):
            selector.add_reader(ours, fails)
            for number in range(2):
                peer.send(b"%d" % number)
            await until(lambda: len(read) == 2)
            selector.remove_reader(ours)

    with caplog.at_level(logging.ERROR):
        run(work)
    assert [record.getMessage() for record in caplog.records] == ["reader_failed"] * 2


def test_a_server_answers_by_it_and_lets_its_sockets_go() -> None:
    async def work(selector: PromptSelector) -> None:
        forwarder, counters = Forwarder(Counters()), Counters()
        server = Server(snapshot(), forwarder, counters, selector)
        udp, tcp = bound_pair()
        one = Running(server, forwarder, counters, {"nlp": udp.getsockname()[1]})
        server.add("udp", "nlp", udp)
        server.add("tcp", "nlp", tcp)
        for over_tcp in (False, True, False):
            assert texts(await one.ask("llama-0", tcp=over_tcp)) == ["10.0.0.1"]
        assert (counters.udp_requests, counters.tcp_requests) == (2, 1)
        await server.close()
        assert udp.fileno() == -1
        await forwarder.close()

    run(work)
