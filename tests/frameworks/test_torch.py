"""PyTorch's own launcher and a real all-reduce over Gloo, on two machines, in containers."""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.frameworks.conftest import Cluster

SUM_OF_RANKS = 3.0

# As users copy it: one node for each worker, the leader's address and port from the environment.
PRINTED = (
    "torchrun --nnodes=$WORLD_SIZE --node-rank=$RANK --nproc-per-node=1 "
    "--master-addr=$MASTER_ADDR --master-port=$MASTER_PORT /programs/allreduce.py"
)

pytestmark = pytest.mark.timeout(600)


def path_with(environment: Path) -> dict[str, str]:
    return {"PATH": f"{environment}/bin:/usr/local/bin:/usr/bin:/bin"}


def torchrun(environment: Path, program: str) -> dict[str, Any]:
    return {
        "image": "host", "command": "torchrun", "args": [f"/programs/{program}"], "env": path_with(environment),
    }  # fmt: skip


def found_by(logs: list[str]) -> list[dict[str, Any]]:
    """What each rank's program printed about itself."""
    return [json.loads(next(line for line in log.splitlines() if line.startswith("{"))) for log in logs]


def check_all_reduce(found: list[dict[str, Any]]) -> None:
    assert [(one["rank"], one["size"], one["right"], one["sum"]) for one in found] == [
        (0, 2, True, SUM_OF_RANKS),
        (1, 2, True, SUM_OF_RANKS),
    ]


@pytest.mark.parametrize("image", ["host", "normal"])
@pytest.mark.parametrize("network", ["host", "own"])
def test_gloo_meets_although_the_machine_calls_its_workers_127_0_1_1(
    cluster_with: Callable[..., Cluster], environment: Callable[[str], Path], request: pytest.FixtureRequest,
    network: str, image: str,
) -> None:  # fmt: skip
    reference = "host" if image == "host" else str(request.getfixturevalue("python_image"))
    template = {"image": reference, "command": "sh", "args": ["-c", PRINTED], "env": path_with(environment("torch"))}
    found = found_by(cluster_with("--network", network).run("torch", template))
    check_all_reduce(found)
    for one in found:
        assert one["by_name"] == one["by_fqdn"]
        assert not ipaddress.ip_address(one["by_name"]).is_loopback
        assert not ipaddress.ip_address(one["MASTER_ADDR"]).is_loopback
    assert found[0]["by_name"] == found[0]["MASTER_ADDR"], "the leader's own name is not where its peers meet it"
    assert found[0]["by_name"] != found[1]["by_name"]


def test_a_bare_torchrun_finds_everything_in_its_environment(
    cluster_with: Callable[..., Cluster], environment: Callable[[str], Path]
) -> None:
    template = torchrun(environment("torch"), "allreduce.py")
    check_all_reduce(found_by(cluster_with("--network", "host").run("bare", template)))


def test_what_torchrun_started_writes_its_checkpoint_at_a_restart_and_at_a_stop(
    cluster_with: Callable[..., Cluster], environment: Callable[[str], Path]
) -> None:
    """H05, in the form that most training has: the launcher is asked to stop, its workers hear of it."""
    cluster = cluster_with("--network", "host")
    cluster.submit("check", torchrun(environment("torch"), "checkpoint.py"), on_failure="RestartJob")
    cluster.until_said("check", 0, "rank 0 of attempt 0: training")
    cluster.until_said("check", 1, "rank 1 of attempt 0: training")
    killed = cluster.astra("exec", "check", "1", "--", "pkill", "-KILL", "-f", "bin/torchrun")
    assert killed.returncode == 0, killed.stderr
    cluster.until_said("check", 0, "rank 0 of attempt 0: checkpoint written after signal 15", attempt=0)
    for rank in (0, 1):
        cluster.until_said("check", rank, f"rank {rank} of attempt 1: training")
    assert cluster.astra("stop", "check").returncode == 0
    for rank in (0, 1):
        cluster.until_said("check", rank, f"rank {rank} of attempt 1: checkpoint written after signal 15")
    cluster.until_phase("check", "Stopped")
