"""
Gangs with GPUs and InfiniBand on a real Nomad: four machines as DGX H100 are, on one fabric.

The machines are a captured one that each agent plays, with GPUs of its own. Containers get its device nodes by their
numbers, nothing behind them: workers write down what they have been given, and use none of it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from astra_agent.inventory.operator_file import PATH as OPERATOR_FILE
from astra_cli.dev import files
from tests.containers.dev_cluster import kill
from tests.fakes.eventually import eventually
from tests.house.tree import ROOT
from tests.nomad.gangs import NomadGangs, nomad_gangs
from tests.nomad.jobs import gang
from tests.runs_over_http import DRIVE, WORKER, Diary, check_nothing_started_twice

pytestmark = pytest.mark.timeout(300)

HOST = ROOT / "tests" / "fixtures" / "hosts" / "dgx-h100-ndr.json"
FABRIC = "ib-1"
PORTS = ["mlx5_0", "mlx5_3", "mlx5_4", "mlx5_5", "mlx5_6", "mlx5_9", "mlx5_10", "mlx5_11"]
NOTES = "$DIARY/given-$RANK-$ASTRAEUS_ATTEMPT"
NOTES_DOWN = (
    "{ (cd /dev && echo nvidia[0-9]*); echo $NCCL_IB_HCA; (cd /dev/infiniband && echo *); "
    f"grep CapAmb /proc/self/status; }} > {NOTES}.new && mv {NOTES}.new {NOTES}; exec /{DRIVE}/{WORKER.name}"
)


@pytest.fixture(scope="module")
def gangs(binary: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NomadGangs]:
    captured = tmp_path_factory.mktemp("host") / HOST.name
    captured.write_text(HOST.read_text())
    with nomad_gangs(binary, cluster={"machine": captured}) as found:
        for client in found.cluster.clients:
            play(found, client.folder.name)
        yield found


@pytest.fixture(autouse=True)
def _nothing_runs_on(gangs: NomadGangs) -> Iterator[None]:
    yield
    gangs.stop_all()


def uuids(machine: str) -> list[str]:
    """Of its GPUs, by index."""
    return [f"{one['uuid'][:-2]}{machine[-1]}{one['index']}" for one in json.loads(HOST.read_text())["nvml"]["devices"]]


def play(gangs: NomadGangs, machine: str, *, without: tuple[int, ...] = ()) -> None:
    """A machine of its own, on the fabric, without some of its GPUs; returns once Nomad knows it so."""
    document = json.loads(HOST.read_text())
    for device, uuid in zip(document["nvml"]["devices"], uuids(machine), strict=True):
        device["uuid"] = uuid
    document["nvml"]["devices"] = [one for one in document["nvml"]["devices"] if one["index"] not in without]
    document["files"][OPERATOR_FILE] = f'[fabric]\nname = "{FABRIC}"\n'
    files.write(gangs.client(machine).machine_file, json.dumps(document))
    there = [uuid for index, uuid in enumerate(uuids(machine)) if index not in without]
    eventually(lambda: offered(gangs, machine) == there, f"Nomad knows {len(there)} GPUs of {machine}")


def offered(gangs: NomadGangs, machine: str) -> list[str]:
    node = gangs.cluster.node(machine)
    found = node["NodeResources"]["Devices"] or []
    return [one["ID"] for group in found for one in group["Instances"] if one["Healthy"]]


@dataclass(frozen=True)
class Given:
    """What a worker has written down of an attempt."""

    gpus: set[int]
    hca: str
    infiniband: list[str]
    ambient: int


def given(diary: Diary, rank: int, attempt: int = 0) -> Given:
    nodes, hca, infiniband, ambient = (diary.folder / f"given-{rank}-{attempt}").read_text().splitlines()
    gpus = {int(node.removeprefix("nvidia")) for node in nodes.split()}
    return Given(gpus, hca, infiniband.split(), int(ambient.split()[-1], 16))


def submit(gangs: NomadGangs, name: str, *, machines: int, each: int) -> Diary:
    resources = {
        "machines": machines,
        "gpu_requests": {"count": each * machines},
        "network": {"interconnect": "infiniband", "min_gbps": 100},
    }
    return gangs.submit(name, machines, command="sh", args=["-c", NOTES_DOWN], requested_resources=resources)


def places(gangs: NomadGangs, name: str) -> list[str]:
    """The machine of each rank."""
    return [worker["machine"] for worker in gangs.status(name)["workers"]]


def has_its_own(
    gangs: NomadGangs, name: str, diary: Diary, each: int, *, attempt: int = 0, job: str = ""
) -> dict[str, set[int]]:
    """Every worker has *each* GPUs, those that Nomad has booked for it on its machine. Returns them by machine."""
    booked = {a["NodeName"]: gpus_of(a) for a in live_allocations(gangs, job or gangs.job_of(name)[:-1])}
    found = {machine: given(diary, rank, attempt).gpus for rank, machine in enumerate(places(gangs, name))}
    assert {machine: {uuids(machine)[index] for index in gpus} for machine, gpus in found.items()} == booked
    assert {len(gpus) for gpus in found.values()} == {each}
    return found


def live_allocations(gangs: NomadGangs, prefix: str) -> list[dict[str, Any]]:
    """Of all jobs whose name begins so, with their resources. Nomad hears a little late that one runs."""
    found = gangs.cluster.asked("/v1/allocations?resources=true&namespace=default")
    live = [a for a in found if a["DesiredStatus"] == "run" and a["ClientStatus"] in ("pending", "running")]
    return [a for a in live if a["JobID"].startswith(prefix)]


def gpus_of(allocation: dict[str, Any]) -> set[str]:
    (task,) = allocation["AllocatedResources"]["Tasks"].values()
    return {uuid for device in task["Devices"] or () for uuid in device["DeviceIDs"]}


def test_a_gang_has_its_gpus_and_the_ports_of_its_fabric(gangs: NomadGangs) -> None:
    diary = submit(gangs, "wide", machines=4, each=8)
    status = gangs.running("wide", diary)
    assert (status["tier"], status["domain"]) == ("infiniband", FABRIC)
    has_its_own(gangs, "wide", diary, 8)
    for rank in range(4):
        had = given(diary, rank)
        assert had.hca == "=" + ",".join(f"{port}:1" for port in PORTS)
        assert {"rdma_cm", "uverbs0"} <= set(had.infiniband)
        assert had.ambient >> 14 & 1, "IPC_LOCK"
    diary.finish()
    gangs.ended("wide", "Completed")
    check_nothing_started_twice(gangs, "wide", diary)


def test_two_gangs_on_the_same_machines_share_no_gpu_and_a_third_waits(gangs: NomadGangs) -> None:
    one, two = submit(gangs, "one", machines=4, each=5), submit(gangs, "two", machines=4, each=3)
    for name, diary in (("one", one), ("two", two)):
        gangs.running(name, diary)
    by_one, by_two = has_its_own(gangs, "one", one, 5), has_its_own(gangs, "two", two, 3)
    for machine in by_one:
        assert by_one[machine] | by_two[machine] == set(range(8))
    three = submit(gangs, "three", machines=2, each=1)
    gangs.until("three", lambda status: status["phase"] == "Pending" and "GPU" in status["reason"], "three waits")
    assert gangs.cluster.allocations(gangs.job_of("three")) == []
    two.finish()
    gangs.running("three", three)
    has_its_own(gangs, "three", three, 1)
    for diary in (one, three):
        diary.finish()
    gangs.ended("one", "Completed")
    gangs.ended("three", "Completed")


def test_a_worker_that_fails_starts_again_with_the_gpus_that_it_had(gangs: NomadGangs) -> None:
    diary = submit(gangs, "again", machines=3, each=4)
    diary.let_go()
    gangs.running("again", diary)
    before = has_its_own(gangs, "again", diary, 4)
    kill([gangs.program("again", rank=1)])
    gangs.running("again", diary, attempt=1)
    assert has_its_own(gangs, "again", diary, 4, attempt=1) == before
    diary.finish()
    gangs.ended("again", "Completed")


def test_a_gpu_that_vanishes_costs_its_gang_nothing_but_a_move(gangs: NomadGangs) -> None:
    diary = submit(gangs, "moved", machines=3, each=8)
    diary.let_go()
    gangs.running("moved", diary)
    machine = places(gangs, "moved")[1]
    with loses_a_gpu(gangs, machine):
        status = gangs.running("moved", diary, attempt=1)
        assert machine not in places(gangs, "moved")
        assert [worker["failures"] for worker in status["workers"]] == [0, 0, 0]
        sentences = gangs.sentences("moved")
        assert any(re.search(rf"GPU 5.* {machine}|{machine}.*GPU 5", said) for said in sentences)
        assert not any(f"could not start on {machine}" in said for said in sentences), "none is tried there"
        has_its_own(gangs, "moved", diary, 8, attempt=status["attempt"])
        diary.finish()
        gangs.ended("moved", "Completed")
        check_nothing_started_twice(gangs, "moved", diary)


@contextmanager
def loses_a_gpu(gangs: NomadGangs, machine: str) -> Iterator[None]:
    play(gangs, machine, without=(5,))
    try:
        yield
    finally:
        play(gangs, machine)


def test_a_plain_job_with_gpus_is_adopted_with_those_that_nomad_gave_it(gangs: NomadGangs) -> None:
    text = gang("plain", str(gangs.drive), version=gangs.version(), count=3)
    text = text.replace('command = "/diary/diary.sh"', f'command = "sh"\nargs = ["-c", <<EOT\n{NOTES_DOWN}\nEOT\n]')
    diary = gangs.adopt("plain", text.replace("memory = 64", 'memory = 64\ndevice "nvidia/gpu" {\ncount = 2\n}'))
    eventually(lambda: gangs.is_there("plain"), "the job is adopted")
    gangs.running("plain", diary)
    has_its_own(gangs, "plain", diary, 2, job="plain")
    diary.finish()
    gangs.ended("plain", "Completed")
