"""From a task as Nomad describes it to the slot that the agent is asked for. Pure, but for what *machine* answers."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pydantic import ValidationError

from astra_agent.errors import InvalidRequest
from astra_agent.wire import (
    DeviceNode,
    Dns,
    HostMount,
    JoinedNetwork,
    LogFifos,
    RegistryAuth,
    Reservation,
    RunRef,
    SlotRequest,
    TmpfsMount,
)
from astra_driver.names import TaskId, host_name
from astra_driver.proto.driver_pb2 import NetworkIsolationSpec, TaskConfig
from astra_driver.settings import CAPABILITIES, PluginSettings, TaskSettings, capability, size_bytes, ulimit

GPUS = "NVIDIA_VISIBLE_DEVICES"
"""What the device plugin says of the GPUs that a task has; the one thing of it that a restart of the client keeps."""
_MIB = 1024**2


@dataclass(frozen=True, slots=True)
class Machine:
    """
    Attributes:
        cpus: How many processors it has.
        gpus: Index of each GPU by its UUID.
        real_path: Follows links.
    """

    cpus: int
    gpus: Mapping[str, int]
    real_path: Callable[[str], str]


def slot_request(task: TaskConfig, settings: TaskSettings, plugin: PluginSettings, machine: Machine) -> SlotRequest:
    """Raises: InvalidRequest in the words of the job file."""
    if settings.reservation:
        return _reserved(task, settings.reservation)
    name = TaskId.parse(task.id)
    network = task.network_isolation_spec
    dropped, added = _capabilities(settings, plugin)
    memory, reserved = _memory(task)
    cores = machine.cpus * task.resources.linux_resources.PercentTicks if settings.cpu_hard_limit else 0.0
    return SlotRequest(
        slot=name.slot,
        engine_ref=name.engine_ref,
        incarnation=name.start,
        starts="when_told" if is_gang(task.env) else "when_ready",
        run=RunRef(workspace=task.namespace, name=task.job_id, uid=task.job_id),
        worker=settings.hostname or network.hostsConfig.hostname or host_name(task.name, task.alloc_id[:8]),
        image=settings.image,
        command=(settings.command, *settings.args) if settings.command else (),
        args=() if settings.command else settings.args,
        env=dict(task.env),
        mounts=(*_folders(task), *_volumes(task), *_mounts(task, settings, plugin, machine)),
        tmpfs=tuple(
            TmpfsMount(mount_path=one.target, size_bytes=size_bytes(one.size) if one.size else 0)
            for one in settings.tmpfs
        ),
        devices=(*_plugin_devices(task), *_devices(settings, plugin, machine)),
        gpus=_gpus(task, machine),
        cpu_cores=cores,
        cpu_shares=max(0, task.resources.linux_resources.cpu_shares),
        cpus=task.resources.linux_resources.cpuset_cpus,
        memory_bytes=memory,
        memory_reserved_bytes=reserved,
        shm_bytes=size_bytes(settings.shm_size) if settings.shm_size else 0,
        user=task.user or None,
        working_dir=settings.working_dir or None,
        registry_auth=RegistryAuth(**settings.auth.model_dump()) if settings.auth is not None else None,
        cap_add=added,
        cap_drop=dropped,
        ulimits={limit: ulimit(limit, text) for limit, text in settings.ulimit.items()},
        read_only_root=settings.readonly_rootfs,
        fifos=_fifos(task),
        network=_network(network),
        dns=_dns(task),
        hosts=settings.extra_hosts,
    )


def _reserved(task: TaskConfig, text: str) -> SlotRequest:
    """What the coordinator asks of this machine, as a task of Nomad's: with its logs, its folders and its name."""
    name = TaskId.parse(task.id)
    try:
        asked = Reservation.model_validate_json(text).request(task.node_id)
    except ValidationError as error:
        raise InvalidRequest(
            f"config: reservation can't be read ({error.errors()[0]['msg']})", "reservation"
        ) from error
    except KeyError as error:
        raise InvalidRequest(f"node {task.node_id} is not in the reservation of its job", "reservation") from error
    return asked.model_copy(
        update={
            "slot": name.slot,
            "called": asked.slot,
            "engine_ref": name.engine_ref,
            "incarnation": name.start,
            "starts": "when_told",
            "mounts": (*asked.mounts, *_folders(task), *_volumes(task)),
            "fifos": _fifos(task),
        }
    )


def is_gang(env: Mapping[str, str]) -> bool:
    """Whether a coordinator starts this task together with others. Raises: InvalidRequest."""
    said = env.get("NOMAD_META_astra_start", "")
    if said.lower() not in ("", "gang"):
        raise InvalidRequest(f'meta astra_start is "{said}": right is "Gang", or no such meta', "astra_start")
    return bool(said)


def _network(spec: NetworkIsolationSpec) -> JoinedNetwork | None:
    if spec.mode != NetworkIsolationSpec.GROUP or not spec.path:
        return None
    return JoinedNetwork(netns=spec.path, address=spec.hostsConfig.address)


