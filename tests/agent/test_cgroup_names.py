"""Where containers' cgroups lie, and how runc is told."""

from __future__ import annotations

import pytest

from astra_agent import cgroup_names
from astra_agent.cgroup_names import CgroupDriver

PLACES = pytest.mark.parametrize(
    ("driver", "parent", "path", "for_runc", "beside"),
    [
        ("cgroupfs", "/astraeus", "/astraeus/g-0-a1", "/astraeus/g-0-a1", "/astraeus/names"),
        ("cgroupfs", "/", "/g-0-a1", "/g-0-a1", "/names"),
        (
            "systemd", "astraeus.slice", "/astraeus.slice/astraeus-g-0-a1.scope",
            "astraeus.slice:astraeus:g-0-a1", "/astraeus/names",
        ),
        (
            "systemd", "astraeus-m2.slice", "/astraeus.slice/astraeus-m2.slice/astraeus-m2-g-0-a1.scope",
            "astraeus-m2.slice:astraeus:m2-g-0-a1", "/astraeus-m2/names",
        ),
    ],
)  # fmt: skip


@PLACES
def test_a_container_has_a_path_and_runc_is_told_so_in_its_own_form(
    driver: CgroupDriver, parent: str, path: str, for_runc: str, beside: str
) -> None:
    assert cgroup_names.of_container(driver, parent, "g-0-a1") == path
    assert cgroup_names.for_runc(driver, path) == for_runc
    assert cgroup_names.of_runc(for_runc) == path
    assert cgroup_names.beside(driver, parent, "names") == beside


@pytest.mark.parametrize(
    ("driver", "parent", "is_one"),
    [
        ("cgroupfs", "/astraeus", True),
        ("cgroupfs", "astraeus.slice", False),
        ("systemd", "astraeus.slice", True),
        ("systemd", "a-b_c.d.slice", True),
        ("systemd", "/astraeus", False),
        ("systemd", "/astraeus.slice", False),
        ("systemd", "astraeus", False),
        ("systemd", "-.slice", False),
        ("systemd", ".slice", False),
        ("systemd", "a--b.slice", False),
        ("systemd", "a-.slice", False),
        ("systemd", "a:b.slice", False),
    ],
)
def test_containers_lie_below_a_path_and_with_systemd_in_a_slice(
    driver: CgroupDriver, parent: str, *, is_one: bool
) -> None:
    assert cgroup_names.is_parent(driver, parent) == is_one
