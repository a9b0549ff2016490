"""What a container uses, from the files of its cgroup. Reads are blocking and take some 0.2 ms."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from astra_agent.containerd.proc import Cgroups
from astra_agent.runtime import Usage

_NS_PER_US = 1000
_NS_PER_TICK = 1_000_000_000 // os.sysconf("SC_CLK_TCK")


def read_usage(cgroups: Cgroups, path: str) -> Usage | None:
    """None when the cgroup is not there."""
    folders = cgroups.directories(path)
    if not folders:
        return None
    return _version_2(folders[0]) if cgroups.version == 2 else _version_1(folders)


def _version_2(folder: Path) -> Usage:
    cpu, memory = _pairs([folder], "cpu.stat"), _pairs([folder], "memory.stat")
    return Usage(
        cpu_user_ns=cpu.get("user_usec", 0) * _NS_PER_US,
        cpu_system_ns=cpu.get("system_usec", 0) * _NS_PER_US,
        throttled_periods=cpu.get("nr_throttled", 0),
        throttled_ns=cpu.get("throttled_usec", 0) * _NS_PER_US,
        memory_bytes=_number([folder], "memory.current"),
        memory_rss_bytes=memory.get("anon", 0),
        memory_cache_bytes=memory.get("file", 0),
        memory_peak_bytes=_number([folder], "memory.peak"),
        memory_kernel_bytes=memory.get("kernel", 0),
        memory_swap_bytes=_number([folder], "memory.swap.current"),
    )


def _version_1(folders: list[Path]) -> Usage:
    spent, cpu, memory = (_pairs(folders, name) for name in ("cpuacct.stat", "cpu.stat", "memory.stat"))
    return Usage(
        cpu_user_ns=spent.get("user", 0) * _NS_PER_TICK,
        cpu_system_ns=spent.get("system", 0) * _NS_PER_TICK,
        throttled_periods=cpu.get("nr_throttled", 0),
        throttled_ns=cpu.get("throttled_time", 0),
        memory_bytes=_number(folders, "memory.usage_in_bytes"),
        memory_rss_bytes=memory.get("total_rss", memory.get("rss", 0)),
        memory_cache_bytes=memory.get("total_cache", memory.get("cache", 0)),
        memory_peak_bytes=_number(folders, "memory.max_usage_in_bytes"),
        memory_kernel_bytes=_number(folders, "memory.kmem.usage_in_bytes"),
        memory_swap_bytes=memory.get("total_swap", memory.get("swap", 0)),
    )


def _pairs(folders: list[Path], name: str) -> Mapping[str, int]:
    found: dict[str, int] = {}
    for line in _text(folders, name).splitlines():
        key, _, value = line.partition(" ")
        with suppress(ValueError):
            found[key] = int(value)
    return found


def _number(folders: list[Path], name: str) -> int:
    text = _text(folders, name).strip()
    return int(text) if text.isdigit() else 0


def _text(folders: list[Path], name: str) -> str:
    """Of the first folder that has it: on version 1 each controller has its own."""
    return next(_texts(folders, name), "")


def _texts(folders: list[Path], name: str) -> Iterator[str]:
    for folder in folders:
        with suppress(OSError):
            yield (folder / name).read_text()
