"""
Every form of a command hears a stop, whoever orders it: its handler runs and has its grace time, nothing of the attempt
is left before the next one starts, and the code shown is the program's own (H05).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from astra_agent.containerd import proc
from tests.containers.dev_cluster import kill
from tests.containers.gangs import Gangs, gangs_on_a_cluster
from tests.fakes.eventually import eventually
from tests.runs_over_http import DRIVE, Diary, check_nothing_started_twice

PYTHON = str(Path(sys.executable).resolve())
PROGRAM = f"{PYTHON} /{DRIVE}/slow_stop.py"
GRACE_S = 8
TIME_LIMIT_S = 6
ORPHANS = 1000
ZOMBIES = 10
"""At any time there are fewer."""
LIMIT = "A gang member exceeded its time limit"

FORMS = {
    "argument list": (PYTHON, f"/{DRIVE}/slow_stop.py"),
    "shell": ("bash", "-c", f"{PROGRAM}; echo done"),
    "exec": ("bash", "-c", f"exec {PROGRAM}"),
    "job control": ("bash", f"/{DRIVE}/job-control"),
    "pipeline": ("sh", "-c", f"{PROGRAM} | cat"),
}


@pytest.fixture(scope="module")
def gangs() -> Iterator[Gangs]:
    with gangs_on_a_cluster(
        "--machines", "2", "--set", "backoff_first_s=0", "--set", f"stop_grace_s={GRACE_S}"
    ) as gangs:
        here = Path(__file__).parent
        (gangs.drive / "slow_stop.py").write_bytes((here / "slow_stop.py").read_bytes())
        (gangs.drive / "job-control").write_text(f"set -m\n{PROGRAM}\necho ended with $?\n")
        yield gangs


@pytest.fixture(autouse=True)
def _nothing_runs_on(gangs: Gangs) -> Iterator[None]:
    yield
    gangs.stop_all()


def begin(gangs: Gangs, run: str, form: str, checkpoint_s: float = 1, **template: Any) -> Diary:
    program, *args = FORMS[form]
    env = {"DIARY": f"/{DRIVE}/{run}", "CHECKPOINT_SECONDS": f"{checkpoint_s:g}"}
    diary = gangs.submit(run, machines=2, command=program, args=args, env=env, **template)
    gangs.running(run, diary)
    return diary


def codes(gangs: Gangs, run: str, attempt: int) -> list[int | None]:
    return [item["code"] for item in gangs.ranks(run, attempt)["items"]]


@pytest.mark.parametrize("form", FORMS)
def test_the_user_stops_it(gangs: Gangs, form: str) -> None:
    run = f"stop-{form}".replace(" ", "-")
    diary = begin(gangs, run, form)
    gangs.stop(run)
    gangs.ended(run, "Stopped")
    assert diary.ranks("asked", 0) == diary.ranks("end", 0) == [0, 1]
    assert codes(gangs, run, 0) == [3, 3]
    check_nothing_started_twice(gangs, run, diary)
    assert gangs.workers_left() == []


@pytest.mark.parametrize("form", FORMS)
def test_the_gang_restarts(gangs: Gangs, form: str) -> None:
    run = f"restart-{form}".replace(" ", "-")
    diary = begin(gangs, run, form)
    kill([gangs.program(run, 1, 0)])
    gangs.running(run, diary, attempt=1)
    assert diary.ranks("asked", 0) == diary.ranks("end", 0) == [0]
    assert codes(gangs, run, 0)[0] == 3
    check_nothing_started_twice(gangs, run, diary)


@pytest.mark.parametrize("form", FORMS)
def test_its_time_is_over(gangs: Gangs, form: str) -> None:
    run = f"limit-{form}".replace(" ", "-")
    diary = begin(gangs, run, form, time_limit_seconds=TIME_LIMIT_S)
    assert gangs.ended(run, "Failed")["reason"] == LIMIT
    assert diary.ranks("asked", 0) == diary.ranks("end", 0) == [0, 1]
    assert codes(gangs, run, 0) == [3, 3]
    check_nothing_started_twice(gangs, run, diary)
    assert gangs.workers_left() == []


def test_a_checkpoint_has_nearly_all_of_the_grace_time(gangs: Gangs) -> None:
    diary = begin(gangs, "long-stop", "shell", checkpoint_s=GRACE_S - 3)
    gangs.stop("long-stop")
    gangs.ended("long-stop", "Stopped")
    assert diary.ranks("asked", 0) == diary.ranks("end", 0) == [0, 1]
    assert codes(gangs, "long-stop", 0) == [3, 3]


def test_a_checkpoint_has_as_long_before_a_restart(gangs: Gangs) -> None:
    diary = begin(gangs, "long-restart", "shell", checkpoint_s=GRACE_S - 3)
    kill([gangs.program("long-restart", 1, 0)])
    gangs.running("long-restart", diary, attempt=1)
    assert diary.ranks("asked", 0) == diary.ranks("end", 0) == [0]
    assert codes(gangs, "long-restart", 0)[0] == 3
    check_nothing_started_twice(gangs, "long-restart", diary)


def test_what_does_not_end_within_its_grace_time_is_killed(gangs: Gangs) -> None:
    diary = begin(gangs, "slow", "argument list", checkpoint_s=1000)
    gangs.stop("slow")
    gangs.ended("slow", "Stopped")
    assert (diary.ranks("asked", 0), diary.ranks("end", 0)) == ([0, 1], [])
    for item in gangs.ranks("slow")["items"]:
        assert item["code"] == 137
        assert f"it did not end within {GRACE_S} s of SIGTERM" in item["detail"]
    assert gangs.workers_left() == []


def test_orphans_are_reaped(gangs: Gangs) -> None:
    wait, then = 'until [ -e "$DIARY/go" ]; do sleep 0.1; done', 'touch "$DIARY/forked"; exec sleep 1000'
    forks = f"{wait}; i=0; while [ $i -lt {ORPHANS} ]; do (sleep 0.05 &); i=$((i+1)); done; {then}"
    diary = gangs.submit("forks", machines=1, command="sh", args=["-c", forks])
    gangs.until("forks", lambda status: status["phase"] == "Running", "forks runs")
    cgroup = gangs.cgroup("forks", 0, 0)
    cgroups = proc.Cgroups.of_this_machine()
    init = next(pid for pid in cgroups.processes(cgroup) if proc.is_init(pid))
    unreaped = [0]

    def all_forked() -> bool:
        forked = (diary.folder / "forked").exists()
        unreaped.append(len(zombies(init)))
        return forked

    (diary.folder / "go").touch()
    eventually(all_forked, "all were forked")
    assert max(unreaped) < ZOMBIES
    eventually(lambda: len(cgroups.processes(cgroup)) == 2, "init and the program are left")
    eventually(lambda: zombies(init) == [], "no zombie is left")


def zombies(parent: int) -> list[int]:
    """Its children that have ended and that it has not waited for; a cgroup does not list them."""
    found = [(int(path.name), proc.status(int(path.name))) for path in Path("/proc").glob("[0-9]*")]
    return [pid for pid, fields in found if fields.get("PPid") == str(parent) and fields["State"].startswith("Z")]
