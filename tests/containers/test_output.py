"""
What comes out of a worker: a terminal for a program run beside it, floods that nobody reads fast enough, a log that is
rotated while it is followed, and why a worker died.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.containers.gangs import Gangs, gangs_on_a_cluster
from tests.fakes.eventually import eventually
from tests.runs_over_http import Diary

BOUND_S = 60.0
FLOOD_BYTES = 64 << 20
LOG_MAX_BYTES = 256 << 10
STILL_S = 2.0


@pytest.fixture(scope="module")
def gangs() -> Iterator[Gangs]:
    settings = ("backoff_first_s=0.2", f"log_max_bytes={LOG_MAX_BYTES}", "log_check_s=0.1", "budget=0")
    words = [word for setting in settings for word in ("--set", setting)]
    with gangs_on_a_cluster("--machines", "2", *words) as gangs:
        yield gangs


@pytest.fixture(autouse=True)
def _nothing_runs_on(gangs: Gangs) -> Iterator[None]:
    yield
    gangs.stop_all()


@pytest.fixture
def worker(gangs: Gangs, request: pytest.FixtureRequest) -> Diary:
    """One that runs until it is told to finish; the run is called `beside`."""
    diary = Diary(gangs.drive / f"beside-{len(list(gangs.drive.iterdir()))}")
    env = {"DIARY": f"/diary/{diary.folder.name}"}
    status, answer = gangs.ask("/workspaces/default/jobs", gangs.document("beside", 1, env=env))
    assert status == 201, answer
    diary.let_go()
    gangs.running("beside", diary)
    return diary


# A terminal -----------------------------------------------------------------------------------------------------------


class Terminal:
    """A person's terminal with `astra` on it."""

    def __init__(self, gangs: Gangs, *words: str, columns: int, rows: int) -> None:
        self.screen, inside = pty.openpty()
        self.resize(columns, rows)
        self.process = subprocess.Popen(
            gangs.cluster.command(*words),
            env=gangs.cluster.environ, stdin=inside, stdout=inside, stderr=inside, start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )  # fmt: skip
        os.close(inside)
        self.seen = ""

    def resize(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self.screen, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, text: str) -> None:
        os.write(self.screen, text.encode())

    def until(self, pattern: str) -> str:
        """What the first group of *pattern* matched, once it has come to the screen."""
        deadline = time.monotonic() + BOUND_S
        while (found := re.search(pattern, self.seen)) is None:
            assert time.monotonic() < deadline, f"{pattern!r} did not come: {self.seen!r}"
            if select.select([self.screen], [], [], 0.2)[0]:
                try:
                    self.seen += os.read(self.screen, 65536).decode(errors="replace")
                except OSError:  # the other side has ended
                    assert re.search(pattern, self.seen), f"{pattern!r} did not come: {self.seen!r}"
        return found[1] if found.groups() else found[0]

    def close(self) -> None:
        self.process.kill()
        self.process.wait(BOUND_S)
        os.close(self.screen)


@contextmanager
def terminal(gangs: Gangs, *words: str, columns: int = 100, rows: int = 30) -> Iterator[Terminal]:
    made = Terminal(gangs, *words, columns=columns, rows=rows)
    try:
        yield made
    finally:
        made.close()


def test_a_shell_on_a_terminal(gangs: Gangs, worker: Diary) -> None:
    """Its size, a new size, Ctrl-C for the program in it, its code; and the terminal is afterwards as it was before."""
    with terminal(gangs, "exec", "-it", "beside", "0", "--", "sh") as shell:
        before = termios.tcgetattr(shell.screen)
        shell.until(r"[#$] ")
        shell.type("tty; stty size\n")
        assert shell.until(r"\n(/dev/pts/\d+)\r") == "/dev/pts/0"
        assert shell.until(r"\n(\d+ \d+)\r") == "30 100"
        shell.resize(77, 22)
        shell.type("until [ \"$(stty size)\" = '22 77' ]; do sleep 0.1; done; echo re''sized\n")
        shell.until("resized")
        shell.type("echo be''gun; sleep 1000\n")
        shell.until("begun")
        shell.type("\x03")
        shell.type("echo in''terrupted with $?\n")
        assert shell.until(r"interrupted with (\d+)") == "130"
        assert termios.tcgetattr(shell.screen)[3] & termios.ICANON == 0
        shell.type("exit 7\n")
        assert shell.process.wait(BOUND_S) == 7
        assert termios.tcgetattr(shell.screen) == before


