"""
Reading a machine with 8 GPUs and 18 RDMA ports, laid out as a folder, and making the edits for a worker that has all of
them. Each round reads as if for the first time; what the GPU library answers is given, since no driver is here.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import time
from collections.abc import Mapping
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from astra_agent.attach import Placement, Request, attach
from astra_agent.inventory import read
from astra_agent.inventory.capture import parse
from astra_agent.sysfs import DirectoryRoot
from bench.figure import Figure, against_goal

MACHINE = Path(__file__).parents[1] / "tests" / "fixtures" / "hosts" / "oci-h100-roce.json"
ROUNDS = 40
WARM_UP = 3
INVENTORY_GOAL_MS = 50.0
ATTACH_GOAL_MS = 1.0


async def measure() -> list[Figure]:
    document = json.loads(MACHINE.read_text())
    library = parse(document, MACHINE.name)[1]
    folder = Path(mkdtemp(prefix="astra-bench-", dir="/var/tmp"))
    try:
        _lay_out(document, folder)
        read_ms, attach_ms = [], []
        for _ in range(WARM_UP + ROUNDS):
            began_ns = time.perf_counter_ns()
            inventory = read(DirectoryRoot(folder), library)
            read_ns = time.perf_counter_ns()
            attach(inventory, Placement("rdma"), Request(gpus=tuple(range(8)), min_gbps=200))
            attach_ms.append((time.perf_counter_ns() - read_ns) / 1e6)
            read_ms.append((read_ns - began_ns) / 1e6)
    finally:
        shutil.rmtree(folder)
    return [
        against_goal("inventory", "inventory, 8 GPUs and 18 ports", "ms", read_ms[WARM_UP:], INVENTORY_GOAL_MS),
        against_goal("attach", "a worker's edits there", "ms", attach_ms[WARM_UP:], ATTACH_GOAL_MS),
    ]


def _lay_out(document: Mapping[str, Any], folder: Path) -> None:
    for path, text in document["files"].items():
        _place(folder, path).write_bytes(text.encode("utf-8", "surrogateescape"))
    for path, target in document["links"].items():
        _place(folder, path).symlink_to(target)
    for path, (major, minor) in document["devices"].items():
        os.mknod(_place(folder, path), 0o600 | stat.S_IFCHR, os.makedev(major, minor))


def _place(folder: Path, path: str) -> Path:
    place = folder / path.lstrip("/")
    place.parent.mkdir(parents=True, exist_ok=True)
    return place
