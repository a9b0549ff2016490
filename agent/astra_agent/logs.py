"""
The logs of attempts: one growing file each, `logs/<slot>/a<n>.log`, and the older part of it, `….log.1`. Where an
engine wants standard output and error apart, there is a second file, `a<n>.err.log`.

A log is rotated under the runtime's hands, which holds the file open for appending. Where the file system can cut a
piece off the front of a file (ext4, xfs) nothing is lost; elsewhere what is written between copy and truncation is.

A reader's place in a log is counted from the first byte that this agent knows of, whatever file holds it now, so that a
rotation moves nobody.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import os
import re
import threading
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterable
from pathlib import Path

log = logging.getLogger(__name__)

_PIECE_BYTES = 256 * 1024
_POLL_FIRST_S = 0.05
_POLL_MAX_S = 0.5
_LAST_WORDS_S = 0.3
"""The runtime may still be writing what a program said when the program has ended."""
_FALLOC_FL_COLLAPSE_RANGE = 0x08
_libc = ctypes.CDLL(None, use_errno=True)
_libc.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)


class Logs:
    """
    Args:
        folder: Holds a folder for each slot, ended ones included.
        max_bytes: A log is rotated past this size.
        keep_bytes: What `prune` leaves of logs that are not protected.
    """

    def __init__(self, folder: Path, max_bytes: int, keep_bytes: int) -> None:
        self._folder = folder
        self._max_bytes = max_bytes
        self._keep_bytes = keep_bytes
        self._moved: dict[Path, int] = {}
        """How many bytes have left each log's file by its front; its first byte now has this place."""
        self._lock = threading.Lock()

    def path(self, slot: str, attempt: int) -> Path:
        return self._folder / slot / f"a{attempt}.log"

    def error_path(self, slot: str, attempt: int) -> Path:
        """Of standard error alone, where it is kept apart."""
        return self._folder / slot / f"a{attempt}.err.log"

    def paths(self, slot: str, attempt: int) -> tuple[Path, ...]:
        """All that there is of the attempt's output, or will be."""
        apart = self.error_path(slot, attempt)
        return (self.path(slot, attempt), apart) if apart.exists() else (self.path(slot, attempt),)

    def newest(self, slot: str) -> int | None:
        """The newest attempt with a log, also of an ended slot."""
        numbers = (re.fullmatch(r"a(\d+)\.log", path.name) for path in (self._folder / slot).glob("a*.log"))
        return max((int(match[1]) for match in numbers if match), default=None)

    # Reading ------------------------------------------------------------------------------------------------------

    async def read(
        self, path: Path, *, tail_bytes: int | None = None, follow_until: Callable[[], bool] | None = None
    ) -> AsyncIterator[bytes]:
        """
        What is kept of a log, or its last *tail_bytes*; then what is added, until *follow_until* says that no more will
        come and all of it has been given.
        """
        place = await asyncio.to_thread(self._place, path, tail_bytes)
        ended_s: float | None = None
        pause_s = _POLL_FIRST_S
        while True:
            if ended_s is None and (follow_until is None or follow_until()):
                ended_s = time.monotonic()
            data, place = await asyncio.to_thread(self._piece, path, place)
            if data:
                pause_s = _POLL_FIRST_S
                yield data
                continue
            if follow_until is None or (ended_s is not None and time.monotonic() - ended_s >= _LAST_WORDS_S):
                return
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _POLL_MAX_S)

    def next_piece(self, path: Path, place: int, most: int) -> tuple[bytes, int, int]:
        """
        Up to *most* bytes from *place* on, now: the bytes, the place after them, and how many were kept no more. On
        the caller's own thread: a look at a file's size, in most cases.
        """
        with self._lock:
            start = self._start(path)
            if place >= start and start + _size(path) <= place:
                return b"", place, 0
            first = start - _size(older(path))
            dropped = max(0, first - place)
            place += dropped
            source, offset = (older(path), place - first) if place < start else (path, place - start)
            data = _read_at(source, offset)[:most]
        return data, place + len(data), dropped

    def offset_of(self, path: Path, place: int) -> int:
        """*place* counted from the first byte of the log's file as it is now; for who must remember it."""
        with self._lock:
            return place - self._start(path)

    def place_of(self, path: Path, offset: int) -> int:
        """The reverse of `offset_of`, also for another agent."""
        with self._lock:
            return self._start(path) + offset

    def _place(self, path: Path, tail_bytes: int | None) -> int:
        with self._lock:
            start = self._start(path)
            first, end = start - _size(older(path)), start + _size(path)
        return first if tail_bytes is None else max(first, end - tail_bytes)

    def _piece(self, path: Path, place: int) -> tuple[bytes, int]:
        """The next bytes from *place* on, and the place after them; what is not kept any more is skipped."""
        with self._lock:
            start = self._start(path)
            first = start - _size(older(path))
            place = max(place, first)
            source, offset = (older(path), place - first) if place < start else (path, place - start)
            data = _read_at(source, offset)
        return data, place + len(data)

    def _start(self, path: Path) -> int:
        return self._moved.setdefault(path, _size(older(path)))

    # Rotation -----------------------------------------------------------------------------------------------------

    async def rotate_for_ever(self, growing: Callable[[], Iterable[Path]], every_s: float) -> None:
        """Look at the logs that *growing* names, and rotate those that are too large."""
        while True:
            await asyncio.sleep(every_s)
            for path in growing():
                if _size(path) > self._max_bytes:
                    await asyncio.to_thread(self.rotate, path)

    def rotate(self, path: Path) -> None:
        """Move a log's bytes, all or all whole blocks, to its older file, in the place of what that held."""
        with self._lock:
            start = self._start(path)
            try:
                self._moved[path] = start + _move_front(path, older(path), self._max_bytes)
            except OSError as error:
                log.warning("log_not_rotated path=%s reason=%r", path, error.strerror)

    # Retention ----------------------------------------------------------------------------------------------------

    def prune(self, protected: Collection[Path]) -> None:
        """Delete the oldest logs until those that are not *protected* are within their bound."""
        found = [(path.stat(), path) for path in self._folder.glob("*/a*.log*")]
        candidates = [(stat.st_mtime, stat.st_size, path) for stat, path in found if _main(path) not in protected]
        total = sum(size for _, size, _ in candidates)
        for _, size, path in sorted(candidates):
            if total <= self._keep_bytes:
                return
            path.unlink(missing_ok=True)
            self._moved.pop(path, None)
            total -= size
            with contextlib.suppress(OSError):
                path.parent.rmdir()


