"""
Where names are asked for: one address in one network namespace, for one workspace, with a pair of sockets at it.

A slot with a network of its own has the configured address to itself. On the machine's network, which slots of several
workspaces may share, each workspace has an address: the one that is asked says who asks.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from astra_agent import namespaces, network

PORT = 53
_LAST = 254
"""Of the last byte of an address."""
_BACKLOG = 128


@dataclass(frozen=True, slots=True)
class Place:
    """Where one workspace asks. *netns* None: the machine's own network."""

    workspace: str
    address: str
    netns: Path | None

    @property
    def names(self) -> tuple[str, str]:
        """Of its UDP and its TCP socket."""
        where = f"{self.workspace} {self.address} {self.netns or ''}".strip()
        return f"udp {where}", f"tcp {where}"


def addresses(first: str) -> Iterable[str]:
    """Those that workspaces on the machine's network are given, from *first* up."""
    head, _, last = first.rpartition(".")
    return (f"{head}.{number}" for number in range(int(last), _LAST + 1))


def free_place(workspace: str, netns: Path | None, first: str, known: Collection[Place]) -> Place | None:
    """On the machine's network: the workspace's own, or the first address that no other has; None when none is left."""
    taken = {place.address: place.workspace for place in known if place.netns == netns}
    for address in addresses(first):
        if taken.get(address, workspace) == workspace:
            return Place(workspace, address, netns)
    return None


async def make_sockets(place: Place) -> tuple[socket.socket, ...]:
    """UDP and listening TCP sockets, made inside the namespace. Raises: OSError, HostFault, and none is left."""
    await network.give_address(place.netns, place.address)
    return await asyncio.to_thread(namespaces.inside, place.netns, lambda: _bound(place.address))


def _bound(address: str) -> tuple[socket.socket, ...]:
    """UDP and listening TCP sockets at *address*. Raises: OSError, and none is left."""
    made: list[socket.socket] = []
    try:
        for kind in (socket.SOCK_DGRAM, socket.SOCK_STREAM):
            made.append(socket.socket(socket.AF_INET, kind | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK))
            if kind == socket.SOCK_STREAM:
                made[-1].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            made[-1].bind((address, PORT))
        made[1].listen(_BACKLOG)
    except BaseException:
        for one in made:
            one.close()
        raise
    return tuple(made)
