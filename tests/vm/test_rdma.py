"""
Soft-RoCE, which has real verbs: what the machine has, what workers get of it, and what is said when a piece is missing.
Two workers of two agents have the one device of the machine; it carries packets to itself.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.vm import verbs_image
from tests.vm.cluster import MACHINES, Cluster, unit

pytestmark = pytest.mark.timeout(3600)
FABRIC = '[fabric]\nname = "pod-1"\n'
NETWORK = {"interconnect": "rdma", "min_gbps": 2}
WRITES = """
echo "uid $(id -u) hca $NCCL_IB_HCA" > /out/env-$RANK
common="-d rxe0 -x 1 -n 20 -s 65536"
if [ $RANK = 0 ]; then peer=; else peer=$MASTER_ADDR; fi
for i in $(seq 60); do ib_write_bw $common $peer >> /out/bw-$RANK 2>&1 && exit 0; sleep 2; done
exit 1
""".replace("$(seq 60)", " ".join(map(str, range(60))))


@pytest.fixture
def verbs(cluster: Cluster, tmp_path: Path) -> Cluster:
    """With a device on a link of its own, its nodes, and a fabric that the operator has named."""
    machine = cluster.machine
    verbs_image.write(tmp_path / "verbs.tar")
    machine.send(tmp_path, "/images", ["verbs.tar"])
    machine.write("/etc/astraeus/machine.toml", FABRIC)
    machine.run(
        "modprobe rdma_rxe; modprobe rdma_ucm; ip link add va type veth peer name vb; ip addr add 10.9.0.1/24 dev va; "
        "ip link set va up; ip link set vb up; rdma link add rxe0 type rxe netdev va; udevadm settle"
    )
    until_ports(cluster, {"rxe0:1": True})
    return cluster


def until(condition: Callable[[], bool], what: Callable[[], object]) -> None:
    deadline_s = time.monotonic() + 900
    while not condition():
        assert time.monotonic() < deadline_s, what()
        time.sleep(2)


def until_ports(cluster: Cluster, expected: dict[str, bool], names: tuple[str, ...] = ("m1", "m2")) -> None:
    """What agents have told the coordinator: each port of the fabric, and whether it is up."""
    until(
        lambda: all(ports(cluster, name) == expected for name in names),
        lambda: [machine(cluster, name) for name in names],
    )


def machine(cluster: Cluster, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(cluster.astra("nodes", name, "--json"))
    return found


def ports(cluster: Cluster, name: str) -> dict[str, bool]:
    return {port["name"]: bool(port["up"]) for port in machine(cluster, name)["ports"] if port["tier"] == "rdma"}


def submit(cluster: Cluster, name: str) -> None:
    resources = {"machines": 2, "cpu_cores": 1, "memory_bytes": 128 * 2**20, "network": NETWORK}
    template = {
        "image": "oci-archive:/images/verbs.tar", "command": "/bin/sh", "args": ["-c", WRITES],
        "datavolume_refs": [{"name": "work", "mount_path": "/out", "mode": "ReadWrite"}],
        "requested_resources": resources,
    }  # fmt: skip
    spec = {"start": "Gang", "on_failure": "FailJob", "task_template": template}
    path = cluster.machine.folder / f"{name}.json"
    path.write_text(json.dumps({"metadata": {"name": name}, "spec": spec}))
    cluster.astra("run", str(path))


def test_two_workers_write_to_each_other_with_what_they_were_given(verbs: Cluster) -> None:
    submit(verbs, "writes")
    until(lambda: verbs.status("writes")["phase"] in ("Completed", "Failed"), lambda: verbs.status("writes"))
    assert verbs.status("writes")["phase"] == "Completed", verbs.machine.run("tail -n 99 /written/bw-*")
    for rank in (0, 1):
        assert verbs.machine.run(f"cat /written/env-{rank}") == "uid 1000 hca =rxe0:1\n"
        assert "65536" in verbs.machine.run(f"cat /written/bw-{rank}")
    assert verbs.status("writes")["tier"] == "rdma"


def test_a_port_that_goes_down_and_up_is_told(verbs: Cluster) -> None:
    verbs.machine.run("ip link set va down")
    until_ports(verbs, {"rxe0:1": False})
    verbs.machine.run("ip link set va up")
    until_ports(verbs, {"rxe0:1": True})


LOSES = """\
#!/bin/sh
# A runtime that does not keep to what it is told, in the place where containerd looks first.
case " $* " in
*" create "*|*" exec "*) /usr/bin/python3 /usr/local/lib/loses.py "$@" || exit 1 ;;
esac
exec /usr/sbin/runc "$@"
"""
LOSES_WHAT = """\
import json, pathlib, sys
words = sys.argv[1:]
options = dict(zip(words, words[1:]))
if "--bundle" in options:
    path = pathlib.Path(options["--bundle"], "config.json")
    document = json.loads(path.read_text())
    process = document["process"]
