"""The name server's process in real network namespaces: who is told what, and what outlives whom."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import struct
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import dns.message
import dns.query
import dns.rcode
import pytest

from astra_agent import namespaces
from astra_agent.config import AgentConfig
from astra_agent.errors import NotFound
from astra_agent.name_server import LINGER_S, NameServer
from astra_agent.wire import RunNames
from astra_dns.main import NICENESS
from tests import cgroups
from tests.fakes.eventually import until

CGROUP = cgroups.own("name-server")
ASK_S = 5.0


@dataclass
class Machine:
    """An agent's name server, without the agent; *machine* and *slot* are network namespaces."""

    folder: Path
    netns: Path
    own: Path
    config: AgentConfig
    names: NameServer = field(init=False)
    _task: asyncio.Task[None] | None = None

    def start(self, linger_s: float = LINGER_S) -> None:
        self.names = NameServer(self.config, linger_s)

    def run(self) -> None:
        self._task = asyncio.create_task(self.names.run())

    async def crash(self) -> None:
        """The agent is gone; the process of the name server is not."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    @property
    def pid(self) -> int:
        return next(iter(pids(self.folder)))


def pids(folder: Path) -> Iterator[int]:
    """Of name servers with their control socket below *folder*."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = path.read_bytes().split(b"\0")
            if b"astra_dns" in words and any(word.startswith(os.fsencode(folder)) for word in words):
                yield int(path.parent.name)


@pytest.fixture
async def machine(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Machine]:
    folder = tmp_path_factory.mktemp("m")
    netns, own = folder / "machine", folder / "slot"
    for one in (netns, own):
        namespaces.make(one)
    config = AgentConfig(
        name="gpu-1", state_dir=folder, address="10.0.0.1", netns=netns, upstreams=("127.0.0.9",), cgroup_parent=CGROUP
    )
    made = Machine(folder, netns, own, config)
    made.start()
    made.run()
    try:
        yield made
    finally:
        await made.crash()
        for pid in list(pids(folder)):
            os.kill(pid, signal.SIGKILL)
        cgroups.remove(CGROUP)
        for one in (netns, own):
            namespaces.remove(one)


def ask(netns: Path, address: str, name: str, *, tcp: bool = False) -> dns.message.Message:
    query = dns.message.make_query(name, "A")
    over = dns.query.tcp if tcp else dns.query.udp
    return namespaces.inside(netns, lambda: over(query, address, ASK_S))


def texts(message: dns.message.Message) -> list[str]:
    return [str(rdata) for rrset in message.answer for rdata in rrset]


def llama(address: str, *, workspace: str = "nlp", version: int = 1) -> RunNames:
    return RunNames(
        workspace=workspace, run="llama", addresses={"llama-0": (address,)}, leader="llama-0", port=29500, world_size=1,
        term=1, version=version,
    )  # fmt: skip


async def two_workspaces(machine: Machine) -> tuple[str, str]:
    """Slots of two workspaces with one run name on the machine's network; the addresses they ask."""
    first = await machine.names.serve("a", "nlp", machine.netns)
    second = await machine.names.serve("b", "vision", machine.netns)
    machine.names.publish("a", llama("10.0.0.1"))
    machine.names.publish("b", llama("10.0.9.9", workspace="vision"))
    await machine.names.settled()
    return first, second


async def test_workspaces_on_one_network_each_get_their_own_run_of_a_name(machine: Machine) -> None:
    first, second = await two_workspaces(machine)
    for tcp in (False, True):
        assert texts(await asyncio.to_thread(ask, machine.netns, first, "llama", tcp=tcp)) == ["10.0.0.1"]
        assert texts(await asyncio.to_thread(ask, machine.netns, second, "llama", tcp=tcp)) == ["10.0.9.9"]
    other = await asyncio.to_thread(ask, machine.netns, first, "llama-0.vision.astra.internal")
    assert other.rcode() == dns.rcode.NXDOMAIN


def bound(netns: Path, protocol: str) -> set[str]:
    """Addresses whose port 53 somebody has."""
    lines = namespaces.inside(netns, lambda: Path(f"/proc/thread-self/net/{protocol}").read_text()).splitlines()[1:]
    places = (line.split()[1].split(":") for line in lines)
    return {socket.inet_ntoa(struct.pack("=I", int(address, 16))) for address, port in places if int(port, 16) == 53}


async def test_it_has_its_own_addresses_and_never_all_of_them(machine: Machine) -> None:
    first, second = await two_workspaces(machine)
    own = await machine.names.serve("c", "nlp", machine.own)
    await machine.names.settled()
    for protocol in ("udp", "tcp"):
        assert bound(machine.netns, protocol) == {first, second}
        assert bound(machine.own, protocol) == {own}
        assert bound(machine.netns, f"{protocol}6") == set()


