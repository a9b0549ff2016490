"""The port of a dev cluster's API: found free, and kept from other dev clusters that start at the same moment."""

from __future__ import annotations

import socket
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

from astra_agent.errors import Conflict


@dataclass(frozen=True, slots=True)
class Reservation:
    """Of one port of 127.0.0.1, until it is given back or its process ends. The port itself stays unbound."""

    port: int
    holder: socket.socket

    def give_back(self) -> None:
        self.holder.close()


def reserve(ports: Iterable[int]) -> Reservation:
    """The first of *ports* that nobody listens on or has reserved. Raises: Conflict."""
    for port in ports:
        holder = socket.socket(socket.AF_UNIX)
        try:
            holder.bind(f"\0astraeus-dev-port-{port}")  # a name that the kernel forgets with its last holder
        except OSError:
            holder.close()
            continue
        if is_free(port):
            return Reservation(port, holder)
        holder.close()
    raise Conflict("no port of 127.0.0.1 that may be used for the API is free; name another with --port")


def is_free(port: int) -> bool:
    with socket.socket() as probe, suppress(OSError):
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", port))
        return True
    return False
