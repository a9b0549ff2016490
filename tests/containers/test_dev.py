"""
`astra dev` by the command line: it starts, works, stops and leaves nothing, whenever it is interrupted and whatever of
it is killed.
"""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from astra_cli.dev import lock, sweep
from tests.containers.dev_cluster import DevCluster, kill, read_until
from tests.fakes.eventually import eventually

SLEEP = ("--", "sh", "-c", "echo rank $RANK of $WORLD_SIZE at $MASTER_ADDR; sleep ${NAP:-60}")


@pytest.fixture
def cluster() -> Iterator[DevCluster]:
    """Not started. Ends and checks whatever a test has left running."""
    cluster = DevCluster(Path(tempfile.mkdtemp(prefix="astra-dev-", dir="/tmp")))
    yield cluster
    cluster.remove()


def gang(cluster: DevCluster, name: str, *more: str, machines: int = 2, nap: float = 60) -> None:
    cluster.astra(
        "run", "--name", name, "--image", "host", "--machines", str(machines), "--env", f"NAP={nap}", *more, *SLEEP
    )


def running(cluster: DevCluster, name: str) -> None:
    eventually(lambda: cluster.phase(name) == "Running", f"{name} runs")


def test_a_cluster_runs_a_gang_and_comes_back_with_its_records(cluster: DevCluster) -> None:
    cluster.start("--machines", "2", "--gpus-per-machine", "8")
    nodes = cluster.json("nodes")["items"]
    assert [(node["name"], node["address"], node["gpus"]) for node in nodes] == [
        ("m-1", "10.83.1.1", 8),
        ("m-2", "10.83.2.1", 8),
    ]
    gang(cluster, "one")
    running(cluster, "one")
    assert cluster.astra("logs", "one", "1") == "rank 1 of 2 at 10.83.1.1\n"
    assert "10.83.2.1" in cluster.astra("exec", "one", "1", "--", "ip", "-brief", "address")
    cluster.astra("exec", "one", "0", "--", "sh", "-c", "exit 7", code=7)
    cluster.astra("stop", "one")
    eventually(lambda: cluster.phase("one") == "Stopped", "one is stopped")

    assert cluster.json("dev", "stop") == {"state": str(cluster.state), "was_running": True, "purged": False}
    cluster.check_nothing_left()
    assert "no coordinator is known" in cluster.astra("status", code=6)

    told = cluster.json("dev", "--detach")
    assert told == {"state": str(cluster.state), **cluster.json("dev", "env")}
    assert told["ASTRA_API"] == cluster.json("dev", "status")["api"]
    assert len(cluster.json("nodes")["items"]) == 2
    assert cluster.phase("one") == "Stopped"
    assert cluster.astra("logs", "one", "1") == "rank 1 of 2 at 10.83.1.1\n"


def test_a_run_that_was_running_starts_again_with_the_cluster(cluster: DevCluster) -> None:
    cluster.start("--machines", "2")
    gang(cluster, "one")
    running(cluster, "one")
    cluster.astra("dev", "stop")
    cluster.check_nothing_left()
    cluster.start()
    eventually(lambda: cluster.json("ranks", "one")["attempt"] > 0, "another attempt")
    running(cluster, "one")


def test_workers_have_addresses_of_their_own_when_asked_for(cluster: DevCluster) -> None:
    cluster.start("--machines", "2", "--network", "own")
    gang(cluster, "one", nap=1)
    eventually(lambda: cluster.phase("one") == "Completed", "one is completed")
    addresses = [row["address"] for row in cluster.json("ranks", "one")["items"]]
    assert [address.rpartition(".")[0] for address in addresses] == ["10.83.1", "10.83.2"]
    assert not {"10.83.1.1", "10.83.2.1"} & set(addresses)
    assert addresses[0] in cluster.astra("logs", "one", "0")


def test_two_clusters_do_not_know_of_each_other(cluster: DevCluster) -> None:
    cluster.start("--machines", "1")
    other = DevCluster(Path(tempfile.mkdtemp(prefix="astra-dev-", dir="/tmp")))
    try:
        other.start("--machines", "1")
        assert other.json("dev", "status")["api"] != cluster.json("dev", "status")["api"]
        for one, name in ((cluster, "one"), (other, "other")):
            one.astra("run", "--name", name, "--image", "host", *SLEEP)
            running(one, name)
    finally:
        other.remove()
    assert cluster.phase("one") == "Running"
    assert "rank 0 of 1" in cluster.astra("logs", "one")


