"""`astra exec -it` on a real terminal: raw keys, its size, its exit code, and the terminal put back as it was."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import termios
import time

from tests.fakes.api import FakeApi

DEADLINE_S = 20.0


def read_until(fd: int, wanted: bytes) -> bytes:
    data, deadline = b"", time.monotonic() + DEADLINE_S
    while wanted not in data and time.monotonic() < deadline:
        data += os.read(fd, 4096)
    assert wanted in data
    return data


def test_a_terminal_is_handed_over_raw_and_given_back(api: FakeApi) -> None:
    api.exec_code = 42
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (40, 132))
    before = termios.tcgetattr(theirs)
    command = [sys.executable, "-m", "astra_cli.main", "exec", "first-gang", "0", "-it", "--", "sh"]
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=subprocess.PIPE, start_new_session=True)
    try:
        read_until(ours, b"out\n")
        os.write(ours, b"\x03keys")
        read_until(ours, b"\x03keys")
        termios.tcsetwinsize(theirs, (50, 100))
        process.send_signal(signal.SIGWINCH)
        time.sleep(0.3)
        os.write(ours, b"\x04")
        _, err = process.communicate(timeout=DEADLINE_S)
    finally:
        process.kill()
        process.wait()
        after = termios.tcgetattr(theirs)
        os.close(ours)
        os.close(theirs)
    assert process.returncode == 42
    assert err == b"err\n"
    assert after == before
    asked = api.execs[0]
    assert asked["query"]["tty"] == ["1"]
    assert (asked["query"]["width"], asked["query"]["height"]) == (["132"], ["40"])
    assert asked["stdin"] == b"\x03keys\x04"
    assert asked["sizes"] == [{"kind": "resize", "width": 100, "height": 50}]


def test_a_pipe_is_handed_on_with_its_end(api: FakeApi) -> None:
    command = [sys.executable, "-m", "astra_cli.main", "exec", "first-gang", "0", "-i", "--", "cat"]
    result = subprocess.run(command, input=b"text", capture_output=True, timeout=DEADLINE_S, check=False)
    assert result.stdout == b"out\ntext"
    assert api.execs[0]["stdin"] == b"text"
