"""A test that runs real processes in cgroups of its own leaves none of these behind."""

from __future__ import annotations

import os

from astra_cli.dev import sweep


def own(name: str) -> str:
    """A cgroup that no other run of the tests on this machine has."""
    return f"/astraeus-{name}-{os.getpid()}"


def remove(path: str) -> None:
    """It and all below it, in every hierarchy; what runs in it still is killed."""
    resisting: list[str] = []
    sweep.end_cgroup(path, resisting)
    assert resisting == []
    assert sweep.cgroup_directories(path) == []
