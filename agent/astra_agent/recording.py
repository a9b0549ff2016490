"""A `Root` that writes down everything that is asked of another one: a machine becomes a capture of itself."""

from __future__ import annotations

import posixpath
from dataclasses import dataclass, field

from astra_agent.inventory.driver import LIBRARY_FOLDERS
from astra_agent.inventory.model import CharDevice
from astra_agent.inventory.tree import Root, UnreadableError, follow


@dataclass(slots=True)
class RecordingRoot:
    """
    Passes every question on and keeps the answer, in the parts of a captured machine. Files that are only asked for by
    name are kept empty: a library of the driver is a name in a capture, never its content.
    """

    root: Root
    files: dict[str, bytes] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    devices: dict[str, tuple[int, int]] = field(default_factory=dict)

    def read(self, path: str) -> bytes:
        real = self.resolve(path)
        try:
            content = self.root.read(path)
        except UnreadableError as error:
            if real not in self.devices and str(error) != "EISDIR":
                self.errors[real] = str(error)
            raise
        self.files[real] = content
        return content

    def names(self, path: str) -> tuple[str, ...]:
        names = self.root.names(path)
        for name in names:
            below = posixpath.join(self.resolve(path), name)
            if path in LIBRARY_FOLDERS and not name.startswith(("libcuda", "libnv")):
                continue
            self.link(below)
            self.exists(below)
        return names

    def link(self, path: str) -> str | None:
        target = self.root.link(path)
        if target is not None:
            folder, name = posixpath.split(path)
            self.links[posixpath.join(self.resolve(folder), name)] = target
        return target

    def resolve(self, path: str) -> str:
        return follow(path, self._link)

    def exists(self, path: str) -> bool:
        if not self.root.exists(path):
            return False
        if self.device(path) is None and not path.startswith(("/sys", "/proc")):
            self._keep_name(path)
        return True

    def device(self, path: str) -> CharDevice | None:
        found = self.root.device(path)
        if found is not None:
            self.devices[self.resolve(path)] = (found.major, found.minor)
        return found

    def _link(self, path: str) -> str | None:
        target = self.root.link(path)
        if target is not None:
            self.links[path] = target
        return target

    def _keep_name(self, path: str) -> None:
        real = self.resolve(path)
        if not self.root.names(real):
            self.files.setdefault(real, b"")
