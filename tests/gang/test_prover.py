"""Proofs of a run's network in its barrier: who is to blame is swapped, whatever is cut off or killed meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from astra_agent.wire import PortFacts
from astra_gang.core import Policy
from tests.fakes.cluster import FakeCluster
from tests.fakes.eventually import until
from tests.fakes.nomad.recorded import NEWEST
from tests.fakes.runs import document

SLOW_BPS = 2e7


@pytest.fixture(params=["embedded", "nomad"])
async def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[FakeCluster]:
    on_nomad = NEWEST if request.param == "nomad" else None
    async with FakeCluster(tmp_path, machines=5, on_nomad=on_nomad) as made:
        await made.connected()
        yield made
        await until(lambda: not any(agent.probes for agent in made.agents.values()), "no probe is left")
        assert made.wrong() == []


async def submit(cluster: FakeCluster, machines: int = 4, name: str = "llama", **spec: Any) -> None:
    status, answer = await cluster.request("POST", "jobs", json=document(name, machines, preflight=True, **spec))
    assert status == 201, answer
    assert answer["spec"]["preflight"] is True


def hold_probes(cluster: FakeCluster) -> None:
    for agent in cluster.agents.values():
        agent.answers_probes.clear()


def let_probes_go(cluster: FakeCluster) -> None:
    for agent in cluster.agents.values():
        agent.answers_probes.set()


def probed(cluster: FakeCluster) -> int:
    return sum(agent.probes for agent in cluster.agents.values())


def slow_down(cluster: FakeCluster, name: str) -> None:
    cluster.network[cluster.agents[name].facts.address] = SLOW_BPS


async def pass_time(cluster: FakeCluster, seconds: float) -> None:
    """All agents but those that are away have said meanwhile that they are there."""
    cluster.clock.advance(seconds)
    for agent in cluster.agents.values():
        await agent.lease(1)


def armed(cluster: FakeCluster) -> bool:
    return any(held.arms for agent in cluster.agents.values() for held in agent.held.values())


async def complete(cluster: FakeCluster, workers: int = 4, name: str = "llama") -> None:
    for rank in range(workers):
        agent, slot = cluster.slot(f"{name}-{rank}")
        await agent.exit(slot, 0)
    await cluster.until_phase("Completed", name)


async def test_nobody_is_armed_before_the_network_is_proved(cluster: FakeCluster) -> None:
    hold_probes(cluster)
    await submit(cluster)
    await until(lambda: probed(cluster) == 4, "every machine takes part")
    status = await cluster.job()
    assert (status["phase"], status["reason"]) == ("Starting", "Proving the network of 4 machines")
    assert not armed(cluster)
    let_probes_go(cluster)
    await cluster.until_phase("running")
    said = await cluster.sentences()
    assert any(s.startswith("The network is proved: 4 machines are sound: ") for s in said)
    await complete(cluster)


async def test_what_the_run_asks_of_its_ports_is_asked_of_the_network(tmp_path: Path) -> None:
    made = FakeCluster(tmp_path, machines=2)
    for agent in made.agents.values():
        agent.facts = agent.facts.model_copy(update={"ports": (PortFacts(name="eth0", tier="ethernet", gbps=10),)})
    said = await told_a_pair(made, {"min_gbps": 10})
    assert any("Gbit/s of the 10.00 Gbit/s asked for; both machines are equally slow" in s for s in said), said


async def told_a_pair(made: FakeCluster, network: dict[str, Any]) -> list[str]:
    """What a run of two that asks for this network is told until it runs; then it completes."""
    wanted = document("llama", 2, preflight=True)
    wanted["spec"]["task_template"]["requested_resources"]["network"] = network
    async with made:
        await made.connected()
        status, answer = await made.request("POST", "jobs", json=wanted)
        assert status == 201, answer
        await made.until_phase("running")
        said = await made.sentences()
        await complete(made, 2)
    return said


async def test_what_tcp_can_t_show_of_rdma_ports_is_not_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made = FakeCluster(tmp_path, machines=3)
    ports = (PortFacts(name="mlx5_0", tier="infiniband", gbps=400),)
    for agent in made.agents.values():
        agent.facts = agent.facts.model_copy(update={"ports": ports, "domains": {"infiniband": "ib-1"}})
    said = await told_a_pair(made, {"interconnect": "infiniband", "min_gbps": 400})
    assert any("asked for, which is of RDMA ports, and over these nothing was measured" in s for s in said), said
    assert "proof_again" not in caplog.text


async def test_a_restart_on_the_same_machines_is_not_proved_again(cluster: FakeCluster) -> None:
    await submit(cluster)
    await cluster.until_phase("running")
    agent, slot = cluster.slot("llama-1")
    await agent.exit(slot, 1)
    await until(lambda: all(1 in h.attempts for a in cluster.agents.values() for h in a.held.values()))
    cluster.clock.advance(10.5)
    await cluster.until_phase("running")
    assert (await cluster.sentences()).count("Proving the network of 4 machines") == 1
    await complete(cluster)


async def test_the_machine_to_blame_is_swapped_and_the_run_completes(cluster: FakeCluster) -> None:
    slow_down(cluster, "m2")
    await submit(cluster)
    await cluster.until_phase("running")
    assert {cluster.slot(f"llama-{rank}")[0].name for rank in range(4)} == {"m1", "m3", "m4", "m5"}
    said = await cluster.sentences()
    blame = "m2 sends at 0.02 and receives at 0.02 of the others' median; the link of m2 is slow in both directions"
    assert blame in said
    assert "llama-1 leaves m2: another machine is tried" in said
    assert said.count("Proving the network of 4 machines") == 2
    assert not any(slot for slot, _ in cluster.agents["m2"].started), "no program of the user ran there"
    await complete(cluster)


async def test_a_machine_that_bounds_itself_is_not_swapped(cluster: FakeCluster) -> None:
    cluster.agents["m2"].probe_max_bps = 2e8
    await submit(cluster)
    await cluster.until_phase("running")
    assert {cluster.slot(f"llama-{rank}")[0].name for rank in range(4)} == {"m1", "m2", "m3", "m4"}
    (proved,) = [sentence for sentence in await cluster.sentences() if sentence.startswith("The network is proved: ")]
    assert "m2 sends no faster than 0.20 Gbit/s in a probe, by its own setting, and was measured only up to" in proved
    await complete(cluster)


async def test_without_another_machine_the_run_says_why_it_waits(cluster: FakeCluster) -> None:
    slow_down(cluster, "m2")
    await submit(cluster, machines=5)
    await until(lambda: cluster.phase() == "pending" and cluster.run().state.faults == 1)
    reason = (await cluster.job())["reason"]
    assert reason.startswith("Gang cannot be placed whole: ")
    assert reason.endswith("the link of m2 is slow in both directions")
    assert not armed(cluster)
    del cluster.network[cluster.agents["m2"].facts.address]
    await pass_time(cluster, Policy().avoid_s + 1)
    async with asyncio.timeout(60):
        while cluster.phase() == "pending":  # an answer that was on its way left the machine out once more
            await pass_time(cluster, Policy().place_retry_s + 1)
            await asyncio.sleep(0.05)
    await cluster.until_phase("running")
    await complete(cluster, 5)


async def test_slots_with_addresses_of_their_own_are_proved_in_their_own_network(cluster: FakeCluster) -> None:
    """What is slow there is none of the machine's address, and the other way round."""
    for agent in cluster.agents.values():
        agent.own_addresses = True
    cluster.network[cluster.agents["m2"].slot_address] = SLOW_BPS
    slow_down(cluster, "m3")
    await submit(cluster)
    await until(lambda: bool(cluster.agents["m2"].probed_slots), "m2 takes part")
    (asked,) = cluster.agents["m2"].probed_slots
    assert asked is not None
    await cluster.until_phase("running")
    assert {cluster.slot(f"llama-{rank}")[0].name for rank in range(4)} == {"m1", "m3", "m4", "m5"}
    for rank in range(4):
        agent, slot = cluster.slot(f"llama-{rank}")
        assert agent.probed_slots[-1] == slot
    await complete(cluster)


