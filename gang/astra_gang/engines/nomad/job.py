"""
The batch job of a reservation: exactly the chosen machines, one worker on each, and nothing that Nomad does by itself.

What a machine's driver must know of its own slot is in the task's config, keyed by node. The index of an allocation
says nothing: which machine gets which one is Nomad's choice.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any

from astra_agent.wire import Reservation, RunRef, SlotRequest, SlotShare
from astra_gang.engines.nomad.answers import DRIVER, Job, Node

GROUP, TASK = "workers", "worker"
META_RUN, META_WORKSPACE = "astra_run", "astra_workspace"
"""Of the job: whose it is, for people who look at it in Nomad."""
START, GANG = "astra_start", "Gang"
"""Job meta of a plain job that asks to be a gang."""
GPU_VENDOR, GPU_TYPE = "nvidia", "gpu"
_ON_NODES, _ANY_OF = "${node.unique.id}", "set_contains_any"
_NOWHERE = "none"
"""No node's ID."""
_CPU_LEAST, _MEMORY_LEAST_MB = 1, 10
"""Nomad takes no task that asks for less."""
_DISK_MB = 300
_LOG_FILES, _LOG_FILE_MB = 3, 10
"""Nomad's own copy of the output: it must be smaller than the group's disk."""
_NS = 1_000_000_000
DISCONNECT_SINCE = (1, 8, 0)
"""The version that has the `disconnect` block; earlier ones have `max_client_disconnect`. Each drops the other's."""

Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Terms:
    """
    What every job of this cluster has in common.

    Attributes:
        version: Of the oldest server.
        disconnect_limit_s: For how long a machine may be cut off before its member is lost.
    """

    node_pool: str
    version: tuple[int, int, int]
    disconnect_limit_s: float
    priority: int = 50


@dataclass(frozen=True, slots=True)
class Seat:
    """
    One slot of a reservation with the node it is for.

    Attributes:
        gpus: IDs of the slot's GPUs.
    """

    request: SlotRequest
    node: Node
    gpus: tuple[str, ...] = ()


def job_id(reservation: str, run: RunRef) -> str:
    """`<run>-<uid>-<n>`: a fresh one for each reservation, and the same for the same one."""
    uid, _, number = reservation.rpartition("/")
    return f"{run.name}-{uid}-{number}"


def build(reservation: str, seats: tuple[Seat, ...], terms: Terms) -> Document:
    """
    The job, to be registered when there is none of its ID.

    Args:
        seats: Each on another node.
    """
    run = seats[0].request.run
    name = job_id(reservation, run)
    return {
        "ID": name,
        "Name": name,
        "Namespace": run.workspace,
        "Type": "batch",
        "NodePool": terms.node_pool,
        "Datacenters": ["*"],
        "Priority": terms.priority,
        "AllAtOnce": True,
        "Meta": {META_RUN: run.name, META_WORKSPACE: run.workspace},
        "TaskGroups": [_group(name, alike, terms) for name, alike in _by_size(seats).items()],
    }


def machine_ids(document: Mapping[str, Any]) -> tuple[str, ...]:
    """The nodes that the job may be placed on."""
    return tuple(node for group in document["TaskGroups"] for node in _list_of(group)["RTarget"].split(","))


def swapped(job: Job, *, out: str, into: str | None = None) -> Document | None:
    """
    The job with node *out* taken off its list, and *into* put in its place; None when it is off it already.

    Nothing but the list changes and the count stays, so the other members are updated in place and keep running.
    """
    document = copy.deepcopy(job.document)
    for group in document["TaskGroups"]:
        on_nodes = _list_of(group)
        listed = on_nodes["RTarget"].split(",")
        if out in listed:
            kept = [*(node for node in listed if node != out), *([into] if into else [])]
            on_nodes["RTarget"] = ",".join(kept) or _NOWHERE
            return document
    return None


def limit_in(job: Job) -> float | None:
    """The disconnect limit that Nomad has kept of the job's, in seconds; None when it has dropped it."""
    group = job.document["TaskGroups"][0]  # every group of a job has the same
    kept = (group.get("Disconnect") or {}).get("LostAfter") or group.get("MaxClientDisconnect")
    return kept / _NS if kept else None


# Its parts -----------------------------------------------------------------------------------------------------------


def _by_size(seats: tuple[Seat, ...]) -> dict[str, tuple[Seat, ...]]:
    """One task group for workers of one size, by its name: a group has one size for all."""
    sizes: dict[tuple[float, int, int], list[Seat]] = {}
    for seat in seats:
        request = seat.request
        sizes.setdefault((request.cpu_cores, request.memory_bytes, len(request.gpus)), []).append(seat)
    return {GROUP if not i else f"{GROUP}-{i + 1}": tuple(alike) for i, alike in enumerate(sizes.values())}


