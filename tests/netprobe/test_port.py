"""What a port tells of itself: the errors that it counts."""

from __future__ import annotations

import struct
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from astra_netprobe import port

HEAD = bytes(16 + 16)
"""Of the answer, and of the link that it is about."""


def attribute(kind: int, content: bytes) -> bytes:
    return (struct.pack("=HH", 4 + len(content), kind) + content).ljust((4 + len(content) + 3) & ~3, b"\0")


def test_errors_and_what_was_lost_are_counted_and_what_nobody_wanted_is_not() -> None:
    counters = struct.pack("=24Q", 9, 9, 9, 9, 100, 20, 5000, 3, 9, 9, 9, 9, 9, 9, 9, 4, *([9] * 8))
    answer = HEAD + attribute(3, b"eth0\0") + attribute(23, counters) + attribute(7, b"x")
    assert port.errors_told(answer) == 100 + 20 + 3 + 4


def test_a_port_that_is_not_there_and_an_answer_without_counters_count_nothing() -> None:
    assert port.errors("no-such-port") == 0
    assert port.errors_told(HEAD + attribute(3, b"eth0\0")) == 0


def test_the_kernel_is_asked_and_its_answer_is_understood() -> None:
    """By what it says of the loopback device, whose errors it shows in another place, too."""
    shown = Path("/proc/self/net/dev").read_text()
    words = next(line for line in shown.splitlines() if line.strip().startswith("lo:")).split()
    assert port.errors("lo") == int(words[3]) + int(words[11]) + int(words[12])


@given(st.binary(max_size=400))
def test_whatever_is_answered_is_read(raw: bytes) -> None:
    port.errors_told(raw)
