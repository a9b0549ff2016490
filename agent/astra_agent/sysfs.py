"""The real `Root`: a machine's own file system, or a folder that a machine's files were laid out in."""

from __future__ import annotations

import errno
import os
import posixpath
import stat
from dataclasses import dataclass, field
from pathlib import Path

from astra_agent.inventory.model import CharDevice
from astra_agent.inventory.order import natural
from astra_agent.inventory.tree import MOST_LINKS, AbsentError, UnreadableError

LARGEST_BYTES = 4 << 20
"""No file that is read here is larger; what is, is cut short and taken as unreadable text."""
_PIECE_BYTES = 1 << 16
_NOT_THERE = (errno.ENOENT, errno.ENOTDIR, errno.ENODEV, errno.ENXIO)
_OPEN = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
"""Not blocking: a FIFO under a file's name must not hold anybody up."""


@dataclass(frozen=True, slots=True)
class DirectoryRoot:
    """
    Below *folder*; links are followed inside it, also those that begin with a slash. A folder other than `/` has to
    stay as it is while this object is used: where a path leads is found out once.

    Reads of sysfs are quick, but a card in reset can hold one up for seconds: not to be called on an event loop.
    """

    folder: Path = Path("/")
    _prefix: str = field(init=False, repr=False, compare=False)
    _known: dict[str, str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "folder", self.folder.resolve())
        object.__setattr__(self, "_prefix", "" if self.folder == Path("/") else str(self.folder))
        object.__setattr__(self, "_known", {"": "/"})

    def read(self, path: str) -> bytes:
        try:
            descriptor = os.open(self._real(path), _OPEN)
        except OSError as error:
            raise _refusal(path, error) from None
        try:
            mode = os.fstat(descriptor).st_mode
            if not stat.S_ISREG(mode):
                raise UnreadableError("EISDIR" if stat.S_ISDIR(mode) else "it is no file")
            return _whole(descriptor)
        except OSError as error:
            raise _refusal(path, error) from None
        finally:
            os.close(descriptor)

    def names(self, path: str) -> tuple[str, ...]:
        try:
            return tuple(sorted(os.listdir(self._real(path)), key=natural))  # noqa: PTH208  # names, not paths
        except OSError:
            return ()

    def link(self, path: str) -> str | None:
        folder, _, name = path.rstrip("/").rpartition("/")
        return _target(f"{self._real(folder)}/{name}")

    def resolve(self, path: str) -> str:
        return self._inside(path.rstrip("/"), 0) if self._prefix else os.path.realpath(path)

    def exists(self, path: str) -> bool:
        return os.path.exists(self._real(path))  # noqa: PTH110  # asked for hundreds of paths

    def device(self, path: str) -> CharDevice | None:
        try:
            status = os.stat(self._real(path))  # noqa: PTH116
        except OSError:
            return None
        if not stat.S_ISCHR(status.st_mode):
            return None
        return CharDevice(path, os.major(status.st_rdev), os.minor(status.st_rdev))

    def _real(self, path: str) -> str:
        return f"{self._prefix}{self.resolve(path)}" if self._prefix else path or "/"

    def _inside(self, path: str, followed: int) -> str:
        """Where *path* leads, inside the folder; a loop ends where it was noticed."""
        real = self._known.get(path)
        if real is not None:
            return real
        parent, _, name = path.rpartition("/")
        folder = self._inside(parent, followed)
        if name in ("", "."):
            real = folder
        elif name == "..":
            real = posixpath.dirname(folder)
        else:
            real = posixpath.join(folder, name)
            target = _target(f"{self._prefix}{real}") if followed < MOST_LINKS else None
            if target is not None:
                real = self._inside(posixpath.join(folder, target).rstrip("/"), followed + 1)
        self._known[path] = real
        return real


def _target(path: str) -> str | None:
    try:
        return os.readlink(path)  # noqa: PTH115
    except OSError:
        return None


def _refusal(path: str, error: OSError) -> AbsentError | UnreadableError:
    if error.errno in _NOT_THERE:
        return AbsentError(path)
    return UnreadableError(errno.errorcode.get(error.errno or 0, str(error)))


def _whole(descriptor: int) -> bytes:
    pieces: list[bytes] = []
    size = 0
    while size < LARGEST_BYTES and (piece := os.read(descriptor, _PIECE_BYTES)):
        pieces.append(piece)
        size += len(piece)
    return b"".join(pieces)