def test_a_terminal_that_is_closed_ends_what_runs_in_it(gangs: Gangs, worker: Diary) -> None:
    with terminal(gangs, "exec", "-it", "beside", "0", "--", "sh", "-c", "echo be''gun; exec sleep 4711") as shell:
        shell.until("begun")
        assert sleepers() == 1
    eventually(lambda: sleepers() == 0, "the program is gone")
    assert gangs.status("beside")["phase"] == "Running"


def sleepers() -> int:
    lines = (path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists())
    return sum(line == b"sleep\x004711\x00" for line in lines)


# Floods ---------------------------------------------------------------------------------------------------------------


def test_a_flood_through_exec_arrives_whole_and_waits_for_its_reader(gangs: Gangs, worker: Diary) -> None:
    command = gangs.cluster.command(
        "exec", "beside", "0", "--", "sh", "-c", f"head -c {FLOOD_BYTES} /dev/zero; touch $DIARY/flooded"
    )
    with subprocess.Popen(command, env=gangs.cluster.environ, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            size = len(process.stdout.read(1 << 16))
            check_small(gangs)
            assert not (worker.folder / "flooded").exists()
            while piece := process.stdout.read(1 << 20):
                size += len(piece)
            assert (process.wait(BOUND_S), size) == (0, FLOOD_BYTES)
        finally:
            process.kill()


def check_small(gangs: Gangs) -> None:
    """Nobody between a program that writes and a reader that stands still piles it up."""
    before = memory(gangs)
    time.sleep(STILL_S)
    after = memory(gangs)
    assert max(after[name] - before[name] for name in after) < FLOOD_BYTES / 2


def memory(gangs: Gangs) -> dict[str, int]:
    """Resident bytes of each daemon."""
    found = {}
    for name, pid in gangs.daemons().items():
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        found[name] = pages * os.sysconf("SC_PAGE_SIZE")
    return found


LINES = 20_000
PACED = (
    "echo ready; until [ -e $DIARY/go ]; do sleep 0.1; done; "
    f"i=0; while [ $i -lt {LINES} ]; do echo line $i of a log that is rotated while somebody reads it; "
    "i=$((i+1)); [ $((i % 1000)) -ne 0 ] || sleep 0.15; done; until [ -e $DIARY/finish ]; do sleep 0.1; done"
)
"""More than a megabyte, slow enough for a reader who does not stand still."""


def test_a_log_that_is_rotated_is_followed_without_a_gap(gangs: Gangs) -> None:
    """And the disk holds two files' worth."""
    diary = gangs.submit("rotated", 1, command="sh", args=["-c", PACED])
    follow = gangs.cluster.command("logs", "rotated", "-f")
    with subprocess.Popen(follow, env=gangs.cluster.environ, stdout=subprocess.PIPE) as follower:
        try:
            assert follower.stdout is not None
            assert follower.stdout.readline() == b"ready\n"
            (diary.folder / "go").touch()
            for number in range(LINES):
                line = follower.stdout.readline().decode()
                assert line == f"line {number} of a log that is rotated while somebody reads it\n"
            diary.finish()
            assert (follower.stdout.read(), follower.wait(BOUND_S)) == (b"", 0)
        finally:
            follower.kill()
    gangs.ended("rotated", "Completed")
    kept = sum(path.stat().st_size for path in gangs.cluster.layout.state.glob("machines/*/logs/rotated-*/*"))
    assert 0 < kept < 4 * LOG_MAX_BYTES


# Why it died ----------------------------------------------------------------------------------------------------------


def test_out_of_memory_is_told_apart_from_a_kill(gangs: Gangs) -> None:
    resources = {"machines": 1, "memory_bytes": 64 << 20}
    command: dict[str, Any] = {"command": "sh", "requested_resources": resources}
    gangs.submit("greedy", args=["-c", "head -c 300M /dev/zero | tail"], **command)
    reason = gangs.ended("greedy", "Failed")["reason"]
    assert "Worker greedy-0 failed on m-1: Out of memory (limit 64 MiB)" in reason
    gangs.submit("killed", args=["-c", "kill -9 $$"], **command)
    reason = gangs.ended("killed", "Failed")["reason"]
    assert "Killed by signal 9" in reason
    assert "memory" not in reason