else:
    path = pathlib.Path(options["--process"])
    document = process = json.loads(path.read_text())
LOSE
path.write_text(json.dumps(document))
"""
VERBS = 231
"""The major number of verbs' nodes."""
LOSE_RULE = f"""
if "linux" in document:
    resources = document["linux"]["resources"]
    resources["devices"] = [rule for rule in resources["devices"] if rule.get("major") != {VERBS}]
"""
LOSE_LIMIT = """
process["rlimits"] = [limit for limit in process["rlimits"] if limit["type"] != "RLIMIT_MEMLOCK"]
process["rlimits"].append({"type": "RLIMIT_MEMLOCK", "soft": 65536, "hard": 65536})
for names in process["capabilities"].values():
    names[:] = [name for name in names if name != "CAP_IPC_LOCK"]
"""


def runtime_loses(cluster: Cluster, what: str) -> None:
    cluster.machine.write("/usr/local/lib/loses.py", LOSES_WHAT.replace("LOSE\n", what))
    cluster.machine.write("/usr/local/sbin/runc", LOSES, 0o755)


@pytest.mark.parametrize(
    ("what", "sentence"),
    [
        (LOSE_RULE, "/dev/infiniband/uverbs0 may not be opened in the container of lacks-"),
        (LOSE_LIMIT, "CAP_IPC_LOCK is not effective in the container of lacks-"),
    ],
    ids=["rule", "limit"],
)
def test_a_piece_that_the_runtime_loses_is_a_sentence_before_any_worker_starts(
    verbs: Cluster, what: str, sentence: str
) -> None:
    runtime_loses(verbs, what)
    check_refused(verbs, sentence)


@pytest.mark.parametrize(
    ("harm", "sentence"),
    [
        ("rm /dev/infiniband/uverbs0", "has no uverbs node: no worker can open it"),
        ("modprobe -r rdma_ucm", "and programs connect over rdma through it: modprobe rdma_ucm"),
    ],
)
def test_a_missing_piece_is_a_sentence_before_any_worker_starts(verbs: Cluster, harm: str, sentence: str) -> None:
    # What an agent has read of its machine would do for a while: the worker's nodes are made anew, by their numbers.
    verbs.machine.run(f"{harm}; systemctl restart {' '.join(map(unit, MACHINES))}")
    check_refused(verbs, sentence)


def test_a_port_that_is_known_to_be_down_takes_no_worker(verbs: Cluster) -> None:
    verbs.machine.run("ip link set va down")
    until_ports(verbs, {"rxe0:1": False}, MACHINES)
    check_refused(verbs, "a port of 2 Gb/s each in one RDMA pod; no machine has that now")


def check_refused(verbs: Cluster, sentence: str) -> None:
    submit(verbs, "lacks")

    def said() -> str:
        return verbs.astra("events", "lacks") + json.dumps(verbs.status("lacks"))

    until(lambda: sentence in said(), said)
    assert verbs.machine.run("ls /written").split() == []
