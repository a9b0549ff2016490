"""The name server's process in real network namespaces: who is told what, and what outlives whom."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import struct
from collections.abc import AsyncIterator
from pathlib import Path

import dns.message
import dns.query
import dns.rcode
import pytest

from astra_agent import namespaces
from astra_agent.config import AgentConfig
from astra_agent.errors import NotFound
from astra_dns.main import NICENESS
from tests.containers import name_machine
from tests.containers.name_machine import ASK_S, CGROUP, Machine, ask, llama, pids, storm, texts, two_workspaces
from tests.fakes.eventually import until


@pytest.fixture
async def machine(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Machine]:
    async with name_machine.made(tmp_path_factory.mktemp("m")) as made:
        yield made


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
    for seen in await asked:
        assert seen.answered > 10
        assert (seen.refused, seen.lost) == (0, 0)
    assert machine.pid != killed
    assert os.getpriority(os.PRIO_PROCESS, machine.pid) == NICENESS


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
    seen = await asked
    assert (seen.refused, seen.lost) == (0, 0)
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
