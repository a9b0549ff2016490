"""
From a plan to an OCI runtime spec, and from a container's spec to that of an exec in it. Pure: whatever it depends on
of this machine is in *machine*.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from astra_agent import cgroup_names
from astra_agent.cgroup_names import CgroupDriver
from astra_agent.runtime import BindMount, ContainerPlan, Device, MemoryMount

INIT = "/dev/.astra-init"
"""Where every container has its first process, see `astra_agent/init/init.c`."""

Spec = dict[str, Any]

# What Docker and containerd give by default; attachments add to it (IPC_LOCK for RDMA).
_CAPABILITIES = (
    "CAP_AUDIT_WRITE",
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_FOWNER",
    "CAP_FSETID",
    "CAP_KILL",
    "CAP_MKNOD",
    "CAP_NET_BIND_SERVICE",
    "CAP_NET_RAW",
    "CAP_SETFCAP",
    "CAP_SETGID",
    "CAP_SETPCAP",
    "CAP_SETUID",
    "CAP_SYS_CHROOT",
)

_ALL_CAPABILITIES = (
    *_CAPABILITIES,
    "CAP_AUDIT_CONTROL",
    "CAP_AUDIT_READ",
    "CAP_BLOCK_SUSPEND",
    "CAP_DAC_READ_SEARCH",
    "CAP_IPC_LOCK",
    "CAP_IPC_OWNER",
    "CAP_LEASE",
    "CAP_LINUX_IMMUTABLE",
    "CAP_MAC_ADMIN",
    "CAP_MAC_OVERRIDE",
    "CAP_NET_ADMIN",
    "CAP_NET_BROADCAST",
    "CAP_SYSLOG",
    "CAP_SYS_ADMIN",
    "CAP_SYS_BOOT",
    "CAP_SYS_MODULE",
    "CAP_SYS_NICE",
    "CAP_SYS_PACCT",
    "CAP_SYS_PTRACE",
    "CAP_SYS_RAWIO",
    "CAP_SYS_RESOURCE",
    "CAP_SYS_TIME",
    "CAP_SYS_TTY_CONFIG",
    "CAP_WAKE_ALARM",
)
_UNLIMITED = 2**64 - 1

_MASKED = (
    "/proc/acpi",
    "/proc/asound",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/sys/firmware",
)
_READ_ONLY = ("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger")

# null, zero, full, random, urandom, tty, ptmx, and all of /dev/pts.
_DEVICES = ((1, 3), (1, 5), (1, 7), (1, 8), (1, 9), (5, 0), (5, 2), (136, None))

_CPU_PERIOD_US = 100_000
_CPU_SHARES_MAX = 262_144


@dataclass(frozen=True, slots=True)
class Machine:
    """
    What a spec depends on of the machine.

    Attributes:
        init_path: The static program that is bind-mounted as every container's first process.
        open_files: The highest RLIMIT_NOFILE that containerd can give: a higher one would be refused.
        processes: Processes and threads that one container may have: most of the machine's, so that a program that
            forks without end leaves enough for the agent to stop it.
        cgroup_driver: Who makes the container's cgroup.
    """

    init_path: str
    cgroup_version: Literal[1, 2]
    open_files: int
    processes: int
    cgroup_driver: CgroupDriver = "cgroupfs"


def container_spec(plan: ContainerPlan, machine: Machine, image_mounts: Sequence[Spec] = ()) -> Spec:
    """
    The whole spec, with the plan's own edits applied last.

    Args:
        image_mounts: What belongs to the image, besides its root file system; the plan's own mounts lie over them.
    """
    spec: Spec = {
        "ociVersion": "1.0.2",
        "process": _process(plan, machine),
        "root": {"path": "rootfs", "readonly": plan.read_only_root},
        "hostname": plan.hostname,
        "mounts": _mounts(plan, machine, image_mounts),
        "linux": {
            "cgroupsPath": cgroup_names.for_runc(machine.cgroup_driver, plan.cgroup_path),
            "namespaces": _namespaces(plan.netns, machine.cgroup_version),
            "resources": _resources(plan, machine),
            "devices": [_device(device) for device in plan.devices],
            "maskedPaths": list(_MASKED),
            "readonlyPaths": list(_READ_ONLY),
        },
    }
    return plan.spec_edits(spec) if plan.spec_edits is not None else spec


def exec_process(container: Spec, args: tuple[str, ...], tty: bool, width: int, height: int) -> Spec:
    """The process of an exec: user, environment, capabilities and limits are the container's own."""
    process: Spec = {**container["process"], "args": list(args), "terminal": tty}
    if tty:
        process["consoleSize"] = {"width": width, "height": height}
        if not any(variable.startswith("TERM=") for variable in process["env"]):
            process["env"] = [*process["env"], "TERM=xterm"]
    return process


def _process(plan: ContainerPlan, machine: Machine) -> Spec:
    return {
        "terminal": False,
        "user": {"uid": plan.uid, "gid": plan.gid, "additionalGids": list(plan.groups)},
        "args": [INIT, *plan.args],
        "env": [f"{name}={value}" for name, value in plan.env.items()],
        "cwd": plan.working_dir,
        "capabilities": _capabilities(plan),
        "rlimits": _rlimits(plan, machine),
        "noNewPrivileges": True,
    }


