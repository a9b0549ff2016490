"""
Sockets that are read as soon as the kernel says that something is there, on an ordinary asyncio loop.

asyncio would first make a handle of each, look after its timers, and run the handle in a context. All of that costs a
lone question as much as its answer does, on a processor that has just woken up.
"""

from __future__ import annotations

import logging
import select
import selectors
import socket
from collections.abc import Callable
from typing import Protocol

log = logging.getLogger(__name__)


class Readers(Protocol):
    """An asyncio loop is one, and so is `PromptSelector`."""

    def add_reader(self, fd: socket.socket, callback: Callable[[], None], /) -> object: ...

    def remove_reader(self, fd: socket.socket, /) -> object: ...


class PromptSelector(selectors.EpollSelector):
    """For `asyncio.SelectorEventLoop`, whose own readers and writers are as they always are."""

    def __init__(self) -> None:
        super().__init__()
        self._reads: dict[int, Callable[[], None]] = {}
        self._all = select.epoll()
        """What is read here, and the loop's own as one."""
        self._all.register(self.fileno(), select.EPOLLIN)

    def add_reader(self, fd: socket.socket, callback: Callable[[], None], /) -> None:
        """Call *callback* on the loop's thread whenever *fd* can be read. It may not wait."""
        self._all.register(fd, select.EPOLLIN)
        self._reads[fd.fileno()] = callback

    def remove_reader(self, fd: socket.socket, /) -> None:
        """Before *fd* is closed."""
        del self._reads[fd.fileno()]
        self._all.unregister(fd)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        others = False
        reads = self._reads
        for fd, _ in self._all.poll(timeout):
            read = reads.get(fd)
            if read is None:
                others = True
                continue
            try:
                read()
            except Exception:
                # What is wrong with one socket is not the other sockets' end, which it would be up here.
                log.exception("reader_failed")
        return super().select(0) if others else []

    def close(self) -> None:
        self._all.close()
        super().close()