def test_one_state_folder_has_one_cluster(cluster: DevCluster) -> None:
    cluster.start("--machines", "1")
    assert "runs already" in cluster.astra("dev", code=2)
    assert cluster.json("nodes")["items"][0]["connected"]


def test_a_topology_that_is_wrong_starts_nothing(cluster: DevCluster, tmp_path: Path) -> None:
    (tmp_path / "t.yaml").write_text("machines: [{gpus: many}]")
    said = cluster.astra("dev", "--topology", str(tmp_path / "t.yaml"), code=2)
    assert said == "astra: machines[0].gpus must be a whole number from 0 to 64, not 'many'\n"
    cluster.check_nothing_left()


# Drills ---------------------------------------------------------------------------------------------------------------


def test_a_link_is_shaped_cut_and_joined(cluster: DevCluster) -> None:
    cluster.start("--machines", "2", "--disconnect-limit", "3")
    assert cluster.astra("dev", "link", "--machine", "m-2", "--rate", "200mbit") == "m-2: link up, 200mbit\n"
    cluster.astra("dev", "link", "--machine", "m-2", "--down")
    connected: Callable[[], list[bool]] = lambda: [node["connected"] for node in cluster.json("nodes")["items"]]  # noqa: E731
    eventually(lambda: connected() == [True, False], "m-2 is cut off")
    cluster.astra("dev", "link", "--machine", "m-2", "--up")
    eventually(lambda: connected() == [True, True], "m-2 is back")
    assert cluster.json("dev", "status")["machines"][1]["link"] == {"up": True, "rate_bit_s": 200_000_000}
    assert cluster.astra("dev", "link", "--machine", "m-2", "--rate", "none") == "m-2: link up, unshaped\n"
    assert "it has m-1, m-2" in cluster.astra("dev", "link", "--machine", "m-9", "--up", code=2)


def test_a_machine_that_is_lost_is_replaced_and_comes_back_empty(cluster: DevCluster) -> None:
    settings = ("--disconnect-limit", "2", "--set", "lost_margin_s=1", "--set", "stop_grace_s=1")
    cluster.start("--machines", "3", *settings)
    gang(cluster, "one")
    running(cluster, "one")
    cluster.astra("dev", "kill", "--machine", "m-1")
    assert sweep.cgroup_processes(cluster.layout.machine_cgroup("m-1")) == []
    # containerd cleans up after a shim that was killed by a shim that lives for a moment.
    eventually(lambda: sweep.shims(cluster.layout.containerd_namespace("m-1")) == [], "no shim of it is left")
    eventually(lambda: cluster.json("ranks", "one")["attempt"] > 0, "another attempt")
    running(cluster, "one")
    assert {row["machine"] for row in cluster.json("ranks", "one")["items"]} == {"m-2", "m-3"}

    cluster.astra("dev", "start", "--machine", "m-1")
    eventually(lambda: cluster.json("nodes")["items"][0]["connected"], "m-1 is back")
    eventually(lambda: cluster.json("nodes")["items"][0]["slots"] == [], "m-1 is empty")
    assert "m-1 runs already" in cluster.astra("dev", "start", "--machine", "m-1", code=2)


def test_a_followed_run_is_told_to_its_end_through_a_restart_of_the_coordinator(cluster: DevCluster) -> None:
    cluster.start("--machines", "2")
    count = ("--", "sh", "-c", "for i in 1 2 3 4 5 6 7 8; do echo line $i; sleep 1; done")
    with cluster.background(
        "run", "--name", "one", "--image", "host", "--machines", "2", "--follow", *count
    ) as process:
        told = read_until(process, "line 3")
        kill([cluster.json("dev", "status")["coordinator"]["pid"]])
        rest, _ = process.communicate(timeout=60)
        assert process.returncode == 0
    lines = [line for line in (told + rest).splitlines() if line.startswith("line ")]
    assert lines == [f"line {n}" for n in range(1, 9)]
    assert "the coordinator does not answer" in rest
    assert rest.rstrip().endswith(("Completed", "All 2 workers completed"))


