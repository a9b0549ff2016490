"""
GPUs on a real Nomad: what the device plugin tells of a DGX H100, and where jobs with a block `device` go.

The machine is a captured one that the agent plays. Containers get its device nodes by their numbers, nothing behind
them: tasks look at what they have been given, and use none of it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from astra_cli.dev import files
from tests.fakes.eventually import eventually
from tests.house.tree import ROOT
from tests.nomad.cluster import DEVICE_PLUGIN, NomadCluster, made
from tests.nomad.jobs import job

pytestmark = pytest.mark.timeout(300)

HOST = ROOT / "tests" / "fixtures" / "hosts" / "dgx-h100-ndr.json"
UUIDS = [device["uuid"] for device in json.loads(HOST.read_text())["nvml"]["devices"]]
MODEL = "NVIDIA-H100-80GB-HBM3"
SAYS = "echo $NVIDIA_VISIBLE_DEVICES; cd /dev && echo nvidia[0-9]*"


@pytest.fixture(scope="module")
def cluster(binary: Path) -> Iterator[NomadCluster]:
    with made(binary, machine=HOST) as one:
        yield one


@pytest.fixture(autouse=True)
def _all_gpus_are_there(cluster: NomadCluster) -> None:
    offers(cluster, UUIDS)


def groups(cluster: NomadCluster) -> list[dict[str, Any]]:
    """The node's devices, as `nomad node status -json` shows them."""
    return cluster.node()["NodeResources"]["Devices"] or []


def offers(cluster: NomadCluster, uuids: list[str]) -> None:
    """These and no others are what Nomad gives to jobs, soon."""

    def healthy() -> list[str]:
        return [one["ID"] for group in groups(cluster) for one in group["Instances"] if one["Healthy"]]

    eventually(lambda: healthy() == uuids, f"the node has {len(uuids)} GPUs")


@contextmanager
def without(cluster: NomadCluster, *gone: int) -> Iterator[None]:
    """The driver's library does not know these GPUs any more."""
    document = json.loads(HOST.read_text())
    document["nvml"]["devices"] = [one for one in document["nvml"]["devices"] if one["index"] not in gone]
    files.write(cluster.clients[0].machine_file, json.dumps(document))
    try:
        yield
    finally:
        files.write(cluster.clients[0].machine_file, HOST.read_text())


def wants(count: int, name: str = "nvidia/gpu", *, memory: str = "70 GiB") -> str:
    """A task's block `resources`."""
    constraint = f'constraint {{\nattribute = "${{device.attr.memory}}"\noperator = ">="\nvalue = "{memory}"\n}}'
    return f'cpu = 100\nmemory = 64\ndevice "{name}" {{\ncount = {count}\n{constraint}\n}}'


def is_given(cluster: NomadCluster, name: str, resources: str) -> list[int]:
    """The job ends well; which GPUs it says that it had."""
    cluster.submit(job(name, SAYS, resources=resources))
    visible, nodes = cluster.logs(cluster.reaches(name, "complete")["ID"]).splitlines()
    given = [UUIDS.index(uuid) for uuid in visible.split(",")]
    assert nodes.split() == [f"nvidia{index}" for index in given]
    return given


def finds_no_place(cluster: NomadCluster, name: str, resources: str) -> None:
    """For want of devices, says Nomad."""
    cluster.submit(job(name, SAYS, resources=resources))

    def blocked() -> dict[str, Any] | None:
        found = cluster.asked(f"/v1/job/{name}/evaluations")
        return next((one["FailedTGAllocs"]["g"] for one in found if one["Status"] == "blocked"), None)

    why: dict[str, Any] = eventually(blocked, f"{name} finds no place")
    assert "missing devices" in why["ConstraintFiltered"], why
    assert cluster.allocations(name) == []


def test_the_node_has_its_gpus_as_a_group_of_their_model(cluster: NomadCluster) -> None:
    (group,) = groups(cluster)
    assert (group["Vendor"], group["Type"], group["Name"]) == ("nvidia", "gpu", MODEL)
    assert (group["Attributes"]["memory"]["Int"], group["Attributes"]["memory"]["Unit"]) == (81559, "MiB")
    assert [one["Locality"]["PciBusID"] for one in group["Instances"]][:2] == ["0000:1b:00.0", "0000:43:00.0"]
    assert cluster.node()["Attributes"]["driver.astra.gpus"] == "8"


def test_a_job_that_fits_is_given_gpus_and_their_nodes(cluster: NomadCluster) -> None:
    assert len(is_given(cluster, "any", wants(2))) == 2
    assert is_given(cluster, "model", wants(8, f"nvidia/gpu/{MODEL}")) == list(range(8))


def test_a_job_that_fits_nowhere_waits(cluster: NomadCluster) -> None:
    finds_no_place(cluster, "nine", wants(9))
    finds_no_place(cluster, "larger", wants(1, memory="100 GiB"))
    finds_no_place(cluster, "other", wants(1, "nvidia/gpu/NVIDIA-A100"))


def test_a_gpu_that_is_gone_is_given_to_nobody_until_it_is_back(cluster: NomadCluster) -> None:
    with without(cluster, 5):
        offers(cluster, UUIDS[:5] + UUIDS[6:])
        assert is_given(cluster, "seven", wants(7)) == [0, 1, 2, 3, 4, 6, 7]
        finds_no_place(cluster, "eight", wants(8))
    assert cluster.reaches("eight", "complete"), "it had waited for the one that is back"
    with without(cluster, *range(8)):
        offers(cluster, [])
    offers(cluster, UUIDS)


def test_the_device_plugin_is_killed_and_the_next_one_goes_on(cluster: NomadCluster) -> None:
    client = cluster.clients[0]
    before = client.plugin_pids(DEVICE_PLUGIN)
    client.kill_plugins(DEVICE_PLUGIN)
    eventually(lambda: set(client.plugin_pids(DEVICE_PLUGIN)) - set(before), "Nomad has started it again")
    offers(cluster, UUIDS)
    with without(cluster, 0):
        offers(cluster, UUIDS[1:])
    offers(cluster, UUIDS)
    assert len(is_given(cluster, "after", wants(3))) == 3
