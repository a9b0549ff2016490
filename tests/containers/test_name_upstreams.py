"""
Name servers of the machine behind a link that is cut, slow, or full of lies: what workers are told about names outside,
and that their own names do not notice. The name server runs in one network namespace, the machine's server in another.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import dns.flags
import dns.message
import dns.query
import dns.rcode
import pytest

from astra_agent import namespaces
from astra_dns.client import Client
from tests.dns.names_of_runs import LLAMA
from tests.fakes.eventually import until
from tests.fakes.upstream import FakeUpstream, address, bound_pair, truncated

US, THEM = "10.9.0.1", "10.9.0.2"
SLOW_RATE = "4kbit"
"""An answer takes a fifth of a second, and those behind it wait."""
CLIENT_S = 5.0
"""What glibc waits for one answer."""


@dataclass
class Machine:
    """*ours* holds the name server, *theirs* the machine's own; `up0` in *ours* and `up1` in *theirs* are the link."""

    ours: Path
    theirs: Path
    upstream: FakeUpstream

    def ip(self, netns: Path, *words: str) -> None:
        subprocess.run(["nsenter", f"--net={netns}", *words], check=True, timeout=10, capture_output=True)

    async def ask(self, name: str, kind: str = "A") -> tuple[dns.message.Message, float]:
        """The answer, and after how many seconds it came."""
        query = dns.message.make_query(name, kind)
        began = time.monotonic()
        answer = await asyncio.to_thread(
            namespaces.inside, self.ours, lambda: dns.query.udp(query, "127.0.0.1", CLIENT_S)
        )
        return answer, time.monotonic() - began

    async def check_own_names(self) -> None:
        answer, _ = await self.ask("llama-0")
        assert texts(answer) == ["10.0.0.1"]


def texts(message: dns.message.Message) -> list[str]:
    return [str(rdata) for rrset in message.answer for rdata in rrset]


@pytest.fixture
async def machine(tmp_path: Path) -> AsyncIterator[Machine]:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    async with contextlib.AsyncExitStack() as stack:
        for netns in (ours, theirs):
            namespaces.make(netns)
            stack.callback(namespaces.remove, netns)
        made = Machine(ours, theirs, FakeUpstream(address("192.0.2.80")))
        made.ip(ours, "ip", "link", "add", "up0", "type", "veth", "peer", "name", "up1")
        made.ip(ours, "ip", "link", "set", "up1", "netns", str(theirs))
        for netns, link, own in ((ours, "up0", US), (theirs, "up1", THEM)):
            made.ip(netns, "ip", "link", "set", "lo", "up")
            made.ip(netns, "ip", "address", "add", f"{own}/24", "dev", link)
            made.ip(netns, "ip", "link", "set", link, "up")
        await stack.enter_async_context(made.upstream.serve(THEM, 53, theirs))
        await stack.enter_async_context(name_server(tmp_path, ours))
        yield made


@contextlib.asynccontextmanager
async def name_server(folder: Path, netns: Path) -> AsyncIterator[None]:
    control = folder / "names.sock"
    words = ["-P", "-m", "astra_dns", "--control", str(control), "--upstream", THEM]
    process = await asyncio.create_subprocess_exec("nsenter", f"--net={netns}", sys.executable, *words)
    try:
        await until(control.exists)
        with Client(control) as client:
            client.put(LLAMA)
            client.publish()
            for name, sock in zip(("udp", "tcp"), namespaces.inside(netns, lambda: bound_pair(port=53)), strict=True):
                with sock:
                    client.listen(name, LLAMA.workspace, sock.fileno())
        yield
    finally:
        process.terminate()
        await process.wait()


@pytest.mark.parametrize("end", ["up0", "up1"])
async def test_a_cut_link_fails_names_outside_in_time_and_they_are_back_with_it(machine: Machine, end: str) -> None:
    netns = machine.ours if end == "up0" else machine.theirs
    assert texts((await machine.ask("before.example.com"))[0]) == ["192.0.2.80"]
    machine.ip(netns, "ip", "link", "set", end, "down")
    for number in range(4):
        answer, took_s = await machine.ask(f"{number}.example.com")
        assert answer.rcode() == dns.rcode.SERVFAIL
        assert took_s < CLIENT_S
        await machine.check_own_names()
    assert texts((await machine.ask("before.example.com"))[0]) == ["192.0.2.80"], "from the cache"
    machine.ip(netns, "ip", "link", "set", end, "up")
    async with asyncio.timeout(20):
        while not texts((await machine.ask("after.example.com"))[0]):  # noqa: ASYNC110 -- asked over the network
            await asyncio.sleep(0.1)


async def test_a_slow_link_delays_names_outside_and_no_own_name(machine: Machine) -> None:
    shaped = ("tbf", "rate", SLOW_RATE, "burst", "600", "latency", "5s")
    machine.ip(machine.theirs, "tc", "qdisc", "add", "dev", "up1", "root", *shaped)
    asked = [asyncio.create_task(machine.ask(f"{number}.example.com")) for number in range(8)]
    while not all(task.done() for task in asked):
        await machine.check_own_names()
    answers = [answer for answer, _ in await asyncio.gather(*asked)]
    assert {answer.rcode() for answer in answers} <= {dns.rcode.NOERROR, dns.rcode.SERVFAIL}
    assert any(texts(answer) == ["192.0.2.80"] for answer in answers)


async def test_wrong_ids_and_wrong_questions_are_not_believed(machine: Machine) -> None:
    def lies(query: dns.message.Message) -> list[bytes]:
        wrong_id, *_ = address("192.0.2.66")(query)
        other = dns.message.make_query("evil.example.com", "A", id=query.id)
        (truth,) = address("192.0.2.80")(query)
        return [bytes((wrong_id[0] ^ 1,)) + wrong_id[1:], *address("192.0.2.66")(other), truth]

    machine.upstream.answers = lies
    for number in range(20):
        assert texts((await machine.ask(f"{number}.example.com"))[0]) == ["192.0.2.80"]
    machine.upstream.answers = address("192.0.2.80")
    assert texts((await machine.ask("evil.example.com"))[0]) == ["192.0.2.80"], "a lie was kept"


async def test_what_is_cut_short_is_asked_again_over_tcp(machine: Machine) -> None:
    machine.upstream.answers, machine.upstream.over_tcp = truncated, address("192.0.2.80")
    assert texts((await machine.ask("long.example.com"))[0]) == ["192.0.2.80"]
    assert machine.upstream.asked["long.example.com. tcp"] == 1