def _list_of(group: Document) -> Document:
    """The constraint that lists the group's nodes."""
    found: Document = next(c for c in group["Constraints"] if c.get("LTarget") == _ON_NODES)
    return found


def _group(name: str, seats: tuple[Seat, ...], terms: Terms) -> Document:
    return {
        "Name": name,
        "Count": len(seats),
        "Constraints": [
            {"Operand": "distinct_hosts", "RTarget": "true"},
            {"LTarget": _ON_NODES, "Operand": _ANY_OF, "RTarget": ",".join(seat.node.id for seat in seats)},
        ],
        # Omitted blocks get defaults that start a worker again behind the coordinator's back.
        "RestartPolicy": {"Attempts": 0, "Mode": "fail", "Interval": 1800 * _NS, "Delay": 15 * _NS},
        "ReschedulePolicy": {
            "Attempts": 0, "Unlimited": False, "Interval": 0, "Delay": 0, "MaxDelay": 0, "DelayFunction": "constant",
        },
        "EphemeralDisk": {"SizeMB": _DISK_MB},
        "Tasks": [_task(seats)],
        **_disconnect(terms),
    }  # fmt: skip


def _disconnect(terms: Terms) -> Document:
    limit = int(terms.disconnect_limit_s * _NS)
    if terms.version >= DISCONNECT_SINCE:
        return {"Disconnect": {"LostAfter": limit, "Replace": False}}
    return {"MaxClientDisconnect": limit}


def _task(seats: tuple[Seat, ...]) -> Document:
    request = seats[0].request
    shares = {
        seat.node.id: SlotShare(slot=seat.request.slot, worker=seat.request.worker, gpus=seat.request.gpus)
        for seat in seats
    }
    text = Reservation(common=request, shares=shares).model_dump_json(exclude_defaults=True)
    return {
        "Name": TASK,
        "Driver": DRIVER,
        "Config": {"image": escaped(request.image), "reservation": escaped(text)},
        "Resources": _resources(seats),
        "KillSignal": "SIGTERM",
        "KillTimeout": int(request.stop_grace_s * _NS),
        "LogConfig": {"MaxFiles": _LOG_FILES, "MaxFileSizeMB": _LOG_FILE_MB},
    }


def escaped(text: str) -> str:
    """Nomad's client reads every string of a task's config as a template; this is what leaves *text* as it is."""
    return text.replace("${", "$${").replace("%{", "%%{")


def _resources(seats: tuple[Seat, ...]) -> Document:
    """
    One size for all machines: where cores differ in speed, the slowest one's, so that it fits everywhere. What it takes
    too little of a faster one only shows in Nomad's own sums; the coordinator counts cores.
    """
    request = seats[0].request
    per_core = min(shares_per_core(seat.node) for seat in seats)
    resources: Document = {
        "CPU": max(_CPU_LEAST, int(request.cpu_cores * per_core)),
        "MemoryMB": max(_MEMORY_LEAST_MB, ceil(request.memory_bytes / 2**20)),
    }
    if request.gpus and all(set(seat.gpus) <= set(gpu_ids(seat.node)) for seat in seats):
        resources["Devices"] = [_device(seats)]
    return resources


def _device(seats: tuple[Seat, ...]) -> Document:
    """
    All of the chosen GPUs in one list: on each machine it holds that machine's own and no others, and Nomad takes no
    instance that is not in it.
    """
    pinned = ",".join(gpu for seat in seats for gpu in seat.gpus)
    return {
        "Name": f"{GPU_VENDOR}/{GPU_TYPE}",
        "Count": len(seats[0].gpus),
        "Constraints": [{"LTarget": "${device.ids}", "Operand": _ANY_OF, "RTarget": pinned}],
    }


def shares_per_core(node: Node) -> float:
    """Nomad's CPU shares (MHz) of one core; 0 for a node that does not say."""
    cpu = node.resources.cpu
    return cpu.shares / cpu.cores if cpu.cores else 0.0


def gpu_ids(node: Node) -> tuple[str, ...]:
    """IDs of the GPUs that Nomad knows of; none where no device plugin tells it."""
    return tuple(
        instance.id
        for group in node.resources.devices
        if (group.vendor, group.type) == (GPU_VENDOR, GPU_TYPE)
        for instance in group.instances
    )
