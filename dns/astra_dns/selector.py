"""
Sockets that are read as soon as the kernel says that something is there, on an ordinary asyncio loop.

asyncio would first make a handle of each, look after its timers, and run the handle in a context. All of that costs a
lone question as much as its answer does, on a processor that has just woken up.
"""

from __future__ import annotations

import logging
import selectors
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

log = logging.getLogger(__name__)


class Readers(Protocol):
    """An asyncio loop is one, and so is `PromptSelector`."""

    def add_reader(self, fd: socket.socket, callback: Callable[[], None], /) -> object: ...

    def remove_reader(self, fd: socket.socket, /) -> object: ...


@dataclass(frozen=True, slots=True)
class _Prompt:
    read: Callable[[], None]


class PromptSelector(selectors.EpollSelector):
    """For `asyncio.SelectorEventLoop`, whose own readers and writers are as they always are."""

    def add_reader(self, fd: socket.socket, callback: Callable[[], None], /) -> None:
        """Call *callback* on the loop's thread whenever *fd* can be read. It may not wait."""
        self.register(fd, selectors.EVENT_READ, _Prompt(callback))

    def remove_reader(self, fd: socket.socket, /) -> None:
        """Before *fd* is closed."""
        self.unregister(fd)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        others = []
        for item in super().select(timeout):
            prompt = item[0].data
            if prompt.__class__ is not _Prompt:
                others.append(item)
                continue
            try:
                prompt.read()
            except Exception:
                # What is wrong with one socket is not the other sockets' end, which it would be up here.
                log.exception("reader_failed")
        return others
