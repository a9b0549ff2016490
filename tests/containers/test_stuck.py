"""
A worker that does not die of SIGKILL: its machine is out of use with the sentence that says why, the gang goes on
elsewhere, and the machine comes back by itself once the process is gone (H11).
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path

import pytest

from astra_agent.config import AgentConfig
from tests.containers.dev_cluster import kill, read_until
from tests.containers.gangs import Gangs, gangs_on_a_cluster, pause
from tests.fakes.eventually import eventually
from tests.runs_over_http import DRIVE, WORKER, Diary

READS_FOR_EVER = f'[ "$RANK" != 1 ] || cat /deaf/data & exec /{DRIVE}/{WORKER.name}'
UNTOUCHED_S = 3.0


@pytest.fixture(scope="module")
def deaf() -> Iterator[Path]:
    """Where the file server is to serve."""
    with tempfile.TemporaryDirectory(prefix="astra-deaf-", dir="/tmp") as folder:
        yield Path(folder)


@pytest.fixture(scope="module")
def gangs(deaf: Path) -> Iterator[Gangs]:
    settings = ("backoff_first_s=0.2", "stop_grace_s=1", "stuck_after_s=2")
    words = [word for setting in settings for word in ("--set", setting)]
    with gangs_on_a_cluster("--machines", "4", "--drive", f"deaf={deaf}", *words) as gangs:
        yield gangs


@pytest.fixture(autouse=True)
def _nothing_runs_on(gangs: Gangs) -> Iterator[None]:
    yield
    gangs.stop_all()


def test_a_process_of_a_frozen_cgroup(gangs: Gangs) -> None:
    diary = gangs.submit("frozen", machines=3)
    diary.let_go()
    gangs.running("frozen", diary)
    with frozen(gangs.cgroup("frozen", 1, 0)) as thaw:
        check_goes_on_elsewhere(gangs, "frozen", diary, r"its cgroup is frozen", thaw)


def test_a_process_that_waits_for_a_file_server(gangs: Gangs, deaf: Path) -> None:
    with deaf_server(deaf) as (process, end):
        diary = gangs.submit(
            "reads",
            machines=3,
            command="sh",
            args=["-c", READS_FOR_EVER],
            datavolume_refs=[
                {"name": DRIVE, "mount_path": f"/{DRIVE}"},
                {"name": "deaf", "mount_path": "/deaf"},
            ],
        )
        diary.let_go()
        gangs.running("reads", diary)
        read_until(process, "not answered")
        check_goes_on_elsewhere(gangs, "reads", diary, r"waiting in the kernel", end)


def test_the_bound_is_a_minute() -> None:
    (bound,) = (field.default for field in fields(AgentConfig) if field.name == "stuck_after_s")
    assert bound == 60.0


def check_goes_on_elsewhere(gangs: Gangs, run: str, diary: Diary, why: str, let_it_die: Callable[[], None]) -> None:
    sentence = re.compile(rf"process \d+ of {run}-1 does not die \({why}\)")
    machine = gangs.ranks(run)["items"][1]["machine"]
    kill([gangs.program(run, 0, 0)])
    eventually(lambda: sentence.fullmatch(gangs.machines()[machine]["out_of_use"] or ""), f"{machine} is out of use")
    assert sentence.search(gangs.cluster.astra("nodes"))
    assert any(sentence.search(said) for said in gangs.sentences(run))

    status = gangs.running(run, diary, attempt=1)
    places = [item["machine"] for item in gangs.ranks(run)["items"]]
    assert len(set(places)) == 3
    assert machine not in places

    everywhere = f"{run}-all"
    wants_all = gangs.submit(everywhere, machines=4)
    pause(UNTOUCHED_S)
    waiting = gangs.status(everywhere)
    assert waiting["phase"] == "Pending"
    assert machine in waiting["reason"]
    assert len(gangs.machines()[machine]["slots"]) <= 1

    let_it_die()
    eventually(lambda: gangs.machines()[machine]["out_of_use"] is None, f"{machine} is back")
    gangs.running(everywhere, wants_all)
    for diary_of, name in ((wants_all, everywhere), (diary, run)):
        diary_of.finish()
        gangs.ended(name, "Completed")
    starts = Counter((line.rank, line.attempt) for line in diary.lines("start"))
    assert set(starts.values()) == {1}
    assert max(attempt for _, attempt in starts) == status["attempt"]
    gangs.settled()
    assert gangs.workers_left() == []


@contextmanager
def frozen(cgroup: str) -> Iterator[Callable[[], None]]:
    """On whichever version of cgroups the machine has. Gives what thaws it."""
    old = Path(f"/sys/fs/cgroup/freezer{cgroup}/freezer.state")
    path, freeze, thaw = (
        (old, "FROZEN", "THAWED") if old.exists() else (Path(f"/sys/fs/cgroup{cgroup}/cgroup.freeze"), "1", "0")
    )

    def let_go() -> None:
        if path.exists():
            path.write_text(thaw)

    path.write_text(freeze)
    try:
        yield let_go
    finally:
        let_go()


@contextmanager
def deaf_server(folder: Path) -> Iterator[tuple[subprocess.Popen[str], Callable[[], None]]]:
    """Gives the server, and what ends it."""
    program = Path(__file__).with_name("deaf_files.py")
    process = subprocess.Popen([sys.executable, str(program), str(folder)], stdout=subprocess.PIPE, text=True)

    def end() -> None:
        process.kill()
        process.wait(10)

    try:
        read_until(process, "serving")
        yield process, end
    finally:
        end()
        if process.stdout is not None:
            process.stdout.close()
        subprocess.run(["umount", "--lazy", str(folder)], check=False, timeout=10, capture_output=True)
