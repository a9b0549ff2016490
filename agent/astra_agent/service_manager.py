"""
What a daemon tells the service manager that started it, and what it asks it to keep: systemd's protocol of datagrams
(sd_notify(3)), or nothing where nobody asked to be told.

Own, since it is a socket and five words: the packages for it either need systemd's C library or are not kept any more.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from typing import Self

log = logging.getLogger(__name__)

_VARIABLES = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_FDS", "LISTEN_FDNAMES", "LISTEN_PID")
_FIRST_STORED = 3
_TELL_EVERY_S = 5.0
"""How often a changed status is told, where there is no watchdog that sets the pace."""


class ServiceManager:
    """
    Safe to call everywhere: without a manager nothing happens, and one that does not listen ends no daemon.

    Args:
        address: Of its socket; empty: there is none.
        watchdog_s: It restarts this process after so long without a sign of life; 0: it does not.
        stored: Descriptors that it kept for this process, by the names they were stored under.
    """

    def __init__(self, address: str = "", watchdog_s: float = 0.0, stored: Sequence[tuple[str, int]] = ()) -> None:
        self.watchdog_s = watchdog_s
        self._stored = list(stored)
        self._status = ""
        self._stops = False
        self._socket: socket.socket | None = None
        if address:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
            self._socket.setblocking(False)
        self._address = "\0" + address[1:] if address.startswith("@") else address

    @classmethod
    def of_process(cls, environment: MutableMapping[str, str] = os.environ) -> Self:
        """
        The one that started this process. Its variables are taken out of *environment*: they are for this process, and
        none of its children may speak for it.
        """
        words = {name: environment.pop(name, "") for name in _VARIABLES}
        return cls(words["NOTIFY_SOCKET"], _watchdog_s(words), _stored(words))

    # Telling ----------------------------------------------------------------------------------------------------------

    def ready(self, status: str) -> None:
        self._tell("READY=1", f"STATUS={_line(status)}")
        self._status = status

    def status(self, text: str) -> None:
        """What `systemctl status` shows. Told when it is another one than before."""
        if text != self._status:
            self._status = text
            self._tell(f"STATUS={_line(text)}")

    def stopping(self) -> None:
        """Idempotent."""
        if not self._stops:
            self._stops = True
            self._tell("STOPPING=1")

    async def watched(self, status: Callable[[], str]) -> None:
        """
        For ever: shows that the event loop turns, twice in the time that it has for that, and keeps the status true.
        One that is stuck sends nothing, which is the purpose.
        """
        while self._socket is not None:
            if self.watchdog_s:
                self._tell("WATCHDOG=1")
            self.status(status())
            await asyncio.sleep(min(self.watchdog_s / 2, _TELL_EVERY_S) if self.watchdog_s else _TELL_EVERY_S)

    # Keeping ----------------------------------------------------------------------------------------------------------

    def take_stored(self) -> dict[str, list[int]]:
        """What it kept, by name; the descriptors are the caller's from now on. It keeps its own until `remove`."""
        found: dict[str, list[int]] = {}
        for name, descriptor in self._stored:
            found.setdefault(name, []).append(descriptor)
        self._stored = []
        return found

    def store(self, name: str, descriptors: Sequence[int]) -> None:
        """
        Have them kept under *name*, of letters, digits and dashes. What it has already is not kept twice. It is told
        not to look at them: it would drop one whose other end is closed.
        """
        self._tell("FDSTORE=1", f"FDNAME={name}", "FDPOLL=0", descriptors=descriptors)

    def remove(self, name: str) -> None:
        self._tell("FDSTOREREMOVE=1", f"FDNAME={name}")

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _tell(self, *lines: str, descriptors: Sequence[int] = ()) -> None:
        if self._socket is None:
            return
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
        try:
            self._socket.sendmsg(["\n".join(lines).encode()], rights, 0, self._address)
        except OSError as error:
            log.warning("service_manager_not_told word=%s reason=%s", lines[0], error.strerror or error)


@contextlib.contextmanager
def told() -> Iterator[ServiceManager]:
    """The manager of this process; it hears of the end of the block as well."""
    manager = ServiceManager.of_process()
    try:
        yield manager
    finally:
        manager.stopping()
        manager.close()


def _watchdog_s(words: dict[str, str]) -> float:
    """0 when there is none, or when it is meant for another process: this one is somebody's child then."""
    if words["WATCHDOG_PID"] not in ("", str(os.getpid())) or not words["WATCHDOG_USEC"].isdecimal():
        return 0.0
    return int(words["WATCHDOG_USEC"]) / 1e6


def _stored(words: dict[str, str]) -> list[tuple[str, int]]:
    if words["LISTEN_PID"] != str(os.getpid()) or not words["LISTEN_FDS"].isdecimal():
        return []
    count = int(words["LISTEN_FDS"])
    descriptors = range(_FIRST_STORED, _FIRST_STORED + count)
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)
    names = words["LISTEN_FDNAMES"].split(":")
    return list(zip([*names, *[""] * count], descriptors, strict=False))


def _line(text: str) -> str:
    return " ".join(text.split())
