"""
Slurm's names for what a worker is: one job, one step, one task on each node, and a node for each worker.

Nodes are called by their workers' names, so that whatever expands a node list gets names that resolve. Programs that
read these variables take much for granted; each trap below was met in one of them.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from itertools import groupby

from astra_agent.wire import MachineFacts
from astra_gang import ranks
from astra_gang.core.state import RunState, Worker
from astra_gang.shape import Shape

_JOB_IDS = 67_000_000
"""Slurm's own job IDs stay below 2^26, and readers keep them in 32 bits."""

_NUMBERED = re.compile(r"(.*?)(0|[1-9]\d*)?", re.ASCII)


def variables(
    run: RunState, worker: Worker, shape: Shape, leader_address: str, facts: Mapping[str, MachineFacts]
) -> dict[str, str]:
    """
    Args:
        leader_address: Where the other workers reach the leader.
        facts: By name of machine.
    """
    count = str(len(run.workers))
    nodes = nodelist([other.name for other in run.workers])
    tasks = repeated([1] * len(run.workers))
    cpus = [_cpus(other, shape, facts) for other in run.workers]
    job_id = str(job_number(run.uid))
    return {
        "SLURM_CLUSTER_NAME": "astraeus",
        "SLURM_JOB_ID": job_id,
        "SLURM_JOBID": job_id,
        "SLURM_JOB_NAME": run.name,
        "SLURM_JOB_NODELIST": nodes,
        "SLURM_JOB_NUM_NODES": count,
        "SLURM_JOB_CPUS_PER_NODE": repeated(cpus),
        "SLURM_NODELIST": nodes,
        "SLURM_NNODES": count,
        "SLURM_NTASKS": count,
        "SLURM_NPROCS": count,
        "SLURM_NTASKS_PER_NODE": "1",
        "SLURM_TASKS_PER_NODE": tasks,
        # Never the older SLURM_STEPID: Open MPI takes it for "started by srun" and refuses to run without Slurm's PMI.
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NODELIST": nodes,
        "SLURM_STEP_NUM_NODES": count,
        "SLURM_STEP_NUM_TASKS": count,
        "SLURM_STEP_TASKS_PER_NODE": tasks,
        "SLURM_PROCID": str(worker.rank),
        "SLURM_NODEID": str(worker.rank),
        "SLURM_LOCALID": "0",
        "SLURM_GTIDS": str(worker.rank),
        "SLURMD_NODENAME": worker.name,
        "SLURM_LAUNCH_NODE_IPADDR": leader_address,
        "SLURM_CPUS_ON_NODE": str(cpus[worker.rank]),
        "SLURM_CPUS_PER_TASK": str(cpus[worker.rank]),
        "SLURM_GPUS_ON_NODE": str(shape.gpus),
        "SLURM_RESTART_COUNT": str(worker.attempt),
        "SLURM_TOPOLOGY_ADDR": _topology(run, worker, facts),
        "SLURM_TOPOLOGY_ADDR_PATTERN": "block.node",
    }


def job_number(uid: str) -> int:
    """A number for the run: the same in all its attempts, and hardly ever another run's."""
    return int.from_bytes(hashlib.sha256(uid.encode()).digest()[:8], "big") % _JOB_IDS + 1


def nodelist(names: Sequence[str]) -> str:
    """The names, in order, in Slurm's notation: `llama-[0-3]`, `etl-driver-0,etl-executor-[0-3]`."""
    return ",".join(
        prefix + _bracketed([number for _, number in same])
        for prefix, same in groupby(map(_split, names), key=lambda part: part[0])
    )


def repeated(counts: Sequence[int]) -> str:
    """Numbers for each node in Slurm's notation: `1(x4)`, `96(x2),48`."""
    runs = ((count, sum(1 for _ in same)) for count, same in groupby(counts))
    return ",".join(f"{count}(x{times})" if times > 1 else str(count) for count, times in runs)


def _split(name: str) -> tuple[str, int | None]:
    match = _NUMBERED.fullmatch(name)
    if match is None or match[2] is None:
        return name, None
    return match[1], int(match[2])


def _bracketed(numbers: list[int | None]) -> str:
    spans: list[list[int]] = []
    for number in numbers:
        if number is None:
            return ""
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    text = ",".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)
    return text if len(numbers) == 1 else f"[{text}]"


def _cpus(worker: Worker, shape: Shape, facts: Mapping[str, MachineFacts]) -> int:
    """Whole cores, at least one: those that the run asked for, else the machine's."""
    machine = facts.get(worker.slot.machine) if worker.slot is not None else None
    cores = shape.cpu_cores or (machine.cpu_cores if machine is not None else 0)
    return max(1, int(cores))


def _topology(run: RunState, worker: Worker, facts: Mapping[str, MachineFacts]) -> str:
    """
    `block1.node3`: the domains that the run's machines are in, counted in order of rank, and the rank.

    Numbers of our own, not names: NVIDIA's resiliency launcher orders by the digits in both parts, ends with an error
    where a part has none or more than ten, and where a name brings a second dot.
    """
    blocks: dict[str, int] = {}
    for other in run.workers:
        machine = facts.get(other.slot.machine) if other.slot is not None else None
        number = blocks.setdefault(ranks.block(machine) if machine is not None else "", len(blocks))
        if other.rank == worker.rank:
            return f"block{number}.node{worker.rank}"
    raise ValueError(f"{worker.name} is no worker of {run.name}")
