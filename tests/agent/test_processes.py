"""Why a process does not die, read from a small /proc."""

from __future__ import annotations

from pathlib import Path

import pytest

from astra_agent import processes


def a_process(proc: Path, pid: int, state: str, groups: str) -> None:
    (proc / str(pid)).mkdir(parents=True)
    (proc / str(pid) / "stat").write_text(f"{pid} (a (strange) name) {state} 1 {pid} 0")
    (proc / str(pid) / "cgroup").write_text(groups)


V1 = "6:freezer:/astraeus/llama-1-a0\n4:memory:/astraeus/llama-1-a0\n0::/\n"
V2 = "0::/astraeus/llama-1-a0\n"


@pytest.mark.parametrize(
    ("state", "groups", "frozen", "says"),
    [
        ("D", V2, None, " (waiting in the kernel)"),
        ("R", V2, None, ""),
        ("S", V1, ("freezer/astraeus/llama-1-a0/freezer.state", "FROZEN\n"), " (its cgroup is frozen)"),
        ("D", V1, ("freezer/astraeus/llama-1-a0/freezer.state", "THAWED\n"), " (waiting in the kernel)"),
        ("S", V2, ("astraeus/llama-1-a0/cgroup.events", "populated 1\nfrozen 1\n"), " (its cgroup is frozen)"),
        ("S", V2, ("unified/astraeus/llama-1-a0/cgroup.events", "populated 1\nfrozen 0\n"), ""),
    ],
)
def test_the_sentence_says_why(
    tmp_path: Path, state: str, groups: str, frozen: tuple[str, str] | None, says: str
) -> None:
    a_process(tmp_path / "proc", 4711, state, groups)
    if frozen is not None:
        path = tmp_path / "cgroup" / frozen[0]
        path.parent.mkdir(parents=True)
        path.write_text(frozen[1])
    sentence = processes.undying((4711,), "llama-1", tmp_path / "proc", tmp_path / "cgroup")
    assert sentence == f"process 4711 of llama-1 does not die{says}"


def test_of_several_the_one_with_a_reason_is_named(tmp_path: Path) -> None:
    a_process(tmp_path, 1, "S", V2)
    a_process(tmp_path, 2, "D", V2)
    assert (
        processes.undying((1, 2, 3), "w", tmp_path, tmp_path) == "process 2 of w does not die (waiting in the kernel)"
    )


def test_a_process_that_is_gone_can_not_be_looked_at(tmp_path: Path) -> None:
    assert processes.is_in_network(4711, tmp_path, tmp_path) is None
