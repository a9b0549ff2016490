"""Plain jobs that ask to be a gang, on the small Nomad of the tests: what its users do to them, and what it does."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from astra_gang.engines.nomad.adoption import GRACE_S
from tests.fakes.cluster import FakeCluster
from tests.fakes.eventually import until
from tests.fakes.nomad.cluster import FakeAllocation, FakeNomad
from tests.fakes.nomad.recorded import VERSIONS

KEY = ("default", "hello")


@pytest.fixture(params=VERSIONS)
async def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[FakeCluster]:
    async with FakeCluster(tmp_path, machines=4, on_nomad=request.param) as made:
        await made.connected()
        yield made
        assert made.wrong() == []


def nomad(cluster: FakeCluster) -> FakeNomad:
    assert cluster.nomad is not None
    return cluster.nomad


def plain_job(count: int = 4, *, gpus: int = 0, **changes: Any) -> dict[str, Any]:
    resources: dict[str, Any] = {"CPU": 1000, "MemoryMB": 64}
    if gpus:
        resources["Devices"] = [{"Name": "nvidia/gpu", "Count": gpus, "Constraints": []}]
    group = {
        "Name": "g",
        "Count": count,
        "Constraints": [{"Operand": "distinct_hosts", "RTarget": "true"}],
        "RestartPolicy": {"Attempts": 0, "Mode": "fail"},
        "ReschedulePolicy": {"Attempts": 0, "Unlimited": False},
        "Tasks": [{"Name": "w", "Driver": "astra", "Config": {"image": "host"}, "Resources": resources}],
    }
    return {
        "ID": "hello", "Name": "hello", "Namespace": "default", "Type": "batch", "NodePool": "gpu",
        "Meta": {"astra_start": "Gang"}, "TaskGroups": [group],
    } | changes  # fmt: skip


def live(cluster: FakeCluster) -> list[FakeAllocation]:
    return [a for a in nomad(cluster).of(KEY) if a.desired == "run" and not a.over]


def running(cluster: FakeCluster) -> list[int]:
    return sorted(attempt for agent in cluster.agents.values() for _, attempt in agent.running())


async def adopted(cluster: FakeCluster, **changes: Any) -> None:
    nomad(cluster).register(plain_job(**changes))
    await cluster.until_phase("running", "hello")


async def exit_all(cluster: FakeCluster, code: int = 0) -> None:
    for agent in cluster.agents.values():
        for slot, _ in agent.running():
            await agent.exit(slot, code)


async def test_it_starts_together_with_ranks_and_completes_as_its_workers_do(cluster: FakeCluster) -> None:
    await adopted(cluster, gpus=8)
    arms = [arm for agent in cluster.agents.values() for held in agent.held.values() for arm in held.arms.values()]
    assert sorted((arm.env["RANK"], arm.worker) for arm in arms) == [(str(r), f"hello-{r}") for r in range(4)]
    assert {arm.env["ASTRAEUS_GPU_COUNT"] for arm in arms} == {"8"}
    await exit_all(cluster)
    await cluster.until_phase("Completed", "hello")
    await until(lambda: [a.client for a in nomad(cluster).of(KEY)] == ["complete"] * 4)


async def test_a_failure_restarts_it_in_the_same_allocations(cluster: FakeCluster) -> None:
    await adopted(cluster)
    before = [a.id for a in live(cluster)]
    agent = next(iter(cluster.agents.values()))
    (slot, _), *_ = agent.running()
    await agent.exit(slot, 1)
    await until(lambda: running(cluster) == [1, 1, 1, 1] or _advance(cluster))
    assert [a.id for a in live(cluster)] == before


async def test_what_is_placed_in_part_is_given_back_after_its_grace_and_tried_again(cluster: FakeCluster) -> None:
    nomad(cluster).set_node("m4", eligible=False)
    nomad(cluster).register(plain_job())
    await until(lambda: cluster.phase("hello") == "pending")
    await until(lambda: len(live(cluster)) == 3)
    # It is measured from when the coordinator has first seen it.
    await until(lambda: any("Nomad has placed 3 of 4" in s for _, s in told(cluster)) or _advance(cluster))
    await until(lambda: not live(cluster) or _advance(cluster))
    assert nomad(cluster).jobs[KEY].groups["g"]["Count"] == 0
    assert running(cluster) == []
    nomad(cluster).set_node("m4", eligible=True)
    await until(lambda: cluster.phase("hello") == "running" or _advance(cluster))
    assert nomad(cluster).jobs[KEY].groups["g"]["Count"] == 4


def told(cluster: FakeCluster) -> list[tuple[str, str]]:
    return [one for agent in cluster.agents.values() for one in agent.told]


def _advance(cluster: FakeCluster) -> bool:
    cluster.pass_time(GRACE_S / 50)
    return False


@pytest.mark.parametrize("disconnect_limit", [False, True], ids=["lost", "unknown"])
async def test_a_lost_machine_gives_all_of_it_back_and_places_it_anew(
    cluster: FakeCluster, disconnect_limit: bool
) -> None:
    await adopted(cluster, count=3)
    before = {a.id for a in live(cluster)}
    lost = next(a.node for a in live(cluster))
    agent = cluster.agents[lost.name]
    await agent.disconnect()
    nomad(cluster).set_node(lost.name, status="disconnected" if disconnect_limit else "down")
    for slot in list(agent.held):
        agent.held[slot].attempts.clear()
    for allocation in [a for a in live(cluster) if a.node is lost]:
        if disconnect_limit:
            nomad(cluster).update(allocation, client="unknown")
        else:
            nomad(cluster).update(allocation, client="lost", desired="stop")
    await until(lambda: running(cluster) == [1, 1, 1] or _advance(cluster))
    assert lost.name not in [a.node.name for a in live(cluster)]
    assert not before & {a.id for a in live(cluster)}


async def test_a_drained_machine_gives_all_of_it_back_and_places_it_elsewhere(cluster: FakeCluster) -> None:
    await adopted(cluster, count=3)
    drained = next(a.node for a in live(cluster))
    _, before = await cluster.request("GET", f"/v1/machines/{drained.name}")
    told = "draining it takes hello (3 workers) off all its machines and places it anew"
    assert [cost["sentence"] for cost in before["drain"]] == [told]
    nomad(cluster).set_node(drained.name, draining=True)
    await until(lambda: running(cluster) == [1, 1, 1] or _advance(cluster))
    assert drained.name not in [a.node.name for a in live(cluster)]


async def test_one_that_is_stopped_in_nomad_gives_all_of_it_back_and_places_it_anew(cluster: FakeCluster) -> None:
    await adopted(cluster, count=3)
    nomad(cluster).update(live(cluster)[1], desired="stop")
    await until(lambda: running(cluster) == [1, 1, 1] or _advance(cluster))
    assert any("from outside" in sentence for sentence in await cluster.sentences("hello"))


@pytest.mark.parametrize("how", ["stopped", "gone", "scaled"])
async def test_what_its_user_ends_is_ended(cluster: FakeCluster, how: str) -> None:
    await adopted(cluster)
    if how == "stopped":
        nomad(cluster).deregister(KEY)
    elif how == "scaled":
        nomad(cluster).scale(KEY, 0)
    else:
        nomad(cluster).deregister(KEY)
        del nomad(cluster).jobs[KEY]
    await cluster.until_phase("Stopped", "hello")
    await until(lambda: running(cluster) == [])


async def test_scaled_up_again_it_is_another_run(cluster: FakeCluster) -> None:
    await adopted(cluster)
    nomad(cluster).scale(KEY, 0)
    await cluster.until_phase("Stopped", "hello")
    nomad(cluster).scale(KEY, 3)
    await cluster.until_phase("running", "hello")
    assert running(cluster) == [0, 0, 0]


async def test_another_coordinator_goes_on_with_it(cluster: FakeCluster) -> None:
    await adopted(cluster)
    await cluster.restart()
    await cluster.connected()
    assert running(cluster) == [0, 0, 0, 0]
    await exit_all(cluster)
    await cluster.until_phase("Completed", "hello")


async def test_a_job_in_another_pool_is_refused(cluster: FakeCluster) -> None:
    for name in ("m1", "m2"):
        nomad(cluster).nodes[name].pool = "others"
    nomad(cluster).register(plain_job(count=2, NodePool="others"))
    await until(lambda: [a.client for a in nomad(cluster).of(KEY)] == ["failed"] * 2)
    said = {why for agent in cluster.agents.values() for code, why in agent.finished.values() if code == 125}
    assert said == {
        "Job hello can't start as a gang: its node_pool is others, and the coordinator places on machines of gpu"
    }


async def test_a_job_of_a_name_that_a_run_has_is_refused(cluster: FakeCluster) -> None:
    document = {
        "metadata": {"name": "hello"},
        "spec": {"start": "Gang", "task_template": {"image": "host", "requested_resources": {"machines": 2}}},
    }
    assert (await cluster.request("POST", "jobs", json=document))[0] == 201
    await cluster.until_phase("running", "hello")
    nomad(cluster).register(plain_job(count=2))
    await until(lambda: [a.client for a in nomad(cluster).of(KEY)] == ["failed"] * 2)
    said = [why for agent in cluster.agents.values() for code, why in agent.finished.values() if code == 125]
    assert said
    assert "has not ended: stop it first" in said[0]
    assert cluster.phase("hello") == "running"