async def test_a_slot_with_a_network_of_its_own_asks_the_same_address_there(machine: Machine) -> None:
    address = await machine.names.serve("a", "nlp", machine.own)
    assert address == machine.config.name_server
    machine.names.publish("a", llama("10.0.0.1"))
    await machine.names.settled()
    assert texts(await asyncio.to_thread(ask, machine.own, address, "llama-0")) == ["10.0.0.1"]


async def test_what_is_withdrawn_is_not_answered_any_more_and_may_come_back_at_once(machine: Machine) -> None:
    first, second = await two_workspaces(machine)
    machine.names.withdraw("b")
    assert await machine.names.serve("c", "vision", machine.netns) == second
    await machine.names.settled()
    gone = await asyncio.to_thread(ask, machine.netns, second, "llama-0")
    assert gone.rcode() == dns.rcode.NXDOMAIN
    machine.names.withdraw("c")
    await machine.names.settled()
    assert texts(await asyncio.to_thread(ask, machine.netns, first, "llama-0")) == ["10.0.0.1"]
    await until(lambda: not is_answered(machine.netns, second))


def is_answered(netns: Path, address: str) -> bool:
    def connects() -> bool:
        with socket.socket() as probe:
            probe.settimeout(ASK_S)
            return probe.connect_ex((address, 53)) == 0

    return namespaces.inside(netns, connects)


async def test_a_name_server_that_is_killed_loses_no_question(machine: Machine) -> None:
    address, _ = await two_workspaces(machine)
    killed = machine.pid
    asked = asyncio.gather(*(asyncio.to_thread(storm, machine.netns, address, 1.5) for _ in range(2)))
    await asyncio.sleep(0.3)
    os.kill(killed, signal.SIGKILL)
    for count, refused, lost in await asked:
        assert count > 10
        assert (refused, lost) == (0, 0)
    assert machine.pid != killed
    assert os.getpriority(os.PRIO_PROCESS, machine.pid) == NICENESS


def storm(netns: Path, address: str, for_s: float) -> tuple[int, int, int]:
    """One question after the other on one socket: how many were answered, refused, and lost for good."""

    def work() -> tuple[int, int, int]:
        answered = refused = lost = 0
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asker:
            asker.settimeout(ASK_S)
            asker.connect((address, 53))
            end_s = time.monotonic() + for_s
            while time.monotonic() < end_s:
                try:
                    asker.send(dns.message.make_query("llama-0", "A").to_wire())
                    asker.recv(4096)
                    answered += 1
                except ConnectionRefusedError:
                    refused += 1
                except TimeoutError:
                    lost += 1
        return answered, refused, lost

    return namespaces.inside(netns, work)


async def test_names_outlive_the_agent_and_the_next_agent_takes_over_without_a_gap(machine: Machine) -> None:
    first, second = await two_workspaces(machine)
    server = machine.pid
    asked = asyncio.create_task(asyncio.to_thread(storm, machine.netns, first, 2.0))
    await machine.crash()
    assert texts(await asyncio.to_thread(ask, machine.netns, second, "llama-0")) == ["10.0.9.9"]
    machine.start()
    machine.names.restore("a", "nlp", machine.netns, first)
    machine.names.publish("a", llama("10.0.0.77", version=2))
    machine.run()
    await machine.names.settled()
    assert texts(await asyncio.to_thread(ask, machine.netns, first, "llama-0")) == ["10.0.0.77"]
    assert (await asked)[1:] == (0, 0)
    assert machine.pid == server
    await until(lambda: not is_answered(machine.netns, second), "what no slot has any more is let go")


async def test_with_both_killed_the_next_agent_brings_everything_back(machine: Machine) -> None:
    first, _ = await two_workspaces(machine)
    await machine.crash()
    os.kill(machine.pid, signal.SIGKILL)
    machine.start()
    machine.names.restore("a", "nlp", machine.netns, first)
    machine.names.publish("a", llama("10.0.0.1"))
    machine.run()
    await machine.names.settled()
    assert texts(await asyncio.to_thread(ask, machine.netns, first, "llama-0")) == ["10.0.0.1"]


