"""The program of the first example, as bare processes on loopback."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.parametrize("world", [1, 2, 4])
def test_every_worker_finds_the_sum_right(world: int) -> None:
    environ = {
        **os.environ, "WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()),
        "ROUNDS": "10", "PAUSE_S": "0",
    }  # fmt: skip
    workers = [
        subprocess.Popen(
            [sys.executable, EXAMPLES / "first_gang.py"],
            env={**environ, "RANK": str(rank)}, stdout=subprocess.PIPE, text=True,
        )
        for rank in range(world)
    ]  # fmt: skip
    try:
        outputs = [worker.communicate(timeout=60)[0] for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    assert [worker.returncode for worker in workers] == [0] * world
    for rank, output in enumerate(outputs):
        assert (
            f"[rank {rank}] round 10 of 10: the sum of {world * 4096} numbers over {world} workers is right" in output
        )


def test_its_file_mounts_the_folder_that_the_program_is_in() -> None:
    template = json.loads((EXAMPLES / "first-gang.json").read_text())["spec"]["task_template"]
    assert template["datavolume_refs"][0]["mount_path"] == "/examples"
    assert template["args"] == ["/examples/first_gang.py"]
    assert (EXAMPLES / "first_gang.py").is_file()