def _capabilities(plan: ContainerPlan) -> Spec:
    dropped, added = set(map(_cap, plan.cap_drop)), set(map(_cap, plan.cap_add))
    kept = [name for name in _CAPABILITIES if name not in dropped and "CAP_ALL" not in dropped]
    wanted = _ALL_CAPABILITIES if "CAP_ALL" in added else sorted(added)
    capabilities = [*kept, *(name for name in wanted if name not in kept and name not in dropped)]
    sets = {"bounding": capabilities, "effective": capabilities, "permitted": capabilities}
    if plan.uid != 0 and wanted:
        # Another user than root keeps at exec only what is ambient as well.
        asked_for = [name for name in capabilities if name in wanted]
        sets |= {"inheritable": asked_for, "ambient": asked_for}
    return dict(sets)


def _cap(name: str) -> str:
    return f"CAP_{name.upper().removeprefix('CAP_')}"


def _rlimits(plan: ContainerPlan, machine: Machine) -> list[Spec]:
    limits = {
        "nofile": (machine.open_files, machine.open_files),
        # The memory of a training process on disk helps nobody, and fills it.
        "core": (0, 0),
        **plan.rlimits,
    }
    return [
        {"type": f"RLIMIT_{name.upper()}", "hard": _rlimit(hard), "soft": _rlimit(soft)}
        for name, (soft, hard) in limits.items()
    ]


def _rlimit(value: int) -> int:
    return _UNLIMITED if value == -1 else value


def _device(device: Device) -> Spec:
    return {
        "path": device.path,
        "type": device.kind,
        "major": device.major,
        "minor": device.minor,
        "fileMode": 0o666,
        "uid": 0,
        "gid": 0,
    }


def _mounts(plan: ContainerPlan, machine: Machine, image_mounts: Sequence[Spec]) -> list[Spec]:
    """The image's first; then parents before what lies in them, where of equals the plan's come last and so win."""
    own = [
        _mount("/proc", "proc", "proc", "nosuid", "noexec", "nodev"),
        _mount("/dev", "tmpfs", "tmpfs", "nosuid", "strictatime", "mode=755", "size=65536k"),
        _mount(
            "/dev/pts", "devpts", "devpts", "nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"
        ),
        _mount("/dev/shm", "tmpfs", "shm", "nosuid", "noexec", "nodev", "mode=1777", *_shm_size(plan)),
        _mount("/dev/mqueue", "mqueue", "mqueue", "nosuid", "noexec", "nodev"),
        _mount(INIT, "bind", machine.init_path, "bind", "ro", "nosuid", "nodev"),
        _mount("/sys", "sysfs", "sysfs", "nosuid", "noexec", "nodev", "ro"),
        _mount("/sys/fs/cgroup", "cgroup", "cgroup", "nosuid", "noexec", "nodev", "relatime", "ro"),
    ]
    mounts = [*own, *(_memory(mount) for mount in plan.memory_mounts), *(bind(mount) for mount in plan.mounts)]
    return [*image_mounts, *sorted(mounts, key=lambda mount: mount["destination"].rstrip("/").count("/"))]


def bind(mount: BindMount) -> Spec:
    return _mount(mount.target, "bind", mount.source, "rbind", "rprivate", "ro" if mount.read_only else "rw")


def _mount(destination: str, kind: str, source: str, *options: str) -> Spec:
    return {"destination": destination, "type": kind, "source": source, "options": list(options)}


def _memory(mount: MemoryMount) -> Spec:
    size = (f"size={mount.size_bytes}",) if mount.size_bytes else ()
    return _mount(mount.target, "tmpfs", "tmpfs", "nosuid", "nodev", "mode=1777", *size)


def _shm_size(plan: ContainerPlan) -> tuple[str, ...]:
    """Without a size a tmpfs has half of the machine's memory, which is what is wanted for a plan without a limit."""
    size_bytes = plan.shm_bytes or plan.memory_bytes // 2
    return (f"size={size_bytes}",) if size_bytes else ()


def _namespaces(netns: str, cgroup_version: Literal[1, 2]) -> list[Mapping[str, str]]:
    namespaces: list[Mapping[str, str]] = [{"type": kind} for kind in ("pid", "ipc", "uts", "mount")]
    if cgroup_version == 2:
        # So that programs find their own limits in /sys/fs/cgroup; on version 1 the runtime binds them there.
        namespaces.append({"type": "cgroup"})
    return [*namespaces, {"type": "network", "path": netns}]


def _resources(plan: ContainerPlan, machine: Machine) -> Spec:
    resources: Spec = {"devices": _device_rules(plan.devices), "pids": {"limit": machine.processes}}
    if plan.memory_bytes or plan.memory_reserved_bytes:
        limits = {"limit": plan.memory_bytes, "reservation": plan.memory_reserved_bytes}
        resources["memory"] = {name: value for name, value in limits.items() if value}
    if cpu := _cpu(plan):
        resources["cpu"] = cpu
    return resources


def _cpu(plan: ContainerPlan) -> Spec:
    cpu: Spec = {}
    if shares := plan.cpu_shares or round(plan.cpu_cores * 1024):
        cpu["shares"] = min(max(2, shares), _CPU_SHARES_MAX)
    if plan.cpu_cores:
        cpu |= {"quota": max(1000, round(plan.cpu_cores * _CPU_PERIOD_US)), "period": _CPU_PERIOD_US}
    if plan.cpus:
        cpu["cpus"] = plan.cpus
    return cpu


def _device_rules(devices: Sequence[Device]) -> list[Spec]:
    rules: list[Spec] = [{"allow": False, "access": "rwm"}]
    for major, minor in _DEVICES:
        rule: Spec = {"allow": True, "type": "c", "major": major, "access": "rwm"}
        rules.append(rule if minor is None else {**rule, "minor": minor})
    for device in devices:
        numbers = {"type": device.kind, "major": device.major, "minor": device.minor}
        rules.append({"allow": True, **numbers, "access": device.permissions})
    return rules
