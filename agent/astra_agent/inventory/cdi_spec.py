"""
The Container Device Interface: what its files say, as records. Pure text in, records out.

Versions 0.3 to 1.1 of the format; a field that no version knows makes a file invalid, as its specification has it.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Annotated, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

_SUPPORTED = ((0, 3), (1, 1))
_DRIVER = re.compile(r"\.so\.([0-9]{3,4}\.[0-9]+(?:\.[0-9]+)?)$")


@dataclass(frozen=True, slots=True)
class CdiNode:
    """*major*, *minor* and *kind* None: as on the machine. *mode* None: as on the machine."""

    path: str
    host_path: str
    kind: str | None
    major: int | None
    minor: int | None
    mode: int | None
    permissions: str
    uid: int | None
    gid: int | None


@dataclass(frozen=True, slots=True)
class CdiMount:
    host_path: str
    container_path: str
    kind: str
    options: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CdiHook:
    stage: str
    path: str
    args: tuple[str, ...]
    env: tuple[str, ...]
    timeout_s: int | None


@dataclass(frozen=True, slots=True)
class CdiEdits:
    env: tuple[tuple[str, str], ...] = ()
    nodes: tuple[CdiNode, ...] = ()
    mounts: tuple[CdiMount, ...] = ()
    hooks: tuple[CdiHook, ...] = ()
    groups: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class CdiSpec:
    """
    One file. *devices* by name; *common* applies once for any of them.

    Attributes:
        drivers: Versions of the NVIDIA driver that its mounts' names speak of.
        lacking: What it mounts, or makes nodes of, that the machine does not have.
    """

    file: str
    kind: str
    devices: tuple[tuple[str, CdiEdits], ...]
    common: CdiEdits
    drivers: tuple[str, ...] = ()
    lacking: tuple[str, ...] = ()


class _Json(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


class _Node(_Json):
    path: Annotated[str, Field(pattern="^/")]
    host_path: str = Field(default="", alias="hostPath")
    type: Literal["b", "c", "u", "p", ""] = ""
    major: int | None = None
    minor: int | None = None
    file_mode: int | None = Field(default=None, alias="fileMode")
    permissions: Annotated[str, Field(pattern="^(none|[rwm]*)$")] = ""
    uid: int | None = None
    gid: int | None = None

    def value(self) -> CdiNode:
        return CdiNode(
            self.path, self.host_path or self.path, self.type or None, self.major, self.minor, self.file_mode,
            self.permissions or "rwm", self.uid, self.gid,
        )  # fmt: skip


class _Mount(_Json):
    host_path: str = Field(alias="hostPath")
    container_path: str = Field(alias="containerPath")
    type: str = ""
    options: tuple[str, ...] = ()

    def value(self) -> CdiMount:
        return CdiMount(self.host_path, self.container_path, self.type or "bind", self.options or ("ro", "rbind"))


class _Hook(_Json):
    hook_name: Literal[
        "prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop"
    ] = Field(alias="hookName")  # fmt: skip
    path: str
    args: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    timeout: int | None = None

    def value(self) -> CdiHook:
        return CdiHook(self.hook_name, self.path, self.args, self.env, self.timeout)


class _Edits(_Json):
    env: tuple[Annotated[str, Field(pattern="^[^=]+=")], ...] = ()
    device_nodes: tuple[_Node, ...] = Field(default=(), alias="deviceNodes")
    mounts: tuple[_Mount, ...] = ()
    hooks: tuple[_Hook, ...] = ()
    additional_gids: tuple[int, ...] = Field(default=(), alias="additionalGIDs")
    intel_rdt: dict[str, object] | None = Field(default=None, alias="intelRdt")
    net_devices: tuple[dict[str, object], ...] = Field(default=(), alias="netDevices")

    def value(self) -> CdiEdits:
        return CdiEdits(
            env=tuple((name, value) for name, _, value in (entry.partition("=") for entry in self.env)),
            nodes=tuple(node.value() for node in self.device_nodes),
            mounts=tuple(mount.value() for mount in self.mounts),
            hooks=tuple(hook.value() for hook in self.hooks),
            groups=tuple(group for group in self.additional_gids if group),
        )


class _Device(_Json):
    name: str
    annotations: dict[str, str] = {}
    container_edits: _Edits = Field(alias="containerEdits")


class _Spec(_Json):
    cdi_version: str = Field(alias="cdiVersion")
    kind: Annotated[str, Field(pattern="^[A-Za-z0-9._-]+/[A-Za-z0-9._-]+$")]
    annotations: dict[str, str] = {}
    devices: tuple[_Device, ...]
    container_edits: _Edits = Field(default=_Edits(), alias="containerEdits")


class CdiError(Exception):
    """The message is what is wrong with the file, without its name."""


def parse(file: str, text: str) -> CdiSpec:
    """Raises: CdiError."""
    try:
        document = json.loads(text) if file.endswith(".json") else yaml.safe_load(text)
    except (ValueError, yaml.YAMLError, RecursionError) as error:
        raise CdiError(f"it is neither YAML nor JSON: {str(error).splitlines()[0]}") from error
    try:
        spec = _Spec.model_validate(document)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(step) for step in first["loc"]) or "the top"
        raise CdiError(f"it is wrong at {where}: {first['msg']}") from error
    _check_version(spec.cdi_version)
    return CdiSpec(
        file=file,
        kind=spec.kind,
        devices=tuple((device.name, device.container_edits.value()) for device in spec.devices),
        common=spec.container_edits.value(),
    )


def edits_of(spec: CdiSpec) -> tuple[CdiEdits, ...]:
    return (spec.common, *(edits for _, edits in spec.devices))


def driver_versions(spec: CdiSpec) -> tuple[str, ...]:
    """Versions in the names of driver libraries that the file mounts: `libcuda.so.570.158.01`."""
    paths = (mount.host_path for edits in edits_of(spec) for mount in edits.mounts)
    return tuple(sorted({match[1] for path in paths if (match := _DRIVER.search(path))}))


def _check_version(text: str) -> None:
    match = re.fullmatch(r"v?([0-9]{1,3})\.([0-9]{1,3})(?:\.[0-9]{1,3})?", text)
    lowest, highest = _SUPPORTED
    if match is None or not lowest <= (int(match[1]), int(match[2])) <= highest:
        raise CdiError(f"its format is version {text!r}; 0.3 to 1.1 are understood")
