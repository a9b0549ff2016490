"""JAX distributed over two machines by the recipe as it is printed for users, although Slurm's names are there, too."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.frameworks.conftest import Cluster

GPUS = 8
ALL = ",".join(str(number) for number in range(GPUS))

pytestmark = pytest.mark.timeout(600)


def run(cluster: Cluster, environment: Path, **env: str) -> list[dict[str, Any]]:
    template = {
        "image": "host", "command": str(environment / "bin" / "python"), "args": ["/programs/train_jax.py"],
        "env": {"JAX_PLATFORMS": "cpu", **env},
    }  # fmt: skip
    logs = cluster.run("jax", template, gpu_requests={"count": 2 * GPUS})
    return [json.loads(next(line for line in log.splitlines() if line.startswith("{"))) for log in logs]


@pytest.mark.parametrize("version", ["jax-0.4.35", "jax-newest"])
def test_the_recipe_uses_every_gpu_of_the_machine_and_slurms_names_are_there(
    cluster_with: Callable[..., Cluster], environment: Callable[[str], Path], version: str
) -> None:
    found = run(cluster_with("--gpus-per-machine", str(GPUS)), environment(version))
    assert [(one["rank"], one["size"], one["sum"]) for one in found] == [(0, 2, 3), (1, 2, 3)]
    for one in found:
        assert one["given"] == GPUS
        assert one["cuda_devices"] in ("all", ALL), "JAX took itself for a process with a single GPU"
        assert {"SLURM_JOB_ID", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"} <= set(one["slurm"])


def test_a_users_own_choice_of_gpus_wins(
    cluster_with: Callable[..., Cluster], environment: Callable[[str], Path]
) -> None:
    found = run(cluster_with("--gpus-per-machine", str(GPUS)), environment("jax-newest"), JAX_LOCAL_DEVICE_IDS="2,3")
    assert [one["cuda_devices"] for one in found] == ["2,3", "2,3"]
