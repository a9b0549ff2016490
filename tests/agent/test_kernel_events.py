"""What the kernel says by itself: which events matter, and its log line by line."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from astra_agent.errors import HostFault
from astra_agent.kernel_events import device_events, interesting, log_lines
from tests.agent.machine import BOUND_S


def event(subsystem: str, path: str) -> bytes:
    fields = ("ACTION=change", f"DEVPATH={path}", f"SUBSYSTEM={subsystem}", "SEQNUM=7", "")
    return "\0".join((f"change@{path}", *fields)).encode()


@pytest.mark.parametrize(
    ("subsystem", "path", "matters"),
    [
        ("infiniband", "/devices/pci0000:15/0000:18:00.0/infiniband/mlx5_0", True),
        ("infiniband_verbs", "/devices/pci0000:15/0000:18:00.0/infiniband_verbs/uverbs0", True),
        ("pci", "/devices/pci0000:15/0000:18:00.0", True),
        ("net", "/devices/pci0000:15/0000:18:00.0/net/ib0", True),
        ("net", "/devices/virtual/net/veth1a2b", False),
        ("block", "/devices/virtual/block/loop0", False),
    ],
)
def test_events_of_the_training_network_and_the_bus_matter(subsystem: str, path: str, *, matters: bool) -> None:
    assert interesting(event(subsystem, path)) == (path if matters else None)


@pytest.mark.parametrize("message", [b"", b"\0\xff=", b"libudev\0\xfe\xed\xca\xfe"])
def test_what_is_no_event_matters_not(message: bytes) -> None:
    assert interesting(message) is None


async def test_the_kernels_events_can_be_heard_and_listening_ends() -> None:
    hearing = asyncio.ensure_future(anext(device_events()))
    await asyncio.sleep(0.05)
    if hearing.done():
        assert isinstance(hearing.exception(), HostFault | None)
    hearing.cancel()
    await asyncio.gather(hearing, return_exceptions=True)


async def test_a_log_is_read_line_by_line_over_several_writers(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "kmsg")
    lines = log_lines(tmp_path / "kmsg")
    for text in ("one", "two"):
        following = asyncio.ensure_future(anext(lines))
        await asyncio.sleep(0.02)
        descriptor = os.open(tmp_path / "kmsg", os.O_WRONLY | os.O_NONBLOCK)
        os.write(descriptor, f"{text}\n".encode())
        os.close(descriptor)
        async with asyncio.timeout(BOUND_S):
            assert await following == text
    await lines.aclose()


async def test_a_log_that_is_not_there_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(HostFault, match=r"the kernel log .*/kmsg can't be read: No such file"):
        await anext(log_lines(tmp_path / "kmsg"))
