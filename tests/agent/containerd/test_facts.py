"""What containerd can't give is found out beforehand, and said with its fix."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from astra_agent.containerd import facts
from astra_agent.containerd.facts import Limits
from astra_agent.errors import Unavailable


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


def test_a_container_may_not_have_all_processes_of_the_machine() -> None:
    most = int(Path("/proc/sys/kernel/pid_max").read_text())
    assert 0 < facts.processes_for_one_container() < most


@pytest.mark.parametrize(
    ("text", "new_enough"),
    [("1.6.20~ds1", True), ("v2.1.9", True), ("1.7.24", True), ("1.5.9", False), ("1.4.13~ds1", False), ("dev", True)],
)
def test_versions_are_read_however_they_are_written(text: str, new_enough: bool) -> None:
    assert facts.is_new_enough(text) == new_enough
