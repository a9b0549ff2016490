"""Edits as text, to be read and compared."""

from __future__ import annotations

from astra_agent.attach.edits import UNLIMITED, Edits
from astra_agent.inventory.order import format_list


def text_of(edits: Edits) -> str:
    """One line for each thing; files with their content."""
    lines = [f"env       {name}={value}" for name, value in edits.env]
    lines += [f"device    {d.path} {d.kind} {d.major}:{d.minor} {d.mode:04o}" for d in edits.devices]
    lines += [f"rule      {rule.kind} {rule.major}:{rule.minor} {rule.access}" for rule in edits.rules]
    lines += [f"mount     {mount.source} -> {mount.destination} {','.join(mount.options)}" for mount in edits.mounts]
    lines += [f"rlimit    {limit.kind} {_limit(limit.soft)} {_limit(limit.hard)}" for limit in edits.rlimits]
    lines += [f"cap       {name}" for name in edits.capabilities]
    lines += [f"hook      {hook.stage} {hook.path} {' '.join(hook.args)}" for hook in edits.hooks]
    lines += [f"group     {group}" for group in edits.groups]
    if edits.shm_bytes is not None:
        lines.append(f"shm       {edits.shm_bytes}")
    if edits.cpus is not None:
        lines.append(f"cpus      {format_list(edits.cpus)}")
    if edits.memory_nodes is not None:
        lines.append(f"mems      {format_list(edits.memory_nodes)}")
    for file in edits.files:
        lines += [f"file      {file.path}", *(f"          {line}" for line in file.text.splitlines())]
    return "\n".join(lines) + "\n"


def _limit(value: int) -> str:
    return "unlimited" if value == UNLIMITED else str(value)
