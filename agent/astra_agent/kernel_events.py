"""
What the kernel says by itself: uevents of devices that come and go, and lines of its log.

Each reads a descriptor that never blocks, on the event loop; both go on for ever, and what they can't have is said in
an error.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import stat
from collections.abc import AsyncGenerator
from contextlib import suppress
from pathlib import Path

from astra_agent.errors import HostFault

KERNEL_LOG = Path("/dev/kmsg")

_NETLINK_KOBJECT_UEVENT = 15
_FROM_THE_KERNEL = 1
"""The multicast group; what udev makes of its events has another one."""
_RECORD_BYTES = 8192
"""Of the kernel log: the longest there is."""
_EVENT_BYTES = 16384


async def device_events() -> AsyncGenerator[str, None]:
    """
    Where below /sys a device of the training network, or on the PCI bus, came, went or changed. Virtual network devices
    are none: every container has some.

    Raises: HostFault when the kernel does not tell.
    """
    try:
        listening = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_NONBLOCK, _NETLINK_KOBJECT_UEVENT)
        listening.bind((0, _FROM_THE_KERNEL))
    except OSError as error:
        raise HostFault(f"the kernel's device events can't be heard: {error.strerror}") from error
    with listening:
        while True:
            await _readable(listening.fileno())
            try:
                path = interesting(listening.recv(_EVENT_BYTES))
            except BlockingIOError:
                continue
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise HostFault(f"the kernel's device events can't be heard: {error.strerror}") from error
                path = "more events than could be read"
            if path is not None:
                yield path


def interesting(message: bytes) -> str | None:
    """The device's path, when one event of the kernel is of interest to the inventory."""
    fields = dict(part.split("=", 1) for part in message.decode(errors="replace").split("\0") if "=" in part)
    kind, path = fields.get("SUBSYSTEM", ""), fields.get("DEVPATH", "")
    if kind == "net" and "/virtual/" in path:
        return None
    return path if kind in ("net", "pci") or kind.startswith("infiniband") else None


async def log_lines(file: Path) -> AsyncGenerator[str, None]:
    """
    The kernel log from this boot's start, or as far back as it goes, then as it grows. *file* may be a FIFO with such
    lines.

    Raises: HostFault when it can't be read.
    """
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise HostFault(f"the kernel log {file} can't be read: {error.strerror}") from error
    try:
        if stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            # With a writer of our own, the end of one writer is not the end of the FIFO.
            os.close(descriptor)
            descriptor = os.open(file, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        while True:
            try:
                record = os.read(descriptor, _RECORD_BYTES)
            except BlockingIOError:
                await _readable(descriptor)
                continue
            except OSError as error:
                if error.errno == errno.EPIPE:
                    continue  # records were overwritten before they were read: the next read is behind them
                raise HostFault(f"the kernel log {file} can't be read: {error.strerror}") from error
            for line in record.decode(errors="replace").splitlines():
                yield line
    finally:
        os.close(descriptor)


async def _readable(descriptor: int) -> None:
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()

    def wake() -> None:
        if not ready.done():
            ready.set_result(None)

    loop.add_reader(descriptor, wake)
    try:
        await ready
    finally:
        with suppress(ValueError, OSError):
            loop.remove_reader(descriptor)
