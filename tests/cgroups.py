"""A test that runs real processes in cgroups of its own leaves none of these behind."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress

from astra_agent.containerd import proc
from astra_cli.dev import sweep


def own(name: str) -> str:
    """A cgroup that no other run of the tests on this machine has."""
    return f"/astraeus-{name}-{os.getpid()}"


def processes(path: str, part: str = "", end: str = "") -> list[int]:
    """
    IDs of those in cgroups below *path* with *part* in their name, and *end* at its end, in every hierarchy. A cgroup
    may be removed while this looks: it has none then.
    """
    found: set[int] = set()
    for directory in sweep.cgroup_directories(path):
        if part in directory.name and directory.name.endswith(end):
            with suppress(OSError):
                found.update(map(int, (directory / "cgroup.procs").read_text().split()))
    return sorted(found)


def oldest_first(pids: Iterable[int]) -> list[int]:
    """
    Those in containers, in the order in which each container has them: its first process and the program come first,
    however often the machine's own numbers begin anew.
    """
    inside = {pid: proc.status(pid).get("NSpid", "").split()[1:2] for pid in pids}
    return sorted((pid for pid in inside if inside[pid]), key=lambda pid: int(inside[pid][0]))


def remove(path: str) -> None:
    """It and all below it, in every hierarchy; what runs in it still is killed."""
    resisting: list[str] = []
    sweep.end_cgroup(path, resisting)
    assert resisting == []
    assert sweep.cgroup_directories(path) == []