def test_daemons_that_are_killed_are_started_again_and_the_gang_runs_on(cluster: DevCluster) -> None:
    cluster.start("--machines", "2")
    gang(cluster, "one")
    running(cluster, "one")
    before = cluster.json("dev", "status")
    victims = [before["coordinator"]["pid"], before["containerd"]["pid"], before["machines"][1]["agent"]["pid"]]
    kill(victims)

    def all_new() -> bool:
        now = cluster.json("dev", "status")
        pids = [now["coordinator"]["pid"], now["containerd"]["pid"], now["machines"][1]["agent"]["pid"]]
        return all(pids) and not set(pids) & set(victims)

    eventually(all_new, "all three run again")
    eventually(cluster.answers, "the new coordinator serves, which is later than its process")
    running(cluster, "one")
    assert cluster.json("ranks", "one")["attempts"] == [0]
    assert "is started again" in (cluster.layout.logs / "dev.log").read_text()


# Interruptions --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("moment", ["on one bridge", "containerd serves", "are connected", "The cluster is up"])
def test_ctrl_c_while_it_starts_leaves_nothing(cluster: DevCluster, moment: str) -> None:
    with cluster.background("dev", "--machines", "2") as process:
        read_until(process, moment)
        cluster.note()
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    cluster.check_nothing_left()


@pytest.mark.parametrize("delay_s", [0.3, 0.5, 0.6, 0.7, 0.8, 1.0, 1.5])
def test_ctrl_c_at_any_time_leaves_nothing(cluster: DevCluster, delay_s: float) -> None:
    with cluster.background("dev", "--machines", "2") as process:
        time.sleep(delay_s)
        process.send_signal(signal.SIGINT)
        process.wait(60)
    cluster.check_nothing_left()


def test_ctrl_c_while_a_detached_cluster_starts_leaves_nothing(cluster: DevCluster) -> None:
    with cluster.background("dev", "--detach", "--machines", "2") as process:
        read_until(process, "containerd serves")
        cluster.note()
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    cluster.check_nothing_left()


def test_ctrl_c_again_and_again_while_it_stops_a_run_leaves_nothing(cluster: DevCluster) -> None:
    with cluster.background("dev", "--machines", "2") as process:
        read_until(process, "The cluster is up")
        cluster.note()
        gang(cluster, "one")
        running(cluster, "one")
        for _ in range(5):
            process.send_signal(signal.SIGINT)
            time.sleep(0.1)
        assert process.wait(60) == 130
    cluster.check_nothing_left()


def test_a_stop_during_the_start_is_obeyed(cluster: DevCluster) -> None:
    with cluster.background("dev", "--machines", "2") as process:
        read_until(process, "on one bridge")
        cluster.astra("dev", "stop")
        process.wait(60)
    cluster.check_nothing_left()


def test_workers_outlive_a_supervisor_that_is_killed_and_are_taken_over(cluster: DevCluster) -> None:
    cluster.start("--machines", "2")
    gang(cluster, "one", nap=20)
    running(cluster, "one")
    os.kill(lock.holder(cluster.layout), signal.SIGKILL)
    eventually(lambda: lock.holder(cluster.layout) == 0, "the supervisor is gone")
    assert "taken over" in cluster.astra("dev", "--detach")
    eventually(lambda: cluster.phase("one") == "Completed", "one is completed")
    assert cluster.json("ranks", "one")["attempts"] == [0]


@pytest.mark.parametrize("then", ["stop", "start", "start another"])
def test_what_a_kill_of_everything_leaves_is_removed(cluster: DevCluster, then: str) -> None:
    cluster.start("--machines", "2")
    gang(cluster, "one")
    running(cluster, "one")
    kill([lock.holder(cluster.layout), *sweep.ours(cluster.layout)])
    eventually(lambda: lock.holder(cluster.layout) == 0, "the supervisor is gone")
    assert sweep.is_left(cluster.layout)
    if then == "stop":
        assert "what it left is removed" in cluster.astra("dev", "stop")
        cluster.check_nothing_left()
    elif then == "start":
        cluster.start()
        running(cluster, "one")
    else:
        cluster.start("--machines", "1")
        assert len(cluster.json("nodes")["items"]) == 1
