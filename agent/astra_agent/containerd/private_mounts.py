"""
Mounts that nobody else sees and that can't be left behind: made in a thread's own mount namespace, which the kernel
takes down with the thread, also when the agent is killed.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TypeVar

from astra_agent.containerd.proto.types_pb2 import Mount

_CLONE_FS = 0x200
_CLONE_NEWNS = 0x20000
_MS_RDONLY, _MS_REMOUNT, _MS_BIND, _MS_REC, _MS_PRIVATE = 1, 32, 4096, 16384, 1 << 18
_FLAGS = {"ro": _MS_RDONLY, "bind": _MS_BIND, "rbind": _MS_BIND | _MS_REC, "rw": 0}

_libc = ctypes.CDLL(None, use_errno=True)

Result = TypeVar("Result")


def with_mounts(mounts: Sequence[Mount], target: Path, work: Callable[[], Result]) -> Future[Result]:
    """
    *work*, done while *mounts* (of a snapshot) are on *target*, for it alone. Returns at once; nobody need wait for the
    end, and a process that ends does not.

    The future's errors:
        OSError: They can't be mounted.
        Whatever *work* raises.
    """
    done: Future[Result] = Future()

    def run() -> None:
        if not done.set_running_or_notify_cancel():
            return
        try:
            _check(_libc.unshare(_CLONE_NEWNS | _CLONE_FS), "a mount namespace can't be made")
            _mount("none", "/", "", _MS_REC | _MS_PRIVATE, "")
            for mount in mounts:
                _mount_one(mount, target)
            done.set_result(work())
        except BaseException as error:  # noqa: BLE001 -- carried over to whoever waits
            done.set_exception(error)

    threading.Thread(target=run, name="mounts", daemon=True).start()
    return done


def mount_tmpfs(target: Path) -> None:
    """In the process's own namespace, and to stay. Raises: OSError."""
    _mount("tmpfs", str(target), "tmpfs", 0, "mode=0700")


def _mount_one(mount: Mount, target: Path) -> None:
    flags, data = 0, []
    for option in mount.options:
        if option in _FLAGS:
            flags |= _FLAGS[option]
        else:
            data.append(option)
    if mount.type == "overlay":
        data = _shortened(data)
    kind = "" if flags & _MS_BIND else mount.type
    _mount(mount.source, str(target), kind, flags, ",".join(data))
    if flags & _MS_BIND and flags & _MS_RDONLY:
        _mount("none", str(target), "", flags | _MS_REMOUNT, "")


def _shortened(options: list[str]) -> list[str]:
    """
    The kernel reads one page of options, which some fifty layers fill: lower directories become relative to the one
    that holds all of them, which this thread, with a working directory of its own, moves to.
    """
    lowers = next((o.removeprefix("lowerdir=").split(":") for o in options if o.startswith("lowerdir=")), [])
    if len(lowers) < 2:
        return options
    common = os.path.commonpath(lowers)
    os.chdir(common)
    relative = ":".join(os.path.relpath(lower, common) for lower in lowers)
    return [f"lowerdir={relative}" if option.startswith("lowerdir=") else option for option in options]


def _mount(source: str, target: str, kind: str, flags: int, data: str) -> None:
    result = _libc.mount(
        os.fsencode(source),
        os.fsencode(target),
        os.fsencode(kind) or None,
        ctypes.c_ulong(flags),
        os.fsencode(data) or None,
    )
    _check(result, f"{target} can't be mounted on")


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