def older(path: Path) -> Path:
    return path.with_name(path.name + ".1")


def _main(path: Path) -> Path:
    return path.with_name(path.name.removesuffix(".1"))


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _read_at(path: Path, offset: int) -> bytes:
    try:
        with path.open("rb") as file:
            return os.pread(file.fileno(), _PIECE_BYTES, offset)
    except FileNotFoundError:
        return b""


def _move_front(path: Path, to: Path, max_bytes: int) -> int:
    """Returns how many bytes have left *path*."""
    with path.open("r+b") as file:
        descriptor = file.fileno()
        block = os.fstatvfs(descriptor).f_bsize
        whole = (os.fstat(descriptor).st_size - 1) // block * block
        if whole > 0 and _can_collapse(descriptor, block):
            _copy(descriptor, max(0, whole - max_bytes), whole, to)
            if _libc.fallocate(descriptor, _FALLOC_FL_COLLAPSE_RANGE, 0, whole) == 0:
                return whole
        size = os.fstat(descriptor).st_size
        _copy(descriptor, max(0, size - max_bytes), size, to)
        os.ftruncate(descriptor, 0)
        return size


def _can_collapse(descriptor: int, block: int) -> bool:
    """Asked for an impossible range, a file system that knows the operation calls it invalid instead of unsupported."""
    beyond = os.fstat(descriptor).st_size // block * block + block
    _libc.fallocate(descriptor, _FALLOC_FL_COLLAPSE_RANGE, beyond, block)
    return ctypes.get_errno() == 22


def _copy(descriptor: int, begin: int, end: int, to: Path) -> None:
    beside = to.with_name(to.name + ".new")
    with beside.open("wb") as target:
        while begin < end and (data := os.pread(descriptor, min(_PIECE_BYTES, end - begin), begin)):
            target.write(data)
            begin += len(data)
    beside.replace(to)