async def test_slots_at_their_machines_address_are_proved_as_machines(cluster: FakeCluster) -> None:
    await submit(cluster)
    await cluster.until_phase("running")
    assert {slot for agent in cluster.agents.values() for slot in agent.probed_slots} == {None}
    await complete(cluster)


@pytest.mark.parametrize(("slow", "runs_on"), [("m2", {"m1", "m3"}), ("m3", {"m1", "m2"})])
async def test_a_run_of_two_has_an_idle_machine_for_a_witness(
    cluster: FakeCluster, slow: str, runs_on: set[str]
) -> None:
    """Two that are slow alike can't tell whose link it is; what is wrong with the witness is not the run's business."""
    slow_down(cluster, slow)
    await submit(cluster, 2)
    await cluster.until_phase("running")
    assert {cluster.slot(f"llama-{rank}")[0].name for rank in range(2)} == runs_on
    said = await cluster.sentences()
    assert any(s.startswith("The network is proved: 2 machines are sound: ") for s in said)
    await complete(cluster, 2)


async def test_a_coordinator_that_starts_again_proves_anew(cluster: FakeCluster) -> None:
    hold_probes(cluster)
    await submit(cluster)
    await until(lambda: probed(cluster) == 4)
    await cluster.kill()
    await until(lambda: probed(cluster) == 0, "its probe ends with it")
    let_probes_go(cluster)
    await cluster.start()
    await cluster.until_phase("running")
    assert any(s.startswith("The network is proved: ") for s in await cluster.sentences())
    await complete(cluster)


