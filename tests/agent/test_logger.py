"""The logger of containers, as the shim starts it: what it can't write is lost, marked, and holds up nobody."""

from __future__ import annotations

import array
import fcntl
import subprocess
import termios
from pathlib import Path
from typing import IO

from astra_agent import init
from tests.fakes.eventually import eventually

BOUND_S = 30.0


def started(path: Path) -> subprocess.Popen[bytes]:
    """Standard input is what the program says; its standard error is at its end already."""
    script = 'exec "$0" out "$1" err "$1" 3<&0 4</dev/null 5>/dev/null'
    return subprocess.Popen(("sh", "-c", script, init.logger(), path), stdin=subprocess.PIPE)


def says(logger: subprocess.Popen[bytes], words: bytes) -> IO[bytes]:
    """Returns once it has read them."""
    pipe = logger.stdin
    assert pipe is not None
    pipe.write(words)
    pipe.flush()
    waiting = array.array("i", [1])

    def has_read() -> bool:
        fcntl.ioctl(pipe, termios.FIONREAD, waiting)
        return waiting[0] == 0

    eventually(has_read, "it has read what was said")
    return pipe


def test_what_is_said_before_the_file_can_be_opened_is_marked_in_its_place(tmp_path: Path) -> None:
    path = tmp_path / "later" / "a0.log"
    logger = started(path)
    says(logger, b"lost\n")
    path.parent.mkdir()
    says(logger, b"kept\n").close()
    assert logger.wait(BOUND_S) == 0
    assert path.read_text() == "\n[5 bytes of output were dropped here: No such file or directory]\nkept\n"


def test_much_that_is_lost_is_counted_in_mebibytes(tmp_path: Path) -> None:
    path = tmp_path / "later" / "a0.log"
    logger = started(path)
    for _ in range(24):
        says(logger, bytes(65536))
    path.parent.mkdir()
    says(logger, b"kept\n").close()
    assert logger.wait(BOUND_S) == 0
    assert path.read_text() == "\n[1.50 MiB of output were dropped here: No such file or directory]\nkept\n"
