"""`astra netcheck preflight --with torch`: the real PyTorch's all-reduce over Gloo, in the table of the probe."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.frameworks.conftest import Cluster
from tests.levels import FRAMEWORKS

pytestmark = pytest.mark.timeout(600)


def file_for(folder: Path, path: str) -> Path:
    """A run of two whose PyTorch is found by PATH, on a drive."""
    file = folder / "train.json"
    file.write_text(json.dumps({"metadata": {"name": "train"}, "spec": {"start": "Gang", "task_template": {
        "image": "host", "command": "python", "args": ["train.py"], "env": {"PATH": path},
        "datavolume_refs": [{"name": "frameworks", "mount_path": str(FRAMEWORKS), "mode": "ReadOnly"}],
        "requested_resources": {"machines": 2},
    }}}))  # fmt: skip
    return file


def test_the_all_reduce_of_pytorch_is_in_the_table_and_the_run_is_over(
    cluster_with: Callable[..., Cluster], environment: Callable[[str], Path], tmp_path: Path
) -> None:
    cluster = cluster_with("--network", "own")
    file = file_for(tmp_path, f"{environment('torch')}/bin:/usr/local/bin:/usr/bin:/bin")
    words = ("netcheck", "preflight", str(file), "--time", "4", "--with", "torch")

    done = cluster.astra(*words)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    table = done.stdout[done.stdout.index("#wrong") :]
    row = table[table.index("# PyTorch with Gloo over TCP in host:") :].splitlines()[1].split()
    assert row[0] == str(64 << 20) and float(row[7]) > 0 and row[8] == "N/A"
    assert "Gbit/s bus bandwidth over 2 ranks" in done.stdout
    jobs = json.loads(cluster.astra("status", "--json").stdout)["items"]
    phases = {job["metadata"]["name"]: job["status"]["phase"] for job in jobs}
    assert [phase for name, phase in phases.items() if name.startswith("netcheck-")] == ["Completed"]

    broken = cluster.astra(*words[:2], str(file_for(tmp_path, os.environ["PATH"])), *words[3:], "--json")
    assert broken.returncode == 3, broken.stdout
    sentence = json.loads(broken.stdout)["sentence"]
    assert "the all-reduce in host did not complete" in sentence and "torchrun" in sentence
