"""Edits onto an OCI spec: a new spec, the argument stays as it was."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from astra_agent.attach.edits import Device, Edits, Hook, Mount, Rlimit, Rule
from astra_agent.inventory.order import format_list

Spec = dict[str, Any]

_CAPABILITY_SETS = ("bounding", "effective", "permitted", "inheritable", "ambient")
"""All five: a program of another user than root keeps only what is ambient, which has to be inheritable too."""


def apply(spec: Spec, edits: Edits) -> Spec:
    """
    *spec* with *edits*: idempotent, and `Edits()` changes nothing. What the spec has of the same name, path or kind is
    replaced. Files are not the spec's: whoever writes them adds their mounts.
    """
    changed = copy.deepcopy(spec)
    _environment(changed, edits.env)
    _devices(changed, edits.devices)
    _rules(changed, edits.rules)
    _mounts(changed, edits.mounts)
    _limits(changed, edits.rlimits)
    _capabilities(changed, edits.capabilities)
    _hooks(changed, edits.hooks)
    _groups(changed, edits.groups)
    _shared_memory(changed, edits.shm_bytes)
    _processors(changed, edits)
    return changed


def _inside(spec: Spec, *path: str) -> Spec:
    """The object at *path*, made where it is not there."""
    for name in path:
        if spec.get(name) is None:
            spec[name] = {}
        spec = spec[name]
    return spec


def _list(spec: Spec, *path: str) -> list[Any]:
    parent = _inside(spec, *path[:-1])
    if parent.get(path[-1]) is None:
        parent[path[-1]] = []
    found: list[Any] = parent[path[-1]]
    return found


def _replace(items: list[Any], new: Any, key: str) -> None:
    """In the place of the one with the same *key*, or behind all others."""
    for at, item in enumerate(items):
        if item.get(key) == new[key]:
            items[at] = new
            return
    items.append(new)


def _environment(spec: Spec, env: Sequence[tuple[str, str]]) -> None:
    for name, value in env:
        entries = _list(spec, "process", "env")
        kept = [entry for entry in entries if entry.partition("=")[0] != name]
        place = next((at for at, entry in enumerate(entries) if entry.partition("=")[0] == name), len(kept))
        entries[:] = [*kept[:place], f"{name}={value}", *kept[place:]]


def _devices(spec: Spec, devices: Sequence[Device]) -> None:
    for device in devices:
        user = _inside(spec, "process", "user")
        entry = {
            "path": device.path,
            "type": device.kind,
            "major": device.major,
            "minor": device.minor,
            "fileMode": device.mode,
            "uid": user.get("uid", 0) if device.uid is None else device.uid,
            "gid": user.get("gid", 0) if device.gid is None else device.gid,
        }
        _replace(_list(spec, "linux", "devices"), entry, "path")


def _rules(spec: Spec, rules: Sequence[Rule]) -> None:
    """Behind what is there: the first of those denies everything, and a later rule wins."""
    for rule in rules:
        entry = {"allow": True, "type": rule.kind, "major": rule.major, "minor": rule.minor, "access": rule.access}
        there = _list(spec, "linux", "resources", "devices")
        if entry not in there:
            there.append(entry)


def _mounts(spec: Spec, mounts: Sequence[Mount]) -> None:
    """Parents before what lies in them."""
    for mount in mounts:
        entry = {
            "destination": mount.destination,
            "type": mount.kind,
            "source": mount.source,
            "options": list(mount.options),
        }
        _replace(_list(spec, "mounts"), entry, "destination")
    if mounts:
        spec["mounts"].sort(key=lambda entry: entry["destination"].rstrip("/").count("/"))


def _limits(spec: Spec, limits: Sequence[Rlimit]) -> None:
    for limit in limits:
        entry = {"type": limit.kind, "hard": limit.hard, "soft": limit.soft}
        _replace(_list(spec, "process", "rlimits"), entry, "type")


def _capabilities(spec: Spec, names: Sequence[str]) -> None:
    for name in names:
        for kind in _CAPABILITY_SETS:
            there = _list(spec, "process", "capabilities", kind)
            if name not in there:
                there.append(name)


def _hooks(spec: Spec, hooks: Sequence[Hook]) -> None:
    for hook in hooks:
        entry: Spec = {"path": hook.path, "args": list(hook.args), "env": list(hook.env)}
        if hook.timeout_s is not None:
            entry["timeout"] = hook.timeout_s
        there = _list(spec, "hooks", hook.stage)
        if entry not in there:
            there.append(entry)


def _groups(spec: Spec, groups: Sequence[int]) -> None:
    for group in groups:
        there = _list(spec, "process", "user", "additionalGids")
        if group not in there:
            there.append(group)


def _shared_memory(spec: Spec, size_bytes: int | None) -> None:
    if size_bytes is None:
        return
    for mount in spec.get("mounts") or ():
        if mount["destination"] == "/dev/shm":
            kept = [option for option in mount.get("options") or () if not option.startswith("size=")]
            mount["options"] = [*kept, f"size={size_bytes}"]
            return
    options = ("nosuid", "noexec", "nodev", "mode=1777", f"size={size_bytes}")
    _mounts(spec, (Mount("/dev/shm", "shm", "tmpfs", options),))


def _processors(spec: Spec, edits: Edits) -> None:
    if edits.cpus is not None:
        _inside(spec, "linux", "resources", "cpu")["cpus"] = format_list(edits.cpus)
    if edits.memory_nodes is not None:
        _inside(spec, "linux", "resources", "cpu")["mems"] = format_list(edits.memory_nodes)
