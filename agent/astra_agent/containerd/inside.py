"""
The files that a container will see, before there is one: an image's tree with mounts over it, every link followed
inside of it. Nothing here leaves the tree, whatever links say.
"""

from __future__ import annotations

import os
import posixpath
import stat
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from astra_agent.containerd.mountinfo import is_under
from astra_agent.containerd.passwd import Identity
from astra_agent.errors import HostFault

_MOST_LINKS = 40
"""As the kernel."""


class Missing(Exception):
    """*path*, in the container, is not there, or is no directory where one is needed."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path


class Closed(Exception):
    """The directory *path*, in the container, may not be passed."""

    def __init__(self, path: str, mode: int) -> None:
        super().__init__(path)
        self.path = path
        self.mode = mode


@dataclass(frozen=True, slots=True)
class Found:
    path: str
    """In the container, without links."""
    place: str
    """The same file as the agent sees it."""
    info: os.stat_result
    mount: str | None
    """The mount's target, when it is on one."""

    @property
    def is_directory(self) -> bool:
        return stat.S_ISDIR(self.info.st_mode)


class Inside:
    """
    Args:
        root: The image's tree as the agent sees it.
        mounts: From target in the container to source on the machine, or to None where there is an empty folder.
        working_dir: The runtime makes it, and its parents, where the image has none; as it does for the mounts.
    """

    def __init__(self, root: str, mounts: Mapping[str, str | None], working_dir: str = "/") -> None:
        self._root = root.rstrip("/")
        self._mounts = {posixpath.normpath(target): source for target, source in mounts.items()}
        self._made = (*self._mounts, posixpath.normpath(working_dir))

    def find(self, path: str, identity: Identity | None = None) -> Found:
        """
        Follow *path*, absolute, to the end. With an *identity*, only where it may go.

        Raises:
            Missing: With the path that is not there: another one than *path* after a link.
            Closed: A directory on the way is closed to *identity*.
        """
        at, ahead, links = "/", deque(_parts(path)), 0
        found = self._look(at)
        while ahead:
            if not found.is_directory:
                raise Missing(posixpath.join(at, *ahead))
            if identity is not None and not _passes(found, identity):
                raise Closed(at, stat.S_IMODE(found.info.st_mode))
            part = ahead.popleft()
            if part == "..":
                at = posixpath.dirname(at)
                found = self._look(at)
                continue
            found = self._look(posixpath.join(at, part))
            if not stat.S_ISLNK(found.info.st_mode):
                at = found.path
                continue
            links += 1
            if links > _MOST_LINKS:
                raise Missing(path)
            target = str(Path(found.place).readlink())
            at = "/" if target.startswith("/") else at
            ahead.extendleft(reversed(_parts(target)))
            found = self._look(at)
        return found

    def read(self, path: str, most: int) -> bytes:
        """The start of a file; empty when there is no such regular file."""
        try:
            found = self.find(path)
        except Missing:
            return b""
        return head(found, most)

    def _look(self, path: str) -> Found:
        """*path* itself, its parents being without links."""
        target = max((mount for mount in self._mounts if is_under(path, mount)), key=len, default=None)
        source = self._root if target is None else self._mounts[target]
        rest = path if target is None else path[len(target.rstrip("/")) :]
        if source is None:
            if path == target or self._is_on_the_way(path):
                return Found(path, "", _empty_folder(), target)
            raise Missing(path)
        place = f"{source.rstrip('/')}{rest}" or "/"
        try:
            # What a mount shows at its target is what the source's own links lead to.
            info = Path(place).stat(follow_symlinks=path == target)
        except (FileNotFoundError, NotADirectoryError):
            if self._is_on_the_way(path):
                return Found(path, "", _empty_folder(), target)
            raise Missing(path) from None
        except OSError as error:
            raise HostFault(f"{place} can't be looked at: {error.strerror}") from error
        return Found(path, place, info, target)

    def _is_on_the_way(self, path: str) -> bool:
        """Whether the runtime will make this folder."""
        return any(is_under(made, path) for made in self._made)


def may_execute(found: Found, identity: Identity) -> bool:
    if identity.uid == 0 or not is_executable_file(found):
        return is_executable_file(found)
    return _passes(found, identity)


def is_executable_file(found: Found) -> bool:
    """By anybody at all."""
    return stat.S_ISREG(found.info.st_mode) and bool(found.info.st_mode & 0o111)


def head(found: Found, most: int) -> bytes:
    if not stat.S_ISREG(found.info.st_mode):
        return b""
    try:
        with Path(found.place).open("rb") as file:
            return file.read(most)
    except OSError as error:
        raise HostFault(f"{found.place} can't be read: {error.strerror}") from error


def _passes(found: Found, identity: Identity) -> bool:
    """The bit x, of the owner, the group or all others. An access list says more than these: then the answer is yes."""
    mode = found.info.st_mode
    if identity.uid == 0:
        return True
    if found.info.st_uid == identity.uid:
        allowed = mode & 0o100
    elif found.info.st_gid in (identity.gid, *identity.groups):
        allowed = mode & 0o010
    else:
        allowed = mode & 0o001
    return bool(allowed) or _has_access_list(found.place)


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in ("", ".")]


def _empty_folder() -> os.stat_result:
    return os.stat_result((stat.S_IFDIR | 0o755, 0, 0, 1, 0, 0, 0, 0, 0, 0))


def _has_access_list(place: str) -> bool:
    try:
        return "system.posix_acl_access" in os.listxattr(place, follow_symlinks=False)
    except OSError:
        return False