async def test_other_settings_need_another_process_which_takes_the_sockets_over(machine: Machine) -> None:
    first, _ = await two_workspaces(machine)
    await machine.crash()
    machine.config = AgentConfig(
        name="gpu-1", state_dir=machine.folder, address="10.0.0.1", netns=machine.netns, zone="other.internal",
        cgroup_parent=CGROUP,
    )  # fmt: skip
    machine.start()
    machine.names.restore("a", "nlp", machine.netns, first)
    machine.names.publish("a", llama("10.0.0.1"))
    machine.run()
    await machine.names.settled()
    found = await asyncio.to_thread(ask, machine.netns, first, "llama-0.nlp.other.internal")
    assert texts(found) == ["10.0.0.1"]


async def test_a_taken_port_leaves_the_slot_without_our_server_and_says_so(machine: Machine) -> None:
    def take() -> socket.socket:
        taken = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        taken.bind(("0.0.0.0", 53))
        return taken

    with namespaces.inside(machine.netns, take):
        assert await machine.names.serve("a", "nlp", machine.netns) == ""
        (said,) = (sentence for sentence in machine.names.findings() if "port 53" in sentence)
        assert said.startswith("names are in hosts files only: port 53 of 169.254.53.53 can't be had")
    assert await machine.names.serve("a", "nlp", machine.netns) == machine.config.name_server


async def test_a_slot_is_looked_up_for_as_its_workers_ask(machine: Machine) -> None:
    first, second = await two_workspaces(machine)
    for slot, server, data in (("a", first, "10.0.0.1"), ("b", second, "10.0.9.9")):
        found = await machine.names.lookup(slot, "llama", "A")
        assert (found.server, found.rcode, [one.data for one in found.records]) == (server, "NOERROR", [data])
    assert (await machine.names.lookup("a", "llama-0.vision.astra.internal", "A")).rcode == "NXDOMAIN"
    with pytest.raises(NotFound, match="slot c asks no name server of ours"):
        await machine.names.lookup("c", "llama", "A")


async def test_counters_are_told_while_it_runs_and_that_it_does_not(machine: Machine) -> None:
    assert await machine.names.metrics() == "# TYPE astra_dns_up gauge\nastra_dns_up 0\n"
    address, _ = await two_workspaces(machine)
    await asyncio.to_thread(ask, machine.netns, address, "llama-0")
    text = await machine.names.metrics()
    assert "astra_dns_up 1\n" in text
    assert 'astra_dns_requests_total{proto="udp"} 1\n' in text


async def test_dead_upstreams_are_a_finding(machine: Machine) -> None:
    address, _ = await two_workspaces(machine)
    for number in range(4):
        answer = await asyncio.to_thread(ask, machine.netns, address, f"{number}.example.com")
        assert answer.rcode() == dns.rcode.SERVFAIL
    machine.names.publish("a", llama("10.0.0.1", version=2))
    await machine.names.settled()
    assert any("outside names will not resolve" in sentence for sentence in machine.names.findings())


async def test_the_process_ends_when_its_folder_is_removed(machine: Machine) -> None:
    await two_workspaces(machine)
    await machine.crash()
    machine.config.state_dir.joinpath("names.sock").unlink()
    await until(lambda: not list(pids(machine.folder)))


async def test_an_agent_that_ends_with_no_slot_left_takes_its_name_server_along(machine: Machine) -> None:
    await two_workspaces(machine)
    for slot in ("a", "b"):
        machine.names.withdraw(slot)
    await machine.names.settled()
    await machine.crash()
    await until(lambda: not list(pids(machine.folder)))


async def test_a_machine_without_slots_has_no_name_server_and_the_next_slot_brings_it_back(machine: Machine) -> None:
    await machine.names.settled()
    assert not list(pids(machine.folder))
    await machine.crash()
    machine.start(linger_s=0.1)
    machine.run()
    for _ in range(2):
        first, second = await two_workspaces(machine)
        assert texts(await asyncio.to_thread(ask, machine.netns, first, "llama-0")) == ["10.0.0.1"]
        machine.names.withdraw("a")
        await machine.names.settled()
        assert texts(await asyncio.to_thread(ask, machine.netns, second, "llama-0")) == ["10.0.9.9"]
        machine.names.withdraw("b")
        await until(lambda: not list(pids(machine.folder)), "the server ends with the last slot")


async def test_a_slot_that_comes_while_the_server_ends_is_answered(machine: Machine) -> None:
    await machine.crash()
    machine.start(linger_s=0)
    machine.run()
    for _ in range(5):
        address = await machine.names.serve("a", "nlp", machine.netns)
        machine.names.publish("a", llama("10.0.0.1"))
        await machine.names.settled()
        assert texts(await asyncio.to_thread(ask, machine.netns, address, "llama-0")) == ["10.0.0.1"]
        machine.names.withdraw("a")
        await machine.names.settled()
