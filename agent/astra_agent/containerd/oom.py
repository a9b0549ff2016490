"""
What the kernel's log says of processes that were killed for want of memory. It is there when their cgroup is not, which
systemd takes away as soon as its last process has ended.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

_RECORD_BYTES = 8192
"""The longest record there is."""
_KILL = re.compile(r"^[0-7],[^;]*;oom-kill:.*,task_memcg=(?P<path>[^,]*),task=")
"""`dump_oom_summary` in the kernel's mm/oom_kill.c, since 5.0; what a program writes there has a facility, and so a
higher number in front. It says this of ten kills in five seconds at most."""


def was_told(file: Path, cgroup: str) -> bool:
    """Whether the log has a kill in *cgroup*. Blocking, some milliseconds; a log that can't be read has none."""
    with suppress(OSError):
        return killed_in(_records(file), cgroup)
    return False


def killed_in(records: Iterable[str], cgroup: str) -> bool:
    """*records* as `/dev/kmsg` gives them."""
    found = (_KILL.match(record) for record in records)
    return any(_is_at(match["path"], cgroup) for match in found if match)


def _is_at(path: str, cgroup: str) -> bool:
    return path == cgroup or path.startswith(f"{cgroup}/")


def _records(file: Path) -> Iterator[str]:
    """All that the log still has. One that was overwritten meanwhile is left out."""
    descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        while True:
            try:
                record = os.read(descriptor, _RECORD_BYTES)
            except BlockingIOError:
                return
            except BrokenPipeError:
                continue
            if not record:
                return
            yield record.decode(errors="replace")
    finally:
        os.close(descriptor)