def _dns(task: TaskConfig) -> Dns | None:
    found = Dns(servers=tuple(task.dns.servers), searches=tuple(task.dns.searches), options=tuple(task.dns.options))
    return None if found == Dns() else found


def _fifos(task: TaskConfig) -> LogFifos | None:
    """None where the job has turned its logs off."""
    if task.stdout_path in ("", "/dev/null"):
        return None
    return LogFifos(stdout=task.stdout_path, stderr=task.stderr_path)


# Limits ------------------------------------------------------------------------------------------------------------


def _memory(task: TaskConfig) -> tuple[int, int]:
    """The limit, and what is reserved of it where the job may use more than that."""
    memory = task.resources.allocated_resources.memory
    limit = task.resources.linux_resources.memory_limit_bytes
    if memory.memory_max_mb < 0:
        limit = 0
    reserved = memory.memory_mb * _MIB if memory.memory_max_mb else 0
    return limit, reserved


def _capabilities(settings: TaskSettings, plugin: PluginSettings) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What is dropped, and what is added after that."""
    allowed = {capability(name) for name in plugin.allow_caps}
    added = tuple(capability(name) for name in settings.cap_add)
    dropped = tuple(capability(name) for name in settings.cap_drop)
    if "ALL" in allowed:
        return dropped, added
    for name in added:
        if name not in allowed:
            raise InvalidRequest(
                f'config: cap_add: {name} is not allowed on this machine; its operator can add it to "allow_caps" '
                f"(now: {', '.join(sorted(allowed))})",
                "cap_add",
            )
    return (*dropped, *(name for name in CAPABILITIES if name not in allowed)), added


# Folders and devices -----------------------------------------------------------------------------------------------


def _folders(task: TaskConfig) -> tuple[HostMount, ...]:
    own = f"{task.alloc_dir}/{task.name}"
    return (
        HostMount(source=f"{task.alloc_dir}/alloc", mount_path="/alloc"),
        HostMount(source=f"{own}/local", mount_path="/local"),
        HostMount(source=f"{own}/secrets", mount_path="/secrets"),
    )


def _volumes(task: TaskConfig) -> tuple[HostMount, ...]:
    """Nomad's own volumes; it has asked who may have them."""
    found = {
        mount.task_path: HostMount(source=mount.host_path, mount_path=mount.task_path, read_only=mount.readonly)
        for mount in task.mounts
    }
    return tuple(found.values())


def _mounts(
    task: TaskConfig, settings: TaskSettings, plugin: PluginSettings, machine: Machine
) -> tuple[HostMount, ...]:
    own = f"{task.alloc_dir}/{task.name}"
    mounts = []
    for mount in settings.mounts:
        source = machine.real_path(posixpath.join(own, mount.source))
        leave = plugin.allow_mounts if mount.source.startswith("/") else (own, f"{task.alloc_dir}/alloc")
        if not _is_below(source, leave, machine):
            raise InvalidRequest(
                f"config: mount.source is {mount.source}: {_not_allowed(mount.source, plugin)}", "mount.source"
            )
        mounts.append(HostMount(source=source, mount_path=mount.target, read_only=mount.readonly))
    return tuple(mounts)


def _not_allowed(source: str, plugin: PluginSettings) -> str:
    if not source.startswith("/"):
        return "expected a path inside of the task's own folder, such as local/model"
    allowed = f"mounts from {', '.join(plugin.allow_mounts)} only" if plugin.allow_mounts else "no mounts"
    return f'this machine\'s operator allows {allowed}; he can add it to "allow_mounts"'


def _devices(settings: TaskSettings, plugin: PluginSettings, machine: Machine) -> tuple[DeviceNode, ...]:
    nodes = []
    for device in settings.devices:
        source = machine.real_path(device.host_path)
        if not _is_below(source, plugin.allow_devices, machine):
            raise InvalidRequest(
                f"config: device.host_path is {device.host_path}: this machine's operator allows "
                f'{", ".join(plugin.allow_devices) or "no devices"}; he can add it to "allow_devices"',
                "device.host_path",
            )
        path = device.container_path or device.host_path
        nodes.append(DeviceNode(source=source, device_path=path, permissions=device.permissions))
    return tuple(nodes)


def _is_below(path: str, folders: Sequence[str], machine: Machine) -> bool:
    resolved = (machine.real_path(folder).rstrip("/") for folder in folders)
    return any(path == folder or path.startswith(f"{folder}/") for folder in resolved)


def _plugin_devices(task: TaskConfig) -> tuple[DeviceNode, ...]:
    """Of other device plugins than ours, which gives none."""
    return tuple(
        DeviceNode(
            source=device.host_path, device_path=device.task_path, permissions=device.cgroup_permissions or "rwm"
        )
        for device in task.devices
    )


def _gpus(task: TaskConfig, machine: Machine) -> tuple[int, ...]:
    uuids = [uuid for uuid in task.device_env.get(GPUS, "").split(",") if uuid]
    for uuid in uuids:
        if uuid not in machine.gpus:
            raise InvalidRequest(f"GPU {uuid} is not on this machine any more; the job must be placed anew", "device")
    return tuple(sorted(machine.gpus[uuid] for uuid in uuids))
