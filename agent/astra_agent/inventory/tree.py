"""
A tree of files as the inventory reads it: the port `Root`, a tree in memory behind it, and a reader that never fails.

The inventory asks a `Root` and nothing else, so that a captured machine is read exactly as a real one is. Paths are
absolute, as on the machine; links are followed inside the tree. `astra_agent.sysfs` has the adapter for directories.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from astra_agent.inventory.model import CharDevice, Finding, Level
from astra_agent.inventory.order import natural

T = TypeVar("T")

MOST_LINKS = 40
"""Links followed on one path before it counts as a loop, as in the kernel."""


class AbsentError(Exception):
    """There is nothing at this path."""


class UnreadableError(Exception):
    """There is something, and it can't be read; the message is the system's word for why, such as `EINVAL`."""


class Root(Protocol):
    """The root of a machine's file system, real or captured. Nothing here waits for long, changes or locks anything."""

    def read(self, path: str) -> bytes:
        """Raises: AbsentError, UnreadableError."""
        ...

    def names(self, path: str) -> tuple[str, ...]:
        """Of what is in a folder, in number-aware order; empty for what is no folder or can't be read."""
        ...

    def link(self, path: str) -> str | None:
        """A link's own target as it is written; None for anything else. Works for links that lead nowhere."""
        ...

    def resolve(self, path: str) -> str:
        """Where *path* is once every link in it is followed; what is not there stays as it is written."""
        ...

    def exists(self, path: str) -> bool: ...

    def device(self, path: str) -> CharDevice | None:
        """The numbers of a character device; None for anything else."""
        ...


@dataclass(frozen=True, slots=True)
class CapturedTree:
    """
    A machine's files in memory.

    Attributes:
        files: Path to content.
        links: Path to the link's target, relative or absolute.
        errors: Path to the word for why it can't be read.
        devices: Path to major and minor number of a character device.
    """

    files: Mapping[str, bytes]
    links: Mapping[str, str]
    errors: Mapping[str, str]
    devices: Mapping[str, tuple[int, int]]
    _folders: dict[str, set[str]] = field(init=False, repr=False, compare=False)
    _real: dict[str, str] = field(init=False, repr=False, compare=False)
    """Paths that were asked for, and where they lead."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "_folders", _folders((*self.files, *self.links, *self.errors, *self.devices)))
        object.__setattr__(self, "_real", {})

    def read(self, path: str) -> bytes:
        real = self.resolve(path)
        if real in self.errors:
            raise UnreadableError(self.errors[real])
        if real in self.files:
            return self.files[real]
        if real in self._folders:
            raise UnreadableError("EISDIR")
        if real in self.devices:
            raise UnreadableError("it is a device")
        raise AbsentError(path)

    def names(self, path: str) -> tuple[str, ...]:
        return tuple(sorted(self._folders.get(self.resolve(path), ()), key=natural))

    def link(self, path: str) -> str | None:
        folder, name = posixpath.split(path)
        return self.links.get(posixpath.join(self.resolve(folder), name))

    def resolve(self, path: str) -> str:
        real = self._real.get(path)
        if real is None:
            real = self._real[path] = follow(path, self.links.get)
        return real

    def exists(self, path: str) -> bool:
        real = self.resolve(path)
        return any(real in there for there in (self.files, self._folders, self.devices, self.errors))

    def device(self, path: str) -> CharDevice | None:
        numbers = self.devices.get(self.resolve(path))
        return None if numbers is None else CharDevice(path, *numbers)


def follow(path: str, link_of: Callable[[str], str | None]) -> str:
    """*path* with every link followed, by the links that *link_of* gives; a loop ends where it was noticed."""
    real, ahead, followed = "/", path.strip("/").split("/"), 0
    while ahead:
        name, *ahead = ahead
        if name in ("", "."):
            continue
        if name == "..":
            real = posixpath.dirname(real)
            continue
        here = f"{real}/{name}" if real != "/" else f"/{name}"
        target = link_of(here) if followed < MOST_LINKS else None
        if target is None:
            real = here
            continue
        followed += 1
        ahead = [*target.split("/"), *ahead]
        if target.startswith("/"):
            real = "/"
    return real


def _folders(paths: Iterable[str]) -> dict[str, set[str]]:
    folders: dict[str, set[str]] = {"/": set()}
    for path in paths:
        while path != "/":
            parent, name = posixpath.split(path)
            if name in folders.setdefault(parent, set()):
                break
            folders[parent].add(name)
            path = parent
    return folders


@dataclass(slots=True)
class Reader:
    """
    Reads texts of a `Root`, and keeps a finding for each that should be there and is not, or is no text.

    A value of sysfs or procfs always ends with a newline: one that does not was cut short, and counts as unreadable.
    """

    root: Root
    findings: list[Finding] = field(default_factory=list)

    def need(self, path: str, subject: str, what: str) -> str | None:
        """The text of a file that the machine should have. *subject* and *what* are words for the finding."""
        try:
            return self._text(path)
        except AbsentError:
            self.found("fault", subject, f"{what} is not known: {path} is not there")
        except UnreadableError as error:
            self.found("fault", subject, f"{what} is not known: {path} can't be read ({error})")
        return None

    def may(self, path: str, subject: str, what: str, *, often: tuple[str, ...] = ()) -> str | None:
        """The text of a file that a machine may lack; being unreadable by one of *often* is the same as not there."""
        try:
            return self._text(path)
        except AbsentError:
            return None
        except UnreadableError as error:
            if str(error) not in often:
                self.found("warning", subject, f"{what} is not known: {path} can't be read ({error})")
            return None

    def parsed(self, path: str, subject: str, what: str, parse: Callable[[str], T | None]) -> T | None:
        """What *parse* makes of a file that the machine should have; a finding where that is None."""
        text = self.need(path, subject, what)
        if text is None:
            return None
        value = parse(text)
        if value is None:
            self.found("fault", subject, f"{what} is not known: {path} says {text[:40]!r}")
        return value

    def found(self, level: Level, subject: str, sentence: str, fix: str = "") -> None:
        finding = Finding(level, subject, sentence, fix)
        if finding not in self.findings:
            self.findings.append(finding)

    def _text(self, path: str) -> str:
        raw = self.root.read(path)
        try:
            text = raw.decode()
        except UnicodeDecodeError:
            raise UnreadableError("it is no text") from None
        if "\0" in text:
            raise UnreadableError("it is no text")
        if not text.endswith("\n"):
            raise UnreadableError("it is cut short" if text else "it is empty")
        return text.rstrip("\n")
