"""
Where the other machines of a probe connect to: one TCP port and one UDP port, looked after by one thread.

A caller has two seconds to show a greeting that knows the secret; it is answered, and the connection waits to be taken.
A UDP packet of the probe, however large, is answered by a small one, which tells the two directions apart.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
import time
from types import TracebackType
from typing import Self

from astra_netprobe import greeting
from astra_netprobe.greeting import GREETING_BYTES, Greeting, Purpose

GREET_S = 2.0
CALLERS_MAX = 1024
"""That have not greeted yet; more are not accepted for the moment, and wait in the kernel's queue."""
_BACKLOG = 4096
_PACKET_MAX = 65536

Key = tuple[Purpose, int, int, int]
"""Purpose, rank that calls, stream, tag."""


class Door:
    """Use as a context manager; nothing is left open after it but what was taken."""

    def __init__(self, address: str, rank: int, secret: bytes) -> None:
        self._rank = rank
        self._secret = secret
        self._listener = socket.create_server((address, 0), backlog=_BACKLOG)
        self._listener.setblocking(False)
        self._packets = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._packets.bind((address, 0))
        self._packets.setblocking(False)
        self._waker, self._woken = socket.socketpair()
        self._came: dict[Key, socket.socket] = {}
        self._changed = threading.Condition()
        self._callers: dict[socket.socket, tuple[float, bytes]] = {}
        self._selector = selectors.DefaultSelector()
        self._thread = threading.Thread(target=self._run, name="door", daemon=True)

    def __enter__(self) -> Self:
        for opened in (self._listener, self._packets, self._woken):
            self._selector.register(opened, selectors.EVENT_READ)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._waker.close()
        self._thread.join()
        for opened in (self._listener, self._packets, self._woken, *self._callers, *self._came.values()):
            opened.close()
        self._selector.close()

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    @property
    def packet_port(self) -> int:
        return int(self._packets.getsockname()[1])

    def take(self, key: Key, deadline: float) -> socket.socket | None:
        """The connection that was made for *key*, blocking; None when nobody came by *deadline* (monotonic)."""
        with self._changed:
            while key not in self._came:
                if not self._changed.wait(max(0.0, deadline - time.monotonic())) and key not in self._came:
                    return None
            taken = self._came.pop(key)
        taken.settimeout(None)
        return taken

    # The thread -------------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            for key, _ in self._selector.select(GREET_S / 4):
                if key.fileobj is self._woken:
                    return
                if key.fileobj is self._listener:
                    self._accept()
                elif key.fileobj is self._packets:
                    self._answer_packet()
                elif isinstance(key.fileobj, socket.socket):
                    self._hear(key.fileobj)
            now = time.monotonic()
            for caller in [caller for caller, (until, _) in self._callers.items() if until < now]:
                self._drop(caller)

    def _accept(self) -> None:
        while len(self._callers) < CALLERS_MAX:
            try:
                caller, _ = self._listener.accept()
            except OSError:
                return  # nobody left, or the one that called is gone again
            caller.setblocking(False)
            self._callers[caller] = (time.monotonic() + GREET_S, b"")
            self._selector.register(caller, selectors.EVENT_READ)

    def _hear(self, caller: socket.socket) -> None:
        until, heard = self._callers[caller]
        try:
            more = caller.recv(GREETING_BYTES - len(heard))
        except BlockingIOError:
            return
        except OSError:
            more = b""
        heard += more
        if not more:
            self._drop(caller)
        elif len(heard) < GREETING_BYTES:
            self._callers[caller] = (until, heard)
        else:
            self._admit(caller, heard)

    def _admit(self, caller: socket.socket, heard: bytes) -> None:
        said = greeting.decode(heard, self._secret)
        if said is None or said.target != self._rank:
            self._drop(caller)
            return
        self._selector.unregister(caller)
        del self._callers[caller]
        try:
            caller.sendall(greeting.answer(heard, self._secret))
        except OSError:
            caller.close()
            return
        if said.purpose is Purpose.REACH:
            caller.close()
            return
        self._keep(caller, said)

    def _keep(self, caller: socket.socket, said: Greeting) -> None:
        caller.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with self._changed:
            older = self._came.pop((said.purpose, said.source, said.stream, said.tag), None)
            self._came[said.purpose, said.source, said.stream, said.tag] = caller
            self._changed.notify_all()
        if older is not None:
            older.close()

    def _answer_packet(self) -> None:
        with contextlib.suppress(OSError):
            raw, sender = self._packets.recvfrom(_PACKET_MAX)
            number = greeting.packet_number(raw[: greeting.PACKET_BYTES], self._rank, self._secret)
            if number is not None:
                self._packets.sendto(raw[: greeting.PACKET_BYTES], sender)

    def _drop(self, caller: socket.socket) -> None:
        self._selector.unregister(caller)
        del self._callers[caller]
        caller.close()
