"""
Network namespaces by path: doing something inside one, making one that is kept by a file, removing it.

A thread has a network namespace of its own: a short-lived one enters, does its work (a socket stays in the namespace
that it was made in) and ends. The process itself never changes its namespace.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import TypeVar

from astra_agent.errors import HostFault

_CLONE_NEWNET = 0x40000000
_MS_BIND = 4096
_MNT_DETACH = 2
_libc = ctypes.CDLL(None, use_errno=True)

Result = TypeVar("Result")


def inside(netns: Path | None, work: Callable[[], Result]) -> Result:
    """
    What *work* returns, done in the namespace; None: in the process's own. Blocks until it is done.

    Raises: HostFault when the namespace can't be entered; whatever *work* raises.
    """
    if netns is None:
        return work()

    def enter_and_work() -> Result:
        _enter(netns)
        return work()

    return _in_thread(enter_and_work)


def own_path() -> Path:
    """The process's own namespace, for another process to join; valid while this process lives."""
    return Path(f"/proc/{os.getpid()}/ns/net")


def make(path: Path) -> None:
    """A new namespace, kept by a mount on *path*, which must not be one already. Raises: HostFault."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o600)

    def unshare_and_keep() -> None:
        _check(_libc.unshare(_CLONE_NEWNET), "a network namespace can't be made")
        source = b"/proc/thread-self/ns/net"
        _check(_libc.mount(source, os.fsencode(path), None, _MS_BIND, None), f"{path} can't be mounted on")

    _in_thread(unshare_and_keep)


def is_made(path: Path) -> bool:
    """Whether a namespace is kept at *path*: after a reboot only the file is left."""
    try:
        return path.stat().st_dev != path.parent.stat().st_dev
    except OSError:
        return False


def remove(path: Path) -> None:
    """Let go of the namespace; it ends with its last process. Idempotent."""
    while is_made(path):
        _check(_libc.umount2(os.fsencode(path), _MNT_DETACH), f"{path} can't be unmounted")
    with contextlib.suppress(FileNotFoundError):
        path.unlink()


def _enter(netns: Path) -> None:
    try:
        descriptor = os.open(netns, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise HostFault(f"network namespace {netns} can't be opened: {error.strerror}") from error
    try:
        _check(_libc.setns(descriptor, _CLONE_NEWNET), f"network namespace {netns} can't be entered")
    finally:
        os.close(descriptor)


def _check(result: int, what: str) -> None:
    if result != 0:
        raise HostFault(f"{what}: {os.strerror(ctypes.get_errno())}")


def _in_thread(work: Callable[[], Result]) -> Result:
    done: Future[Result] = Future()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:  # noqa: BLE001 -- carried over to the caller's thread
            done.set_exception(error)

    thread = threading.Thread(target=run, name="netns", daemon=True)
    thread.start()
    thread.join()
    return done.result()
