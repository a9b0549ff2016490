"""
The sockets that workers ask at, kept by the service manager as well, in case agent and name server die at once: what
was asked meanwhile waits in them, and nobody is refused. Without a manager nothing is kept.
"""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Mapping

from astra_agent.name_places import Place
from astra_agent.service_manager import ServiceManager


class KeptSockets:
    def __init__(self, manager: ServiceManager | None = None) -> None:
        self._manager = manager or ServiceManager()
        self._found = {
            name: tuple(socket.socket(fileno=one) for one in descriptors)
            for name, descriptors in self._manager.take_stored().items()
        }
        self._kept: set[str] = set(self._found)

    def claim(self, place: Place) -> tuple[socket.socket, ...]:
        """The UDP and the TCP socket of *place*, if both were kept; the caller's from now on. Else nothing."""
        found = {one.type: one for one in self._found.pop(_name(place), ())}
        if found.keys() == {socket.SOCK_DGRAM, socket.SOCK_STREAM}:
            return found[socket.SOCK_DGRAM], found[socket.SOCK_STREAM]
        for one in found.values():
            one.close()
        return ()

    def keep(self, sockets: Mapping[Place, tuple[socket.socket, ...]]) -> None:
        """Exactly these, from now on. To be called once all that is needed of earlier ones was claimed."""
        wanted = {_name(place): made for place, made in sockets.items() if made}
        for name in self._kept - wanted.keys():
            self._manager.remove(name)
            for one in self._found.pop(name, ()):
                one.close()
        for name in wanted.keys() - self._kept:
            self._manager.store(name, [one.fileno() for one in wanted[name]])
        self._kept = set(wanted)

    def close(self) -> None:
        """Of what nobody has claimed; it stays kept."""
        for found in self._found.values():
            for one in found:
                one.close()
        self._found = {}


def _name(place: Place) -> str:
    """A manager's names have no colon and no more than 255 letters; a place's are free text."""
    return f"names-{hashlib.sha256(place.names[0].encode()).hexdigest()[:32]}"