async def test_a_stop_ends_the_proof(cluster: FakeCluster) -> None:
    hold_probes(cluster)
    await submit(cluster)
    await until(lambda: probed(cluster) == 4)
    status, _ = await cluster.request("POST", "jobs/llama/stop")
    assert status == 202
    await until(lambda: probed(cluster) == 0, "the probe ends")
    await cluster.until_phase("Stopped")
    assert not armed(cluster)


async def test_an_agent_that_comes_back_takes_part_in_another_try(cluster: FakeCluster) -> None:
    hold_probes(cluster)
    await submit(cluster)
    await until(lambda: probed(cluster) == 4)
    away = cluster.agents["m3"]
    await away.disconnect()
    let_probes_go(cluster)
    await until(lambda: probed(cluster) == 0, "the others are let go")
    away.connect(cluster.url)
    await cluster.until_phase("running")
    said = await cluster.sentences()
    assert any(s.startswith("The network is proved: 4 machines are sound") for s in said)
    await complete(cluster)


async def test_a_machine_that_is_lost_while_it_is_proved_is_swapped(cluster: FakeCluster) -> None:
    hold_probes(cluster)
    await submit(cluster)
    await until(lambda: probed(cluster) == 4)
    await cluster.agents["m3"].disconnect()
    await until(lambda: "m3" not in cluster.parts.links.connected())
    await pass_time(cluster, 60 + Policy().stop_grace_s + 16)
    await until(lambda: "m5" in {w.slot.machine for w in cluster.run().state.workers if w.slot is not None})
    let_probes_go(cluster)
    await cluster.until_phase("running")
    assert "llama-2 is Down: its machine m3 is lost" in await cluster.sentences()
    await complete(cluster)


async def test_two_runs_on_the_same_machines_are_proved_one_after_the_other(cluster: FakeCluster) -> None:
    hold_probes(cluster)
    await submit(cluster, 5, "one")
    await submit(cluster, 5, "two")
    for name in ("one", "two"):
        await until(lambda name=name: cluster.phase(name) == "assembling" and cluster.run(name).state.proof is not None)  # type: ignore[misc]
    let_probes_go(cluster)
    await cluster.until_phase("running", "one")
    await cluster.until_phase("running", "two")
    assert {agent.probes_most for agent in cluster.agents.values()} == {1}
    await complete(cluster, 5, "one")
    await complete(cluster, 5, "two")


async def test_a_proof_that_takes_too_long_holds_up_nobody(tmp_path: Path) -> None:
    async with FakeCluster(tmp_path, machines=2, policy=Policy(prove_s=0.3)) as cluster:
        await cluster.connected()
        cluster.agents["m2"].answers_probes.clear()
        await submit(cluster, 2)
        await cluster.until_phase("running")
        said = await cluster.sentences()
        assert any(s.startswith("The run goes on without a proof of its network: ") for s in said)
        await until(lambda: probed(cluster) == 0)


async def test_a_machine_that_takes_no_part_holds_up_nobody(cluster: FakeCluster) -> None:
    cluster.agents["m2"].refuses_probes = "2 probes run on this machine: wait for their end"
    await submit(cluster)
    await cluster.until_phase("running")
    said = await cluster.sentences()
    assert (
        "The run goes on without a proof of its network: m2: 2 probes run on this machine: wait for their end" in said
    )


@pytest.mark.parametrize("durable", [True, False], ids=["right after it", "right before it"])
async def test_killed_at_any_commit_the_machine_to_blame_is_swapped_all_the_same(tmp_path: Path, durable: bool) -> None:
    """From submit to Running, once for each commit at which the coordinator may die."""
    number, survived = 0, False
    while not survived:
        number += 1
        folder = tmp_path / str(number)
        folder.mkdir()
        patient = Policy(prove_wait_s=100_000.0)  # the test's clock runs ahead of the probe's
        async with FakeCluster(folder, machines=4, disconnect_limit_s=100_000.0, policy=patient) as cluster:
            await cluster.connected()
            slow_down(cluster, "m2")
            cluster.kill_at_commit(number, durable=durable)
            await live_until_it_runs(cluster)
            survived = cluster.store.terms == 1 and not cluster.is_dead()
            assert cluster.wrong() == [], f"killed at commit {number}"
            assert {w.slot.machine for w in cluster.run().state.workers if w.slot is not None} == {"m1", "m3", "m4"}
            assert not cluster.agents["m2"].started, f"killed at commit {number}"
    assert number > 12, "the script has more commits than that"


async def live_until_it_runs(cluster: FakeCluster) -> None:
    async with asyncio.timeout(60):
        while cluster.is_dead() or cluster.phase() != "running":
            if cluster.is_dead():
                await cluster.start()
            if cluster.phase() == "none":
                with suppress(aiohttp.ClientError, AssertionError):
                    await submit(cluster, 3)
            cluster.clock.advance(0.5)
            await asyncio.sleep(0.01)
