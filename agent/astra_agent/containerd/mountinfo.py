"""
`/proc/self/mountinfo`, parsed. Pure.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_ESCAPE = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class Mount:
    path: str
    fs_type: str


def parse(text: str) -> tuple[Mount, ...]:
    """
    What can be seen: what another mount covers, with all that lies below, is left out. Lines are in the order of
    mounting only among those with one parent, and the root need not be the first.
    """
    entries = [entry for line in text.splitlines() if (entry := _entry(line)) is not None]
    known = {entry.id for entry in entries}
    visible: list[Mount] = []
    ahead = [entry for entry in entries if entry.parent not in known and entry.mount.path == "/"][-1:]
    while ahead:
        entry = ahead.pop()
        children = [child for child in entries if child.parent == entry.id and child.id != entry.id]
        cover = [child for child in children if child.mount.path == entry.mount.path][-1:]
        if not cover:
            visible.append(entry.mount)
        ahead += cover or _uncovered(children)
    return tuple(visible)


@dataclass(frozen=True, slots=True)
class _Entry:
    id: int
    parent: int
    mount: Mount


def _entry(line: str) -> _Entry | None:
    before, _, after = line.partition(" - ")
    fields = before.split()
    if len(fields) < 6 or not after:
        return None
    path = _ESCAPE.sub(lambda found: chr(int(found[1], 8)), fields[4])
    return _Entry(int(fields[0]), int(fields[1]), Mount(path, after.split()[0]))


def _uncovered(children: list[_Entry]) -> list[_Entry]:
    """Without those over which a later sibling was mounted."""
    return [
        child
        for number, child in enumerate(children)
        if not any(is_under(child.mount.path, later.mount.path) for later in children[number + 1 :])
    ]


def is_under(path: str, folder: str) -> bool:
    """Whether *path* is *folder* or in it."""
    return path == folder or path.startswith(folder.rstrip("/") + "/")
