"""
An agent that has nothing to do but to keep its link: its memory, and its share of a core over a minute. A name server
of its machine counts in, whatever it does there.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from pathlib import Path

from astra_agent.name_server import LINGER_S
from astra_cli.dev.plan import Layout
from bench.cluster import dev_cluster
from bench.figure import Figure, against_goal

RUN = "before"
SETTLE_S = LINGER_S + 10.0
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
        machines = [(m["name"], m["agent"]["pid"]) for m in cluster.status()["machines"]]
        agents = [[pid, *_name_servers(Layout(cluster.state).machine(name) / "names.sock")] for name, pid in machines]
        before, began = [_cpu_s(pids) for pids in agents], time.monotonic()
        await asyncio.sleep(WATCH_S)
        passed = time.monotonic() - began
        shares = [100 * (_cpu_s(pids) - used) / passed for pids, used in zip(agents, before, strict=True)]
        memory = [sum(map(_resident_mib, pids)) for pids in agents]
    return [
        against_goal("idle-memory", "idle agent, resident memory", "MiB", memory, MEMORY_GOAL_MIB),
        against_goal("idle-cpu", "idle agent, share of a core", "%", shares, CPU_GOAL_PERCENT),
    ]


def _name_servers(control: Path) -> list[int]:
    """Processes that are told names on this socket: one, or none."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = path.read_bytes().split(b"\0")
            if b"astra_dns" in words and os.fsencode(control) in words:
                found.append(int(path.parent.name))
    return found


def _cpu_s(pids: list[int]) -> float:
    """Seconds that the processes have used, in user and kernel mode."""
    used = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        used += int(fields[11]) + int(fields[12])
    return used / _TICKS_PER_S


def _resident_mib(pid: int) -> float:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Rss:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"/proc/{pid}/smaps_rollup has no line Rss")
