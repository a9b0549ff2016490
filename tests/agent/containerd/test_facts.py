"""What containerd can't give is found out beforehand, and said with its fix."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from astra_agent.containerd import facts
from astra_agent.containerd.facts import Limits
from astra_agent.errors import HostFault, Unavailable


def test_one_that_can_give_all_has_no_findings() -> None:
    assert list(facts.findings(Limits(open_files=facts.WANTED_OPEN_FILES, memlock_unlimited=True))) == []


def test_every_finding_says_what_to_set() -> None:
    few_files, no_memlock = facts.findings(Limits(open_files=1024, memlock_unlimited=False))
    assert "at most 1024 open files" in few_files
    assert "LimitNOFILE=1048576" in few_files
    assert "LimitMEMLOCK=infinity" in no_memlock


def test_limits_are_those_of_the_process_that_listens(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        listener.listen()
        limits = facts.limits_of(tmp_path / "socket")
    assert 0 < limits.open_files <= facts.WANTED_OPEN_FILES


def test_nobody_who_listens_is_unavailable(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="does not answer"):
        facts.limits_of(tmp_path / "socket")


def test_systemd_makes_cgroups_only_where_it_runs_the_machine_and_on_version_2(tmp_path: Path) -> None:
    facts.check_systemd(2, tmp_path)
    with pytest.raises(HostFault, match=r'systemd does not run this machine .*; set cgroup_driver = "cgroupfs"'):
        facts.check_systemd(2, tmp_path / "none")
    with pytest.raises(HostFault, match="needs cgroup version 2, and this machine has version 1"):
        facts.check_systemd(1, tmp_path)


def test_a_device_that_systemd_would_forget_is_a_finding(tmp_path: Path) -> None:
    (tmp_path / "char").mkdir()
    assert list(facts.findings_of_systemd(tmp_path)) == []
    (tmp_path / "nvidia0").symlink_to("/dev/null")
    (tmp_path / "nvidia-caps").mkdir()
    (found,) = facts.findings_of_systemd(tmp_path)
    assert f"{tmp_path}/char/1:3 is not there: workers lose {tmp_path}/nvidia0" in found
    assert found.endswith("run nvidia-ctk system create-dev-char-symlinks --create-all")
    (tmp_path / "char" / "1:3").symlink_to("/dev/null")
    assert list(facts.findings_of_systemd(tmp_path)) == []


def test_a_container_may_not_have_all_processes_of_the_machine() -> None:
    most = int(Path("/proc/sys/kernel/pid_max").read_text())
    assert 0 < facts.processes_for_one_container() < most


@pytest.mark.parametrize(
    ("text", "new_enough"),
    [("1.6.20~ds1", True), ("v2.1.9", True), ("1.7.24", True), ("1.5.9", False), ("1.4.13~ds1", False), ("dev", True)],
)
def test_versions_are_read_however_they_are_written(text: str, new_enough: bool) -> None:
    assert facts.is_new_enough(text) == new_enough
