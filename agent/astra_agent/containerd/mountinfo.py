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
    device: str
    """`major:minor`."""


def parse(text: str) -> tuple[Mount, ...]:
    """What can be seen, in the order of mounting: of several mounts at one path the last, none below a later one."""
    seen: dict[str, Mount] = {}
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        fields = before.split()
        if len(fields) < 6 or not after:
            continue
        path = _ESCAPE.sub(lambda found: chr(int(found[1], 8)), fields[4])
        for hidden in [other for other in seen if is_under(other, path)]:
            del seen[hidden]
        seen[path] = Mount(path, after.split()[0], fields[2])
    return tuple(seen.values())


def is_under(path: str, folder: str) -> bool:
    """Whether *path* is *folder* or in it."""
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def containing(path: str, mounts: tuple[Mount, ...]) -> Mount | None:
    """The mount that *path*, absolute and without links, lies on."""
    return max((mount for mount in mounts if is_under(path, mount.path)), key=lambda m: len(m.path), default=None)
