"""Processes and cgroups as the kernel shows them, of both versions."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from astra_agent.containerd import proc
from astra_agent.containerd.proc import Cgroups
from tests.fakes.eventually import until


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


V1 = {
    "memory/cgroup.procs": "1\n",
    "memory/astraeus/s-a1/cgroup.procs": "11\n12\n",
    "memory/astraeus/s-a1/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n",
    "pids/cgroup.procs": "1\n",
    "pids/astraeus/s-a1/cgroup.procs": "11\n13\n",
    "unified/cgroup.procs": "1\n",
    "unified/cgroup.controllers": "",
}
V2 = {
    "cgroup.controllers": "cpu memory pids\n",
    "cgroup.procs": "1\n",
    "astraeus/s-a1/cgroup.procs": "11\n",
    "astraeus/s-a1/memory.events": "low 0\nmax 20\noom 1\noom_kill 1\noom_group_kill 0\n",
}


def test_version_1_has_a_directory_for_each_hierarchy(tmp_path: Path) -> None:
    cgroups = Cgroups.of_this_machine(tree(tmp_path, V1))
    assert cgroups.version == 1
    assert cgroups.processes("/astraeus/s-a1") == [11, 12, 13]
    assert cgroups.out_of_memory_kills("/astraeus/s-a1") == 2


def test_version_2_has_one(tmp_path: Path) -> None:
    cgroups = Cgroups.of_this_machine(tree(tmp_path, V2))
    assert cgroups.version == 2
    assert cgroups.processes("/astraeus/s-a1") == [11]
    assert cgroups.out_of_memory_kills("/astraeus/s-a1") == 1


@pytest.mark.parametrize("files", [V1, V2])
def test_a_cgroup_that_is_gone_has_nothing(tmp_path: Path, files: dict[str, str]) -> None:
    cgroups = Cgroups.of_this_machine(tree(tmp_path, files))
    assert cgroups.processes("/astraeus/s-a10") == []
    assert cgroups.out_of_memory_kills("/astraeus/s-a10") == 0
    cgroups.remove("/astraeus/s-a10")


@pytest.fixture
def sleeper() -> Iterator[int]:
    process = subprocess.Popen(["sleep", "1000"])
    yield process.pid
    process.kill()
    process.wait()


def own_cgroup() -> str:
    return Path("/proc/self/cgroup").read_text().splitlines()[0].split(":", 2)[2]


def test_a_signal_reaches_a_process_of_the_cgroup(sleeper: int) -> None:
    proc.send(sleeper, signal.SIGKILL, own_cgroup())
    _, status = os.waitpid(sleeper, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL


def test_a_signal_does_not_reach_a_process_of_another_cgroup(sleeper: int) -> None:
    proc.send(sleeper, signal.SIGKILL, f"{own_cgroup()}-another")
    assert os.waitpid(sleeper, os.WNOHANG) == (0, 0)


def test_nobody_is_missed() -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    proc.send(gone.pid, signal.SIGKILL, "/")
    proc.queue(gone.pid, signal.SIGKILL, 0)
    assert proc.status(gone.pid) == {}
    assert proc.process(gone.pid) is None
    assert proc.session(gone.pid) == 0
    assert not proc.is_init(gone.pid)
    assert not proc.runs(gone.pid, "true")


async def test_what_runs_is_known_by_its_first_word(sleeper: int) -> None:
    await until(lambda: proc.runs(sleeper, "sleep"))
    assert not proc.runs(sleeper, "sle")
    assert not proc.is_init(sleeper), "it is in no namespace of its own"
