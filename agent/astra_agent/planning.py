"""From a slot's record to the plan of an attempt's container, with the files written and the devices looked at."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path

from astra_agent import attachments, host_files, plans
from astra_agent.attach import Edits
from astra_agent.errors import Conflict, HostFault, InvalidRequest
from astra_agent.promises import Promise, promise
from astra_agent.records import AttemptRecord, Prepared, SlotRecord
from astra_agent.runtime import ContainerPlan, Device
from astra_agent.tools import Tools
from astra_agent.wire import DeviceNode, SlotRequest


async def plan(tools: Tools, record: SlotRecord, attempt: AttemptRecord, files: Path) -> tuple[ContainerPlan, Promise]:
    """
    The plan, and what its program is promised.

    Args:
        files: Where the attempt's hosts, resolv.conf and hostname are written, and what is attached as a file.
    Raises:
        HostFault: the slot is not prepared, a file can't be written, a device has gone.
        InvalidRequest: what is asked for is not on this machine.
    """
    prepared, request, logs = record.prepared, record.request_of(attempt), tools.logs
    if prepared is None:
        raise HostFault(f"slot {request.slot} is not prepared")
    edits = await _attached(tools, request, attempt, prepared.ports)
    attached = {plans.file_name(file): file.text for file in edits.files}
    host_files.write(files, _texts(tools, request, prepared, attempt) | attached)
    made = plans.container_plan(
        tools.config,
        record,
        prepared,
        attempt,
        edits,
        netns=Path(request.network.netns) if request.network else tools.networks.path(request.slot),
        log_path=logs.path(request.slot, attempt.number),
        error_log_path=logs.error_path(request.slot, attempt.number) if request.fifos else None,
        files=files,
        devices=tuple(find_device(node) for node in request.devices),
    )
    return made, promise(edits)


async def _attached(tools: Tools, request: SlotRequest, attempt: AttemptRecord, came_with: Sequence[str]) -> Edits:
    lookout, placed = tools.lookout, attempt.placed
    if not request.gpus and placed.tier in ("machine", "ethernet"):
        return Edits()
    runtime = await tools.containers.probe()
    inventory = await lookout.look()
    if placed.tier == "nvlink" and inventory.overrides.exclusive_channels:
        tools.holdings.claim_channel(request, placed.channel)
    try:
        edits = attachments.attached(
            inventory,
            request,
            placed,
            is_played=lookout.is_played,
            can_raise_memlock=runtime.memlock_unlimited,
        )
    except InvalidRequest as error:
        # The slot was accepted with what it asks for: it is the machine that has changed.
        raise HostFault(f"{error}; it had when {request.worker} came") from error
    except Conflict as error:
        raise HostFault(f"what {request.worker} is to get of {inventory.machine} is not clear: {error}") from error
    fewer = attachments.why_fewer(inventory, came_with, request, placed)
    if fewer is not None:
        raise HostFault(fewer)
    return edits


def find_device(node: DeviceNode) -> Device:
    """Raises: HostFault when it is not there; InvalidRequest when it is no device."""
    try:
        info = Path(node.source).stat()
    except OSError as error:
        raise HostFault(f"device {node.source} is not on this machine: {error.strerror}") from error
    if not (stat.S_ISCHR(info.st_mode) or stat.S_ISBLK(info.st_mode)):
        raise InvalidRequest(f"{node.source} is no device node", "devices")
    return Device(
        path=node.device_path,
        kind="c" if stat.S_ISCHR(info.st_mode) else "b",
        major=os.major(info.st_rdev),
        minor=os.minor(info.st_rdev),
        permissions=node.permissions,
    )


def _texts(tools: Tools, request: SlotRequest, prepared: Prepared, attempt: AttemptRecord) -> dict[str, str]:
    """
    Peers are in the hosts file only where nobody answers for them: there they would stay what they were while the
    name server has moved on.
    """
    machine_hosts = tools.hosts if request.image == "host" else ""
    answered = prepared.name_server and attempt.names is not None
    peers: Mapping[str, str] = {} if answered else attempt.hosts
    return {
        "hosts": host_files.hosts(request.worker, prepared.address, {**request.hosts, **peers}, machine_hosts),
        "resolv.conf": _resolv_conf(tools, request, prepared),
        "hostname": f"{request.worker}\n",
    }


def _resolv_conf(tools: Tools, request: SlotRequest, prepared: Prepared) -> str:
    if request.dns is not None:
        return host_files.resolv_conf_of(request.dns)
    if prepared.name_server:
        home = f"{request.run.workspace}.{tools.config.zone.removesuffix('.')}"
        return host_files.own_resolv_conf(prepared.name_server, (home, *tools.search))
    return tools.own_resolv_conf if request.network else tools.resolv_conf
