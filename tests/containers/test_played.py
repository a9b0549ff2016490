"""
Gangs on simulated machines that are captured ones: placed on their fabric, given its ports, swapped when those fail,
refused in a sentence when they are not enough.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from astra_cli.dev import files
from tests.containers.dev_cluster import DevCluster
from tests.fakes.eventually import eventually

HOSTS = Path(__file__).parents[1] / "fixtures" / "hosts"
PORTS = ["mlx5_0", "mlx5_3", "mlx5_4", "mlx5_5", "mlx5_6", "mlx5_9", "mlx5_10", "mlx5_11"]
NCCL_IB_HCA = "=" + ",".join(f"{port}:1" for port in PORTS)
SAYS = (
    "echo $NCCL_IB_HCA; ls /dev/infiniband; grep CapAmb /proc/self/status; "
    "while [ ! -e /tmp/end ]; do sleep 0.2; done; exit 1"
)
CASES = Path(__file__).parents[1] / "fixtures" / "cases"
CDI = "/etc/cdi/nvidia.yaml"
LIBRARIES = "/usr/lib/x86_64-linux-gnu"
QUICK = ("--set", "backoff_first_s=0", "--set", "stop_grace_s=1")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[DevCluster]:
    """Five machines as DGX H100 are, on one fabric."""
    topology = tmp_path / "topology.yaml"
    kind = {"name": "dgx", "count": 5, "machine_file": str(HOSTS / "dgx-h100-ndr.json"), "fabric": "ib-1"}
    topology.write_text(json.dumps({"machines": [kind]}))
    cluster = DevCluster(Path(tempfile.mkdtemp(prefix="astra-dev-", dir="/tmp")))
    cluster.start("--topology", str(topology), *QUICK)
    yield cluster
    cluster.remove()


def submit(cluster: DevCluster, folder: Path, name: str, min_gbps: int, machines: int = 4) -> None:
    resources = {
        "gpu_requests": {"count": 8 * machines},
        "machines": machines,
        "network": {"interconnect": "infiniband", "min_gbps": min_gbps},
    }
    template = {"image": "host", "command": "sh", "args": ["-c", SAYS], "requested_resources": resources}
    file = folder / f"{name}.json"
    file.write_text(json.dumps({"metadata": {"name": name}, "spec": {"start": "Gang", "task_template": template}}))
    cluster.astra("run", str(file))


def job(cluster: DevCluster, name: str) -> dict[str, Any]:
    document: dict[str, Any] = cluster.json("status", name)
    return document


def machines(cluster: DevCluster, name: str) -> list[str]:
    return [worker["machine"] for worker in job(cluster, name)["status"]["workers"]]


def test_a_gang_runs_on_the_fabric_and_moves_off_a_machine_whose_ports_are_gone(
    cluster: DevCluster, tmp_path: Path
) -> None:
    submit(cluster, tmp_path, "one", 400)
    eventually(lambda: cluster.phase("one") == "Running", "one runs")
    status = job(cluster, "one")["status"]
    assert (status["tier"], status["domain"]) == ("infiniband", "ib-1")
    assert machines(cluster, "one") == ["dgx-1", "dgx-2", "dgx-3", "dgx-4"]
    eventually(lambda: "CapAmb" in cluster.astra("logs", "one", "3"), "rank 3 has said what it has")
    said = cluster.astra("logs", "one", "3").split()
    assert said[0] == NCCL_IB_HCA
    assert {"rdma_cm", "uverbs0", "uverbs3"} <= set(said)
    assert int(said[-1], 16) >> 14 & 1, "IPC_LOCK is ambient"

    for port in PORTS:
        cluster.astra("dev", "port", "--machine", "dgx-2", "--port", port, "--down")
    eventually(lambda: ports_down(cluster, "dgx-2") == 8, "dgx-2 is known to have no port that is up", within_s=10)
    assert "connected, 8 faults" in cluster.astra("nodes")
    shown = cluster.astra("nodes", "dgx-2")
    assert "GPU 0  NVIDIA H100 80GB HBM3" in shown
    assert "mlx5_3:1: it is for training and not active: no link" in shown
    assert len(cluster.json("nodes", "dgx-2")["inventory"]["gpus"]) == 8
    cluster.astra("exec", "one", "1", "--", "touch", "/tmp/end")
    eventually(lambda: job(cluster, "one")["status"]["attempt"] > 0, "another attempt")
    eventually(lambda: cluster.phase("one") == "Running", "one runs again")
    assert sorted(machines(cluster, "one")) == ["dgx-1", "dgx-3", "dgx-4", "dgx-5"]
    events = " ".join(event["sentence"] for event in cluster.json("events", "one")["items"])
    assert "no training port of dgx-2 is active" in events


def ports_down(cluster: DevCluster, machine: str) -> int:
    found = next(item for item in cluster.json("nodes")["items"] if item["name"] == machine)
    return sum(not port["up"] for port in found["ports"])


def test_a_driver_upgraded_under_a_running_gang_lets_it_run_and_takes_no_more(
    cluster: DevCluster, tmp_path: Path
) -> None:
    """Case H03."""
    submit(cluster, tmp_path, "one", 400, machines=2)
    eventually(lambda: cluster.phase("one") == "Running", "one runs")
    plays = cluster.layout.machine("dgx-2") / "machine.json"
    before = plays.read_text()
    document = json.loads(before)
    document["nvml"]["init_error"] = 18
    document["files"]["/proc/driver/nvidia/version"] = "NVRM version: NVIDIA Kernel Module  570.158.01  Release Build\n"
    document["files"][f"{LIBRARIES}/libnvidia-ml.so.570.195.03"] = "ELF"
    document["links"][f"{LIBRARIES}/libnvidia-ml.so.1"] = "libnvidia-ml.so.570.195.03"
    files.write(plays, json.dumps(document))
    sentence = "out of use: driver 570.158.01 is loaded, the library is 570.195.03; reload the driver or reboot"
    eventually(lambda: sentence in cluster.astra("nodes"), "dgx-2 takes no new work")
    assert cluster.phase("one") == "Running"
    cluster.astra("exec", "one", "0", "--", "touch", "/tmp/end")
    eventually(lambda: job(cluster, "one")["status"]["attempt"] > 0, "another attempt")
    eventually(lambda: cluster.phase("one") == "Running", "one runs again")
    assert "dgx-2" not in machines(cluster, "one")
    assert [worker["failures"] for worker in job(cluster, "one")["status"]["workers"]] == [1, 0]
    files.write(plays, before)
    eventually(lambda: "out of use" not in cluster.astra("nodes"), "dgx-2 is back by itself")


def change(cluster: DevCluster, machine: str, how: Callable[[dict[str, Any]], None]) -> str:
    """Let something happen to a machine. Returns what it was before, for `files.write`."""
    plays = cluster.layout.machine(machine) / "machine.json"
    before = plays.read_text()
    document = json.loads(before)
    how(document)
    files.write(plays, json.dumps(document))
    return before


def test_a_gang_that_restarts_moves_off_a_machine_that_has_lost_one_of_its_ports(
    cluster: DevCluster, tmp_path: Path
) -> None:
    submit(cluster, tmp_path, "one", 400)
    eventually(lambda: cluster.phase("one") == "Running", "one runs")
    cluster.astra("dev", "port", "--machine", "dgx-2", "--port", "mlx5_3", "--down")
    eventually(lambda: ports_down(cluster, "dgx-2") == 1, "the port is known to be down")
    assert cluster.phase("one") == "Running"
    cluster.astra("exec", "one", "0", "--", "touch", "/tmp/end")
    eventually(lambda: job(cluster, "one")["status"]["attempt"] > 0, "another attempt")
    eventually(lambda: cluster.phase("one") == "Running", "one runs again")
    assert sorted(machines(cluster, "one")) == ["dgx-1", "dgx-3", "dgx-4", "dgx-5"]
    events = " ".join(event["sentence"] for event in cluster.json("events", "one")["items"])
    assert "mlx5_3:1 of dgx-2 has gone down since one-1 was placed there" in events


def test_a_stale_cdi_file_keeps_a_machine_out_before_any_placement_until_it_is_made_again(
    cluster: DevCluster, tmp_path: Path
) -> None:
    """Case H18."""
    text = (CASES / "H18-cdi-stale.yaml").read_text()
    loaded = json.loads((HOSTS / "dgx-h100-ndr.json").read_text())["nvml"]["driver_version"]
    stale = text.replace("570.195.03", loaded)
    change(cluster, "dgx-2", lambda document: document["files"].update({CDI: stale}))
    sentence = (
        f"its CDI file {CDI} was made for driver 570.158.01, the driver is {loaded}; make it again with nvidia-ctk"
    )
    eventually(lambda: sentence in cluster.astra("nodes"), "dgx-2 takes no work with GPUs")
    submit(cluster, tmp_path, "one", 400)
    eventually(lambda: cluster.phase("one") == "Running", "one runs")
    assert machines(cluster, "one") == ["dgx-1", "dgx-3", "dgx-4", "dgx-5"]
    fresh = text.replace("570.158.01", loaded).replace("570.195.03", loaded)
    change(cluster, "dgx-2", lambda document: document["files"].update({CDI: fresh}))
    eventually(lambda: "out of use" not in cluster.astra("nodes"), "dgx-2 is back by itself")
    shown = cluster.astra("nodes", "dgx-2")
    assert "it names /run/nvidia-persistenced/socket, which is not there: workers go without it" in shown


def test_a_gpu_that_falls_off_the_bus_moves_its_own_run_and_is_back_after_a_reset(
    cluster: DevCluster, tmp_path: Path
) -> None:
    """Case H19."""
    for name in ("low", "high"):
        resources = {"gpu_requests": {"count": 4}, "machines": 1}
        template = {"image": "host", "command": "sleep", "args": ["1000"], "requested_resources": resources}
        file = tmp_path / f"{name}.json"
        file.write_text(json.dumps({"metadata": {"name": name}, "spec": {"task_template": template}}))
        cluster.astra("run", str(file))
        eventually(lambda name=name: cluster.phase(name) == "Running", f"{name} runs")  # type: ignore[misc]
    assert machines(cluster, "low") == machines(cluster, "high") == ["dgx-1"]

    def lose_gpu_5(document: dict[str, Any]) -> None:
        document["nvml"]["devices"][5] = {"index": 5, "error": 15}

    before = change(cluster, "dgx-1", lose_gpu_5)
    eventually(lambda: machines(cluster, "high") not in (["dgx-1"], [None]), "high moves")
    eventually(lambda: cluster.phase("high") == "Running", "high runs again")
    assert job(cluster, "high")["status"]["attempt"] == 1, "none is tried where the GPU is gone"
    (worker,) = job(cluster, "high")["status"]["workers"]
    assert worker["failures"] == 0
    assert "is lost: GPU 5: GPU is lost" in " ".join(e["sentence"] for e in cluster.json("events", "high")["items"])
    assert (cluster.phase("low"), job(cluster, "low")["status"]["attempt"]) == ("Running", 0)
    assert gpus(cluster, "dgx-1") == 7
    assert "GPU 5: GPU is lost" in cluster.astra("nodes", "dgx-1")
    files.write(cluster.layout.machine("dgx-1") / "machine.json", before)
    eventually(lambda: gpus(cluster, "dgx-1") == 8, "GPU 5 is back")


def gpus(cluster: DevCluster, machine: str) -> int:
    return next(int(item["gpus"]) for item in cluster.json("nodes")["items"] if item["name"] == machine)


def test_a_speed_that_no_port_has_is_refused_in_a_sentence(cluster: DevCluster, tmp_path: Path) -> None:
    submit(cluster, tmp_path, "fast", 800)
    reason: Callable[[], str] = lambda: job(cluster, "fast")["status"]["reason"]  # noqa: E731
    eventually(lambda: "cannot be placed" in reason(), "it is told why it waits")
    assert "its fastest InfiniBand port has 400 Gb/s, and min_gbps is for one port" in reason()
