"""A machine that keeps its link and is not heard over it: what runs there is left alone, and nothing new goes there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.fakes.cluster import FakeCluster
from tests.fakes.eventually import until
from tests.fakes.nomad.recorded import NEWEST
from tests.fakes.runs import document

SILENT_AFTER_S = 10.0


@pytest.fixture(params=["embedded", "nomad"])
async def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[FakeCluster]:
    on_nomad = NEWEST if request.param == "nomad" else None
    async with FakeCluster(tmp_path, machines=2, on_nomad=on_nomad) as made:
        await made.connected()
        yield made
        assert made.wrong() == []


async def only_m1_is_heard(cluster: FakeCluster) -> None:
    """And the links of both are there."""
    cluster.clock.advance(SILENT_AFTER_S)
    await cluster.agents["m1"].lease(1)
    async with asyncio.timeout(20):
        while [machine["silent_s"] for machine in await machines(cluster)] != [None, SILENT_AFTER_S]:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    assert [machine["connected"] for machine in await machines(cluster)] == [True, True]


async def machines(cluster: FakeCluster) -> list[dict[str, object]]:
    _, found = await cluster.request("GET", "/v1/machines")
    items: list[dict[str, object]] = found["items"]
    return items


async def test_nothing_new_goes_to_a_machine_that_is_silent_until_it_is_heard_again(cluster: FakeCluster) -> None:
    await only_m1_is_heard(cluster)
    assert (await cluster.request("POST", "jobs", json=document(machines=2)))[0] == 201
    await until(lambda: "m2 (it does not answer)" in cluster.run().state.reason)
    assert cluster.phase() == "pending"
    await cluster.agents["m2"].lease(1)
    await cluster.until_phase("running")


async def test_one_that_is_heard_is_taken_instead(cluster: FakeCluster) -> None:
    await only_m1_is_heard(cluster)
    for name in ("one", "two"):
        await cluster.request("POST", "jobs", json=document(name, machines=1))
        await cluster.until_phase("running", name)
        assert cluster.run(name).state.workers[0].slot.machine == "m1"  # type: ignore[union-attr]


async def test_what_runs_on_a_silent_machine_runs_on(cluster: FakeCluster) -> None:
    await cluster.request("POST", "jobs", json=document(machines=2))
    await cluster.until_phase("running")
    await only_m1_is_heard(cluster)
    status = await cluster.job()
    assert (status["phase"], status["attempt"]) == ("Running", 0)
    assert status["reason"].startswith("m2 does not answer")
