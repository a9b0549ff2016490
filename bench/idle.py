"""An agent that has nothing to do but to keep its link: its memory, and its share of a core over a minute."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

from bench.cluster import dev_cluster
from bench.figure import Figure, against_goal

RUN = "before"
SETTLE_S = 10.0
WATCH_S = 60.0
MEMORY_GOAL_MIB = 80.0
CPU_GOAL_PERCENT = 0.3

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


async def measure() -> list[Figure]:
    """Of four agents, after a run has come and gone, so that all of their code is loaded."""
    async with dev_cluster() as cluster:
        await cluster.submit_gang(RUN)
        await cluster.stop(RUN)
        await asyncio.sleep(SETTLE_S)
        agents = [machine["agent"]["pid"] for machine in cluster.status()["machines"]]
        before, began = [_cpu_s(pid) for pid in agents], time.monotonic()
        await asyncio.sleep(WATCH_S)
        passed = time.monotonic() - began
        shares = [100 * (_cpu_s(pid) - used) / passed for pid, used in zip(agents, before, strict=True)]
        memory = [_resident_mib(pid) for pid in agents]
    return [
        against_goal("idle-memory", "idle agent, resident memory", "MiB", memory, MEMORY_GOAL_MIB),
        against_goal("idle-cpu", "idle agent, share of a core", "%", shares, CPU_GOAL_PERCENT),
    ]


def _cpu_s(pid: int) -> float:
    """Seconds that the process has used, in user and kernel mode."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def _resident_mib(pid: int) -> float:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Rss:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"/proc/{pid}/smaps_rollup has no line Rss")
