"""
Restart in place, of four real containers with no back-off: one worker's program is killed from outside.

Three figures of the same rounds: from its end to the end of all the others' programs; from its end to the first
instruction of the last worker of the next attempt; and how far apart the four first instructions are.
"""

from __future__ import annotations

import asyncio
import os
import select
import signal
import time
from pathlib import Path

from bench.cluster import MACHINES, DevCluster, dev_cluster
from bench.figure import Figure, against_goal
from bench.program import first_instruction_ns

ROUNDS = 12
"""Each worker is killed three times; its budget is ten."""
RUN = "restart"
END_TIMEOUT_S = 60.0
STOPPED_GOAL_S = 0.3
STARTED_GOAL_S = 0.6
SPREAD_GOAL_MS = 40.0


async def measure() -> list[Figure]:
    async with dev_cluster() as cluster:
        await cluster.submit_gang(RUN)
        started = [await asyncio.to_thread(_first_instructions, cluster, 0)]
        stopped_s, next_s = [], []
        for attempt in range(ROUNDS):
            ends = await asyncio.to_thread(_kill_one, cluster.drive, attempt % MACHINES)
            started.append(await asyncio.to_thread(_first_instructions, cluster, attempt + 1))
            stopped_s.append((max(ends) - ends[0]) / 1e9)
            next_s.append((max(started[-1]) - ends[0]) / 1e9)
            await cluster.until(RUN, "Running")
        await cluster.stop(RUN)
    spread_ms = [(max(times) - min(times)) / 1e6 for times in started]
    return [
        against_goal("restart-stopped", "worker exit to all others stopped", "s", stopped_s, STOPPED_GOAL_S),
        against_goal("restart-started", "worker exit to last first instruction", "s", next_s, STARTED_GOAL_S),
        against_goal("spread", "spread of first instructions, 4 workers", "ms", spread_ms, SPREAD_GOAL_MS),
    ]


def _first_instructions(cluster: DevCluster, attempt: int) -> list[int]:
    """Of each worker in *attempt*, in nanoseconds; waits for them."""
    return [first_instruction_ns(cluster.drive / "started", rank, attempt) for rank in range(MACHINES)]


def _kill_one(drive: Path, victim: int) -> list[int]:
    """
    Kill the program of rank *victim* and watch all four end.

    Returns: When each ended, in nanoseconds on CLOCK_MONOTONIC; the victim's first.
    """
    programs = _programs()
    poll, ranks = select.poll(), {}
    for rank, pid in programs.items():
        watched = os.pidfd_open(pid)
        ranks[watched] = rank
        poll.register(watched, select.POLLIN)
    ends: dict[int, int] = {}
    try:
        signal.pidfd_send_signal(next(fd for fd, rank in ranks.items() if rank == victim), signal.SIGKILL)
        deadline = time.monotonic() + END_TIMEOUT_S
        while len(ends) < len(ranks):
            if time.monotonic() > deadline:
                raise TimeoutError(f"of {len(ranks)} workers only {sorted(ends)} ended within {END_TIMEOUT_S:g} s")
            for watched, _ in poll.poll(1000):
                ends[ranks[watched]] = time.monotonic_ns()
                poll.unregister(watched)
    finally:
        for watched in ranks:
            os.close(watched)
    return [ends.pop(victim), *ends.values()]


def _programs() -> dict[int, int]:
    """The process of each rank's program on this machine, by rank."""
    found: dict[int, int] = {}
    for process in Path("/proc").iterdir():
        try:
            if process.name.isdigit() and (process / "cmdline").read_bytes().startswith(b"/bench/first\0"):
                variables = (process / "environ").read_bytes().split(b"\0")
                rank = next(item for item in variables if item.startswith(b"RANK="))
                found[int(rank.removeprefix(b"RANK="))] = int(process.name)
        except (OSError, StopIteration):
            continue
    if sorted(found) != list(range(MACHINES)):
        raise RuntimeError(f"expected the programs of ranks 0 to {MACHINES - 1}, found those of {sorted(found)}")
    return found
