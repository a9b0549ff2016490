"""What is left of a machine: its agent's facts, less the book's slots, less what others run there."""

from __future__ import annotations

from typing import Any

import pytest

from astra_agent.wire import RunRef, SlotRequest
from astra_gang.engines.book import BookEntry, Hold
from astra_gang.engines.nomad.answers import Allocation, Node
from astra_gang.engines.nomad.machines import Sighting, leaving, machine, others_by_node
from tests.fakes.nomad import recorded
from tests.fakes.runs import facts

DRIVER = {"astra": {"Detected": True, "Healthy": True, "Attributes": {"driver.astra.machine": "m1"}}}


def node(**changes: Any) -> Node:
    cpu = {"CpuShares": 16000, "TotalCpuCores": 16}
    resources = {"Cpu": cpu, "Memory": {"MemoryMB": 65536}}
    base = {"ID": "n1", "Name": "host-1", "Status": "ready", "Drivers": DRIVER, "NodeResources": resources}
    return Node.of(base | changes)


def allocation(**resources: Any) -> Allocation:
    task = {"Cpu": {"CpuShares": 2000}, "Memory": {"MemoryMB": 1024}, **resources}
    return Allocation.of({"ID": "a1", "NodeID": "n1", "AllocatedResources": {"Tasks": {"t": task}}})


def entry(slot: str, *gpus: int) -> BookEntry:
    run = RunRef(workspace="default", name="llama", uid="u1")
    request = SlotRequest(slot=slot, run=run, worker="llama-0", image="host", gpus=gpus, cpu_cores=1.0)
    return BookEntry(slot, "m1", "u1/1", request, Hold.HELD, 0.0)


def test_the_book_and_others_and_the_machine_itself_take_their_share() -> None:
    devices = [{"Vendor": "nvidia", "Type": "gpu", "DeviceIDs": ["GPU-m1-7"]}]
    reserved = {"Cpu": {"CpuShares": 1000}, "Memory": {"MemoryMB": 512}}
    seen = Sighting(
        node(ReservedResources=reserved), facts("m1"), True, (entry("a", 0),), (allocation(Devices=devices),)
    )
    found = machine(seen)
    assert found.free_cpu_cores == 16 - 1 - 2 - 1
    assert found.free_memory_bytes == 64 * 2**30 - (1024 + 512) * 2**20
    assert found.free_gpus == (1, 2, 3, 4, 5, 6)
    assert (found.slots, found.out_of_use, found.connected) == (("a",), None, True)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"Drain": True}, "m1 is being drained"),
        ({"Status": "down"}, "m1 is down in Nomad"),
        ({"Status": "disconnected"}, "m1 is disconnected in Nomad"),
        (
            {"SchedulingEligibility": "ineligible"},
            "m1 is not eligible: nomad node eligibility -enable n1 makes it eligible again",
        ),
        (
            {"SchedulingEligibility": "ineligible", "LastDrain": {"Status": "complete"}},
            "m1 has been drained: nomad node eligibility -enable n1 makes it eligible again",
        ),
        ({"Drivers": {}}, "m1 has no task driver astra: install it there and restart Nomad's client"),
        (
            {"Drivers": {"astra": DRIVER["astra"] | {"Healthy": False, "HealthDescription": "the agent is away"}}},
            "the task driver astra of m1 is not healthy: the agent is away",
        ),
    ],
)
def test_a_machine_that_nomad_would_not_use_is_out_of_use_with_the_reason(
    changes: dict[str, Any], sentence: str
) -> None:
    assert machine(Sighting(node(**changes), facts("m1"), True)).out_of_use == sentence


def test_what_the_agent_says_of_its_machine_comes_first() -> None:
    sick = facts("m1", out_of_use="process 4711 of llama-1 does not die")
    assert machine(Sighting(node(Drain=True), sick, True)).out_of_use == "process 4711 of llama-1 does not die"


def test_a_node_whose_agent_has_not_spoken_is_shown_as_nomad_has_it() -> None:
    found = machine(Sighting(node(Address="10.0.0.1"), None, False))
    assert (found.facts.name, found.facts.address, found.facts.cpu_cores) == ("m1", "10.0.0.1", 16)
    assert not found.connected


def test_a_node_without_the_driver_s_attribute_goes_by_its_own_name() -> None:
    assert node(Drivers={}).machine == "host-1"


def test_only_a_drain_sends_away_what_runs() -> None:
    assert leaving(node(Drain=True)) == "m1 is being drained"
    for changes in ({"Status": "down"}, {"SchedulingEligibility": "ineligible"}, {}):
        assert leaving(node(**changes)) is None


def test_ended_and_own_allocations_take_nothing_from_others() -> None:
    ended = Allocation.of({"ID": "a2", "NodeID": "n1", "ClientStatus": "complete"})
    own = Allocation.of({"ID": "a3", "NodeID": "n1", "ClientStatus": "running"})
    unknown = Allocation.of({"ID": "a4", "NodeID": "n1", "ClientStatus": "unknown"})
    assert others_by_node((ended, own, unknown), {"a3": own}) == {"n1": [unknown]}


@pytest.mark.parametrize("version", recorded.VERSIONS)
def test_nodes_of_both_versions_are_read(version: str) -> None:
    nodes = Node.list_of(recorded.body(version, "nodes-resources"))
    assert {n.pool for n in nodes} == {"gpu"}
    assert all(n.resources.cpu.cores == 2 and n.resources.memory.mb == 8192 for n in nodes)
