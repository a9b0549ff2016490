"""
A plain job that asks to be a gang: whether it can be one, and the run that it stands for. Pure.

Nomad restarts and moves tasks of a job by itself unless the job says otherwise, behind the back of whoever starts them
together; so a gang's job must say otherwise. Nomad shows the sentences quoted, so there are no quotes in them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any

from astra_agent.errors import InvalidRequest
from astra_gang.engines.nomad.answers import DRIVER, Allocation, Job
from astra_gang.engines.nomad.job import GANG, GPU_TYPE, GPU_VENDOR, META_RUN, START

_NS = 1_000_000_000
_MIB = 2**20


@dataclass(frozen=True, slots=True)
class Plain:
    """
    Attributes:
        group, task: Names, of the one group and of the one task that waits at the barrier.
        count: How many the group has now.
        stop_grace_s: From SIGTERM to SIGKILL; None: the job does not say.
        keeps_cut_off: A machine that is cut off for a while keeps its worker.
    """

    group: str
    task: str
    count: int
    stop_grace_s: float | None
    keeps_cut_off: bool
    config: Mapping[str, Any]
    resources: Mapping[str, Any]


def asks(job: Job) -> bool:
    """Whether it asks to be adopted: nobody has made it for a run."""
    return job.meta.get(START, "").lower() == GANG.lower() and META_RUN not in job.meta


def plain(job: Job) -> Plain:
    """
    Raises:
        InvalidRequest: It can't be a gang; one sentence with what would be right.
    """
    if job.type != "batch":
        raise _refused(job, f"its type is {job.type}: a gang ends when its workers have, so right is batch")
    groups = list(job.document["TaskGroups"] or ())
    if len(groups) != 1:
        raise _refused(job, f"it has {len(groups)} groups: all workers of a gang are one group, with count")
    group = groups[0]
    task = _task(job, group)
    count = int(group.get("Count") or 0)
    if count == 1:
        raise _refused(job, f"count of group {group['Name']} is 1: a gang has 2 workers or more")
    _check_hosts(job, group)
    _check_network(job, group)
    _check_policies(job, group, task)
    disconnect = group.get("Disconnect") or {}
    return Plain(
        group=group["Name"],
        task=task["Name"],
        count=count,
        stop_grace_s=task["KillTimeout"] / _NS if task.get("KillTimeout") else None,
        keeps_cut_off=bool(disconnect.get("LostAfter") or group.get("MaxClientDisconnect")),
        config=task.get("Config") or {},
        resources=task.get("Resources") or {},
    )


def document(job: Job, found: Plain, workers: int, shares_per_core: float) -> dict[str, Any]:
    """
    The spec of the run. What only Nomad's driver knows of a task (templates, volumes) is not in it: the slot has it.

    Args:
        shares_per_core: Nomad's CPU shares of one core; 0: not known.
    """
    cpu, cores = found.resources.get("CPU") or 0, found.resources.get("Cores") or 0
    asked: dict[str, Any] = {"machines": workers, "memory_bytes": int(found.resources.get("MemoryMB") or 10) * _MIB}
    if cores or shares_per_core:
        asked["cpu_cores"] = float(cores) if cores else max(0.01, ceil(100 * cpu / shares_per_core) / 100)
    if gpus := sum(int(device.get("Count") or 1) for device in _gpus(found)):
        asked["gpu_requests"] = {"count": gpus * workers}
    template: dict[str, Any] = {"image": str(found.config.get("image", "")), "requested_resources": asked}
    if command := found.config.get("command"):
        template |= {"command": str(command), "args": [str(word) for word in found.config.get("args") or ()]}
    return {"metadata": {"name": job.id}, "spec": {"start": GANG, "task_template": template}}


def gpus_of(allocation: Allocation, task: str) -> tuple[str, ...]:
    """IDs of the GPUs that Nomad gave to its task."""
    given = allocation.resources.tasks.get(task)
    devices = given.devices if given is not None else ()
    return tuple(
        gpu for device in devices if (device.vendor, device.type) == (GPU_VENDOR, GPU_TYPE) for gpu in device.ids
    )


def promise(found: Plain) -> str:
    """What a gang that was adopted is told beside its barrier: what is not as it would be with a run's own job."""
    said = "Adopted as a gang: Nomad chooses its machines; when one is lost, all of it is placed anew"
    if found.keeps_cut_off:
        return said
    return f"{said}, and for want of a disconnect block also when one is cut off for a moment"


# Its parts -----------------------------------------------------------------------------------------------------------


def _task(job: Job, group: Mapping[str, Any]) -> Mapping[str, Any]:
    tasks = [task for task in group.get("Tasks") or () if task.get("Driver") == DRIVER]
    if len(tasks) != 1:
        what = "none" if not tasks else ", ".join(str(task["Name"]) for task in tasks)
        raise _refused(job, f"one task of group {group['Name']} must have driver {DRIVER}, and {what} has")
    found: Mapping[str, Any] = tasks[0]
    return found


def _check_hosts(job: Job, group: Mapping[str, Any]) -> None:
    both = (*(job.document.get("Constraints") or ()), *(group.get("Constraints") or ()))
    if not any(c.get("Operand") == "distinct_hosts" and c.get("RTarget") in ("", "true", None) for c in both):
        raise _refused(
            job,
            f"group {group['Name']} may put two workers on one machine, and a worker has one of its own: write a "
            "constraint with operator distinct_hosts",
        )


def _check_network(job: Job, group: Mapping[str, Any]) -> None:
    """What Nomad makes for an allocation has an address that ends at its machine."""
    for network in group.get("Networks") or ():
        if (mode := network.get("Mode") or "host") != "host":
            raise _refused(
                job,
                f"network mode of group {group['Name']} is {mode}: workers find each other on the network of their "
                "machines, so right is host",
            )


def _check_policies(job: Job, group: Mapping[str, Any], task: Mapping[str, Any]) -> None:
    for policy in (group.get("RestartPolicy") or {}, task.get("RestartPolicy") or {}):
        if policy.get("Attempts"):
            raise _refused(
                job,
                f"Nomad would restart a worker {policy['Attempts']} times by itself: a gang is restarted together, so "
                f"write restart {{ attempts = 0 }} in group {group['Name']}",
            )
    policy = group.get("ReschedulePolicy") or {}
    if policy.get("Attempts") or policy.get("Unlimited"):
        raise _refused(
            job,
            "Nomad would reschedule a worker by itself: a gang is placed together, so write "
            f"reschedule {{ attempts = 0 unlimited = false }} in group {group['Name']}",
        )


def _gpus(found: Plain) -> list[Mapping[str, Any]]:
    devices = found.resources.get("Devices") or ()
    return [d for d in devices if GPU_TYPE in str(d.get("Name", "")).split("/")[:2]]


def _refused(job: Job, why: str) -> InvalidRequest:
    return InvalidRequest(f"Job {job.id} can't start as a gang: {why}")
