"""From a prepared slot and what an attempt was told, to the plan of its container. Values in, values out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path, PurePosixPath

from astra_agent import cgroup_names
from astra_agent.attach import Edits, apply
from astra_agent.attach.edits import File
from astra_agent.config import AgentConfig
from astra_agent.errors import InvalidRequest
from astra_agent.records import AttemptRecord, Prepared, SlotRecord
from astra_agent.runtime import BindMount, ContainerPlan, Device, ImageConfig, MemoryMount
from astra_agent.wire import SlotRequest

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

LABEL_SLOT = "astraeus.slot"
LABEL_ATTEMPT = "astraeus.attempt"
LABEL_RUN = "astraeus.run"


def container_id(slot: str, attempt: int) -> str:
    return f"{slot}-a{attempt}"


def arguments(request: SlotRequest, image: ImageConfig) -> tuple[str, ...]:
    """The program and its arguments. Raises: InvalidRequest when neither the run nor the image names one."""
    if request.command:
        return (*request.command, *request.args)
    found = (*image.entrypoint, *(request.args or image.command))
    if not found:
        raise InvalidRequest(f'image "{request.image}" has no command of its own; set command', "command")
    return found


def working_dir(request: SlotRequest, image: ImageConfig) -> str:
    return request.working_dir or image.working_dir or "/"


def search_path(request: SlotRequest, image: ImageConfig) -> str:
    return request.env.get("PATH") or image.env.get("PATH") or DEFAULT_PATH


def environment(
    request: SlotRequest, image: ImageConfig, told: Mapping[str, str], attached: Mapping[str, str], uid: int
) -> dict[str, str]:
    """The image's, then ours, then what the attempt was told, then the user's own: the last one wins (rule 7)."""
    ours = {"HOSTNAME": request.worker, "HOME": image.env.get("HOME") or ("/root" if uid == 0 else "/")}
    return {"PATH": DEFAULT_PATH, **image.env, **ours, **attached, **told, **request.env}


def drive_mounts(request: SlotRequest, drives: Mapping[str, Path]) -> tuple[BindMount, ...]:
    """Raises: InvalidRequest naming a drive that this machine does not have, or that lies nowhere."""
    return tuple(
        BindMount(str(_drive(drives, mount.name)), mount.mount_path, mount.read_only) for mount in request.drives
    )


def _drive(drives: Mapping[str, Path], name: str) -> Path:
    if name not in drives:
        has = ", ".join(sorted(drives)) or "none"
        raise InvalidRequest(f'drive "{name}" is not on this machine; it has: {has}', "drives")
    return drives[name]


def host_mounts(request: SlotRequest) -> tuple[BindMount, ...]:
    return tuple(BindMount(mount.source, mount.mount_path, mount.read_only) for mount in request.mounts)


def container_plan(
    config: AgentConfig,
    record: SlotRecord,
    prepared: Prepared,
    attempt: AttemptRecord,
    edits: Edits,
    *,
    netns: Path,
    log_path: Path,
    files: Path,
    error_log_path: Path | None = None,
    devices: tuple[Device, ...] = (),
) -> ContainerPlan:
    """
    Args:
        netns: What the container joins.
        files: Folder with the attempt's hosts, resolv.conf and hostname, and the files of *edits*.
    """
    request = record.request_of(attempt)
    name = container_id(request.slot, attempt.number)
    return ContainerPlan(
        id=name,
        labels={LABEL_SLOT: request.slot, LABEL_ATTEMPT: str(attempt.number), LABEL_RUN: request.run.uid},
        image=prepared.image,
        args=prepared.args,
        env=environment(request, prepared.image.config, attempt.env, dict(edits.env), prepared.uid),
        working_dir=prepared.working_dir,
        hostname=request.worker,
        log_path=str(log_path),
        netns=str(netns),
        cgroup_path=cgroup_names.of_container(config.cgroup_driver, config.cgroup_parent, name),
        mounts=(
            *drive_mounts(request, config.drives),
            *host_mounts(request),
            *_file_mounts(files),
            *_attached_files(files, edits),
        ),
        uid=prepared.uid,
        gid=prepared.gid,
        groups=prepared.groups,
        cpu_cores=request.cpu_cores,
        memory_bytes=request.memory_bytes,
        shm_bytes=request.shm_bytes,
        error_log_path=str(error_log_path) if error_log_path is not None else None,
        memory_mounts=tuple(MemoryMount(mount.mount_path, mount.size_bytes) for mount in request.tmpfs),
        devices=devices,
        cap_add=request.cap_add,
        cap_drop=request.cap_drop,
        rlimits=request.ulimits,
        read_only_root=request.read_only_root,
        cpu_shares=request.cpu_shares,
        cpus=request.cpus,
        memory_reserved_bytes=request.memory_reserved_bytes,
        spec_edits=_spec_edits(edits),
    )


def _file_mounts(files: Path) -> tuple[BindMount, ...]:
    """Writable, as programs expect of /etc/hosts; the files are the attempt's own."""
    return tuple(BindMount(str(files / name), f"/etc/{name}") for name in ("hosts", "resolv.conf", "hostname"))


def file_name(file: File) -> str:
    """Of a file that an attachment brings, in the attempt's folder."""
    return f"attached-{PurePosixPath(file.path).name}"


def _attached_files(files: Path, edits: Edits) -> tuple[BindMount, ...]:
    return tuple(BindMount(str(files / file_name(file)), file.path, read_only=True) for file in edits.files)


def _spec_edits(edits: Edits) -> Callable[[dict[str, object]], dict[str, object]] | None:
    """Variables and files are in the plan already, where the user's own win."""
    rest = replace(edits, env=(), files=())
    return (lambda spec: apply(spec, rest)) if rest != Edits() else None
