"""
What an operator sets in the block `plugin "astra-nomad-driver"`, and what a job file sets in a task's `config` block.
These models are the schema that Nomad checks, the decoding, and the page `docs/nomad-driver.md`.
"""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import Field, field_validator

from astra_driver.hcl import Named, Settings

# What containers have anyway, see `astra_agent/containerd/spec.py`.
CAPABILITIES = (
    "AUDIT_WRITE",
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "MKNOD",
    "NET_BIND_SERVICE",
    "NET_RAW",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_CHROOT",
)

_UNITS = {"": 1, "b": 1}
for _number, _letter in enumerate("kmgt", start=1):
    _UNITS |= {_letter: 1024**_number, f"{_letter}b": 1024**_number, f"{_letter}ib": 1024**_number}


def size_bytes(text: str) -> int:
    """Of `64MiB`, `64m`, `67108864`. Raises: ValueError that says what would be right."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*", text)
    if match is None or match[2].lower() not in _UNITS:
        raise ValueError("expected a size such as 512MiB, 16GiB or a number of bytes")
    return int(float(match[1]) * _UNITS[match[2].lower()])


def capability(name: str) -> str:
    """`IPC_LOCK` of whatever spelling."""
    return name.upper().removeprefix("CAP_")


class PluginSettings(Settings):
    socket: str = Field("/run/astraeus/agent.sock", description="Unix socket of this machine's agent.")
    allow_mounts: tuple[str, ...] = Field(
        (),
        description="Folders of the machine that tasks may mount from with `mount`, with all below them; `/` allows "
        "all. Nomad's own volumes need no leave.",
    )
    allow_devices: tuple[str, ...] = Field(
        (), description="Device nodes, or folders of them, that tasks may ask for with `device`."
    )
    allow_caps: tuple[str, ...] = Field(
        (*CAPABILITIES, "IPC_LOCK", "SYS_NICE"),
        description="Capabilities that tasks may have, by default or with `cap_add`; `ALL` allows all.",
    )


class Auth(Settings):
    username: str = Field(description="User at the image's registry.")
    password: str = Field(description="Its password or token. Better than here it is kept in a file on the machine.")


class Mount(Settings):
    source: str = Field(
        description="Path on the machine, below one of the operator's `allow_mounts`; a relative one is in the task's "
        "own folder, such as `local/model`."
    )
    target: str = Field(description="Absolute path in the container.")
    readonly: bool = Field(False, description="Whether it can't be written.")

    @field_validator("target")
    @classmethod
    def _is_absolute(cls, target: str) -> str:
        return _absolute(target)


class Tmpfs(Settings):
    target: str = Field(description="Absolute path in the container.")
    size: str = Field("", description="`1GiB`; without it, half of the machine's memory.")

    @field_validator("target")
    @classmethod
    def _is_absolute(cls, target: str) -> str:
        return _absolute(target)

    @field_validator("size")
    @classmethod
    def _is_size(cls, size: str) -> str:
        return _size(size)


class DeviceNode(Settings):
    host_path: str = Field(description="Device node on the machine, one of the operator's `allow_devices`.")
    container_path: str = Field("", description="Where it is in the container; the same path without it.")
    permissions: str = Field("rwm", description="Any of `r`, `w` and `m` (make nodes).")

    @field_validator("permissions")
    @classmethod
    def _are_permissions(cls, permissions: str) -> str:
        if not permissions or set(permissions) - set("rwm"):
            raise ValueError('expected letters of "rwm"')
        return permissions


class TaskSettings(Settings):
    image: str = Field(
        description="`host` (this machine's own root file system, copy-on-write), an image reference, or "
        "`oci-archive:/path.tar`."
    )
    command: str = Field("", description="The program, in the place of the image's own entrypoint and command.")
    args: tuple[str, ...] = Field(
        (), description="Its arguments; without `command`, those of the image's entrypoint in the place of its command."
    )
    auth: Auth | None = Field(None, description="Credentials for the image's registry.")
    hostname: str = Field("", description="Of the container; else made of the task's name and the allocation's ID.")
    working_dir: str = Field("", description="Absolute path; else the image's.")
    mounts: Annotated[tuple[Mount, ...], Named("mount")] = Field((), description="A path of the machine.")
    tmpfs: tuple[Tmpfs, ...] = Field((), description="An empty file system in memory, within the task's limit.")
    devices: Annotated[tuple[DeviceNode, ...], Named("device")] = Field((), description="A device node of the machine.")
    cap_add: tuple[str, ...] = Field((), description="Capabilities besides the usual ones: `IPC_LOCK`; `ALL`.")
    cap_drop: tuple[str, ...] = Field((), description="Capabilities taken away; `ALL` first, then `cap_add`.")
    ulimit: dict[str, str] = Field({}, description='`nofile = 65536`, `memlock = "-1"` (unlimited), or `soft:hard`.')
    shm_size: str = Field("", description="Of /dev/shm: `16GiB`; else half of the task's memory.")
    readonly_rootfs: bool = Field(False, description="The image can't be written; `/tmp` and others are for `tmpfs`.")
    cpu_hard_limit: bool = Field(
        False, description="Never more processor than the task's `cpu` or `cores`; else only when others want it."
    )
    extra_hosts: dict[str, str] = Field({}, description='Names and addresses for /etc/hosts: `db = "10.0.0.7"`.')
    reservation: str = Field(
        "", description="Written by the gang coordinator into its own jobs, in the place of all but `image`."
    )

    @field_validator("image")
    @classmethod
    def _is_named(cls, image: str) -> str:
        if not image.strip():
            raise ValueError('expected "host", an image reference or oci-archive:/path.tar')
        return image

    @field_validator("shm_size")
    @classmethod
    def _is_size(cls, size: str) -> str:
        return _size(size)

    @field_validator("working_dir")
    @classmethod
    def _is_absolute(cls, path: str) -> str:
        return _absolute(path) if path else path

    @field_validator("ulimit")
    @classmethod
    def _are_limits(cls, limits: dict[str, str]) -> dict[str, str]:
        for name, text in limits.items():
            ulimit(name, text)
        return limits


_ULIMITS = (
    *("as", "core", "cpu", "data", "fsize", "locks", "memlock", "msgqueue", "nice", "nofile", "nproc"),
    *("rss", "rtprio", "rttime", "sigpending", "stack"),
)


def ulimit(name: str, text: str) -> tuple[int, int]:
    """Soft and hard limit, -1 for unlimited. Raises: ValueError that says what would be right."""
    if name not in _ULIMITS:
        raise ValueError(f"there is no limit {name}; there are: {', '.join(_ULIMITS)}")
    soft, colon, hard = text.partition(":")
    try:
        limits = _limit(soft), _limit(hard if colon else soft)
    except ValueError:
        raise ValueError(f'{name} is "{text}"; expected a number, -1 or unlimited, or soft:hard') from None
    if limits[1] != -1 and not 0 <= limits[0] <= limits[1]:
        raise ValueError(f'{name} is "{text}"; the soft limit is above the hard one')
    return limits


def _limit(text: str) -> int:
    value = -1 if text.strip() == "unlimited" else int(text)
    if value < -1:
        raise ValueError(text)
    return value


def _absolute(path: str) -> str:
    if not path.startswith("/"):
        raise ValueError("expected an absolute path")
    return path


def _size(text: str) -> str:
    if text:
        size_bytes(text)
    return text
