"""A test that runs real processes in cgroups of its own leaves none of these behind."""

from __future__ import annotations

import os
from contextlib import suppress

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


def remove(path: str) -> None:
    """It and all below it, in every hierarchy; what runs in it still is killed."""
    resisting: list[str] = []
    sweep.end_cgroup(path, resisting)
    assert resisting == []
    assert sweep.cgroup_directories(path) == []
