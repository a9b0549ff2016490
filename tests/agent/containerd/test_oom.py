"""What is read out of the kernel's log."""

from __future__ import annotations

from pathlib import Path

from astra_agent.containerd import oom

SCOPE = "/astraeus.slice/astraeus-g-0-a0.scope"


def record(path: str, constraint: str = "CONSTRAINT_MEMCG", memcg: str = "oom_memcg=/astraeus.slice") -> str:
    """As Linux 6.1 gives it, with the next lines of the same kill."""
    return (
        f"6,1021,88402311,-;oom-kill:constraint={constraint},nodemask=(null),cpuset=/,mems_allowed=0,{memcg},"
        f"task_memcg={path},task=python3,pid=912,uid=0\n"
    )


def test_a_kill_is_its_own_cgroups_or_of_one_inside_of_it() -> None:
    assert oom.killed_in([record(SCOPE)], SCOPE)
    assert oom.killed_in([record(f"{SCOPE}/inner")], SCOPE)
    assert oom.killed_in([record(SCOPE, "CONSTRAINT_NONE", "global_oom")], SCOPE)


def test_anothers_kill_is_not() -> None:
    others = (
        "/astraeus.slice",
        "/astraeus.slice/astraeus-g-0-a01.scope",
        "/astraeus.slice/astraeus-g-0-a0.scope2",
        "/",
    )
    assert not oom.killed_in([record(path) for path in others], SCOPE)


def test_what_a_program_writes_into_the_log_is_no_kill() -> None:
    forged = record(SCOPE).replace("6,", "12,", 1)
    assert not oom.killed_in([forged, "", ";", "6,1,1,-;Memory cgroup out of memory: Killed process 912"], SCOPE)


def test_the_log_is_a_file_of_records(tmp_path: Path) -> None:
    log = tmp_path / "kmsg"
    log.write_text(record(SCOPE))
    assert oom.was_told(log, SCOPE)
    assert not oom.was_told(log, "/other")


def test_without_a_log_nothing_was_told(tmp_path: Path) -> None:
    assert not oom.was_told(tmp_path / "none", SCOPE)
