"""The real `Root`: a machine's own file system, or a folder that a machine's files were laid out in."""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from astra_agent.inventory.model import CharDevice
from astra_agent.inventory.order import natural
from astra_agent.inventory.tree import AbsentError, UnreadableError, follow

LARGEST_BYTES = 4 << 20
"""No file that is read here is larger; what is, is cut short and taken as unreadable text."""
_NOT_THERE = (errno.ENOENT, errno.ENOTDIR, errno.ENODEV, errno.ENXIO)


@dataclass(frozen=True, slots=True)
class DirectoryRoot:
    """
    Below *folder*; links are followed inside it, also those that begin with a slash.

    Reads of sysfs are quick, but a card in reset can hold one up for seconds: not to be called on an event loop.
    """

    folder: Path = Path("/")

    def __post_init__(self) -> None:
        object.__setattr__(self, "folder", self.folder.resolve())

    def read(self, path: str) -> bytes:
        try:
            with self._real(path).open("rb", buffering=0) as file:
                if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                    raise UnreadableError("it is no file")
                return _whole(file.fileno())
        except OSError as error:
            if error.errno in _NOT_THERE:
                raise AbsentError(path) from None
            raise UnreadableError(errno.errorcode.get(error.errno or 0, str(error))) from None

    def names(self, path: str) -> tuple[str, ...]:
        try:
            return tuple(sorted((entry.name for entry in self._real(path).iterdir()), key=natural))
        except OSError:
            return ()

    def link(self, path: str) -> str | None:
        folder, _, name = path.rstrip("/").rpartition("/")
        return self._target(self._real(folder or "/") / name)

    def resolve(self, path: str) -> str:
        if self.folder == Path("/"):
            return os.path.realpath(path)
        # Links of sysfs are relative, so this is nearly always right; what leads out is followed again, inside.
        root = str(self.folder)
        real = os.path.realpath(f"{root}/{path}")
        if real == root or real.startswith(f"{root}/"):
            return real[len(root) :] or "/"
        return follow(path, lambda here: self._target(self.folder / here.lstrip("/")))

    def exists(self, path: str) -> bool:
        return self._real(path).exists()

    def device(self, path: str) -> CharDevice | None:
        try:
            status = self._real(path).stat()
        except OSError:
            return None
        if not stat.S_ISCHR(status.st_mode):
            return None
        return CharDevice(path, os.major(status.st_rdev), os.minor(status.st_rdev))

    def _real(self, path: str) -> Path:
        if self.folder == Path("/"):
            return Path(path)
        return self.folder / self.resolve(path).lstrip("/")

    @staticmethod
    def _target(path: Path) -> str | None:
        try:
            return str(path.readlink())
        except OSError:
            return None


def _whole(descriptor: int) -> bytes:
    pieces: list[bytes] = []
    size = 0
    while size < LARGEST_BYTES and (piece := os.read(descriptor, 1 << 16)):
        pieces.append(piece)
        size += len(piece)
    return b"".join(pieces)
