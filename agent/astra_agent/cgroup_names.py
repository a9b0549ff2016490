"""
Where the cgroups of an agent's containers lie, by who makes them: runc itself (`cgroupfs`), or systemd on its behalf,
where each container is a scope in a slice.

A path is absolute in the cgroup hierarchy throughout. With systemd runc wants another form: `slice:prefix:name`.
"""

from __future__ import annotations

import re
from typing import Literal

CgroupDriver = Literal["cgroupfs", "systemd"]

DEFAULT_PARENTS = {"cgroupfs": "/astraeus", "systemd": "astraeus.slice"}
_SCOPE, _SLICE = ".scope", ".slice"
_WORD = r"[A-Za-z0-9_.]+"
_SLICE_NAME = re.compile(rf"{_WORD}(-{_WORD})*{re.escape(_SLICE)}")


def is_parent(driver: CgroupDriver, parent: str) -> bool:
    """Whether containers can lie below *parent*: a path, with systemd the name of a slice."""
    return parent.startswith("/") if driver == "cgroupfs" else _SLICE_NAME.fullmatch(parent) is not None


def of_container(driver: CgroupDriver, parent: str, container: str) -> str:
    """The path of a container's cgroup. With systemd its unit carries the slice's name, as units have one namespace."""
    if driver == "cgroupfs":
        return f"{parent.rstrip('/')}/{container}"
    return f"{_path_of_slice(parent)}/{_stem(parent)}-{container}{_SCOPE}"


def beside(driver: CgroupDriver, parent: str, name: str) -> str:
    """
    The path of a cgroup for processes of the agent's own that outlive it. They have no limits, and so no unit either:
    systemd leaves alone what lies at the top and is none of its own.
    """
    return f"{parent.rstrip('/')}/{name}" if driver == "cgroupfs" else f"/{_stem(parent)}/{name}"


def for_runc(driver: CgroupDriver, path: str) -> str:
    """What a container's spec says to have its cgroup at *path*."""
    if driver == "cgroupfs":
        return path
    slice_path, _, unit = path.rpartition("/")
    prefix, _, name = unit.removesuffix(_SCOPE).partition("-")
    return f"{slice_path.rpartition('/')[2]}:{prefix}:{name}"


def of_runc(text: str) -> str:
    """The path of what a spec says, in either form."""
    words = text.split(":")
    if len(words) != 3:
        return text
    slice_name, prefix, name = words
    return f"{_path_of_slice(slice_name)}/{prefix}-{name}{_SCOPE}"


def _stem(slice_name: str) -> str:
    return slice_name.removesuffix(_SLICE)


def _path_of_slice(slice_name: str) -> str:
    """`a-b.slice` lies in `a.slice`: systemd.slice(5)."""
    words = _stem(slice_name).split("-")
    return "".join(f"/{'-'.join(words[:count])}{_SLICE}" for count in range(1, len(words) + 1))
