"""What /proc tells of a process: why it does not die, and which network it is in."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


def undying(
    pids: Sequence[int], worker: str, proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")
) -> str:
    """`process 4711 of llama-1 does not die (waiting in the kernel)`: of several, the one that says most."""
    reasons = [(pid, _reason(pid, proc, cgroups)) for pid in pids]
    pid, reason = next(((pid, reason) for pid, reason in reasons if reason), reasons[0])
    return f"process {pid} of {worker} does not die" + (f" ({reason})" if reason else "")


def _reason(pid: int, proc: Path, cgroups: Path) -> str:
    try:
        groups = (proc / str(pid) / "cgroup").read_text()
        state = _state((proc / str(pid) / "stat").read_text())
    except OSError:
        return ""
    if _is_frozen(groups, cgroups):
        return "its cgroup is frozen"
    return "waiting in the kernel" if state == "D" else ""


def _state(stat: str) -> str:
    """The letter after the program's name, which may itself hold spaces and parentheses."""
    return stat.rpartition(")")[2].split()[0]


def _is_frozen(groups: str, cgroups: Path) -> bool:
    """From /proc/<pid>/cgroup: version 1 has a hierarchy of its own for freezing, version 2 a file in the one."""
    for line in groups.splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "freezer" and _reads(cgroups / "freezer" / path.lstrip("/") / "freezer.state", "FROZEN"):
            return True
        unified = cgroups / "unified" if (cgroups / "unified").is_dir() else cgroups
        if not controllers and _reads(unified / path.lstrip("/") / "cgroup.events", "frozen 1"):
            return True
    return False


def _reads(path: Path, line: str) -> bool:
    try:
        return line in path.read_text().splitlines()
    except OSError:
        return False


def move_to_cgroup(pid: int, path: str, cgroups: Path = Path("/sys/fs/cgroup")) -> None:
    """
    Into the cgroup *path*, made where it is missing, in every hierarchy that takes it. Some of version 1 take nobody
    without settings of their own; the one by which a service manager knows its own does.
    """
    roots = [cgroups] if (cgroups / "cgroup.controllers").exists() else sorted(cgroups.glob("*"))
    for root in roots:
        folder = root / path.lstrip("/")
        try:
            if not root.is_symlink() and (root / "cgroup.procs").exists():
                folder.mkdir(parents=True, exist_ok=True)
                (folder / "cgroup.procs").write_text(str(pid))
        except OSError:
            continue


def is_in_network(pid: int, netns: Path, proc: Path = Path("/proc")) -> bool | None:
    """Whether the process is in the network namespace at *netns*; None when it can't be seen (any more)."""
    try:
        own, expected = (proc / str(pid) / "ns/net").stat(), netns.stat()
    except OSError:
        return None
    return (own.st_dev, own.st_ino) == (expected.st_dev, expected.st_ino)
