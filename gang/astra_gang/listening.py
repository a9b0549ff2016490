"""Sockets to listen on, also inside another network namespace: a socket belongs to the namespace it was made in."""

from __future__ import annotations

import ctypes
import os
import socket
import threading

from astra_agent.errors import InvalidRequest
from astra_gang.config import Address

_BACKLOG = 512
_CLONE_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)


def listening_socket(address: Address) -> socket.socket:
    """
    A TCP socket that listens at *address*; the caller closes it.

    Raises:
        InvalidRequest: The address or the namespace is not there, or something else listens at it.
    """
    where = f"{address.host}:{address.port}" + (f" in {address.netns}" if address.netns else "")
    try:
        return _listen_inside(address) if address.netns else _listen(address)
    except OSError as error:
        raise InvalidRequest(
            f"can't listen on {where} ({error.strerror or error}): choose another address", "listen"
        ) from error


def _listen(address: Address) -> socket.socket:
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((address.host, address.port))
        made.listen(_BACKLOG)
        made.setblocking(False)
    except BaseException:
        made.close()
        raise
    return made


def _listen_inside(address: Address) -> socket.socket:
    """A thread of its own enters the namespace and ends there, so that no other code ever runs in it."""
    made: list[socket.socket] = []
    failed: list[OSError] = []

    def enter() -> None:
        try:
            fd = os.open(address.netns, os.O_RDONLY | os.O_CLOEXEC)
            try:
                if _libc.setns(fd, _CLONE_NEWNET) != 0:
                    number = ctypes.get_errno()
                    raise OSError(number, os.strerror(number))
            finally:
                os.close(fd)
            made.append(_listen(address))
        except OSError as error:
            failed.append(error)

    thread = threading.Thread(target=enter, name="enter-netns")
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return made[0]
