"""
Sockets in, answers out. Each socket belongs to one workspace, and that is who asks: it is bound inside the network
namespace of that workspace's slot, or to that workspace's own address, so nobody has to be believed.

A plain socket with a reader callback (`selector`), and many packets for each call into the kernel (`burst`): asyncio's
datagram protocol costs six times as much for each packet.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from astra_dns.answer import answer, failure, room
from astra_dns.burst import Asker, Burst
from astra_dns.cache import Cached
from astra_dns.counters import Counters
from astra_dns.forward import Forwarder
from astra_dns.graveyard import Graveyard
from astra_dns.query import Query
from astra_dns.ready import Ready
from astra_dns.records import Snapshot
from astra_dns.selector import Readers
from astra_dns.tcp import TcpListener

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Listener:
    workspace: str
    socket: socket.socket
    tcp: TcpListener | None


class Server:
    """
    Answers on every socket that it is given, from the newest snapshot that it was given.

    Made, used and closed on one event loop.

    Args:
        readers: Who tells when a datagram is there; None: the loop.
    """

    def __init__(
        self, snapshot: Snapshot, forwarder: Forwarder, counters: Counters, readers: Readers | None = None
    ) -> None:
        self.snapshot = snapshot
        self._forwarder = forwarder
        self._counters = counters
        self._ready: dict[str, Ready] = {}
        self._listeners: dict[str, _Listener] = {}
        self._graveyard = Graveyard()
        self._burst = Burst(self._not_sent)
        self._readers: Readers = readers or asyncio.get_running_loop()

    def publish(self, snapshot: Snapshot) -> None:
        """From this moment on all answers are by *snapshot*."""
        before, self.snapshot = self.snapshot, snapshot
        for workspace, ready in list(self._ready.items()):
            view = snapshot.view(workspace)
            if ready.view is not view:
                self._ready[workspace] = Ready(view)
                self._graveyard.bury(ready.answers)
        for workspace, view in before.views.items():
            now = snapshot.view(workspace)
            if now is not view:
                self._graveyard.bury_view(view, now)

    def add(self, name: str, workspace: str, sock: socket.socket) -> None:
        """Answer on *sock* (UDP, bound; or TCP, listening), the server's from now on, in the place of any *name*."""
        self.remove(name)
        sock.setblocking(False)
        if sock.type == socket.SOCK_STREAM:
            tcp = TcpListener(sock, lambda packet, done: self.take(workspace, packet, done), self._counters)
            self._listeners[name] = _Listener(workspace, sock, tcp)
            return
        self._listeners[name] = _Listener(workspace, sock, None)
        if workspace not in self._ready:
            self._ready[workspace] = Ready(self.snapshot.view(workspace))
        self._readers.add_reader(sock, partial(self._readable, workspace, sock))

    def remove(self, name: str) -> None:
        """Answer no more there. Idempotent."""
        listener = self._listeners.pop(name, None)
        if listener is None:
            return
        if listener.tcp is not None:
            listener.tcp.close()
        else:
            self._readers.remove_reader(listener.socket)
            listener.socket.close()
        if not any(other.workspace == listener.workspace for other in self._listeners.values()):
            self._ready.pop(listener.workspace, None)

    @property
    def sockets(self) -> dict[str, tuple[str, socket.socket]]:
        """By name: workspace and socket."""
        return {name: (one.workspace, one.socket) for name, one in self._listeners.items()}

    async def close(self) -> None:
        for name in list(self._listeners):
            self.remove(name)
        await asyncio.sleep(0)

    # UDP --------------------------------------------------------------------------------------------------------------

    def _readable(self, workspace: str, sock: socket.socket) -> None:
        ready = self._ready[workspace]
        try:
            taken = self._burst.turn(
                sock, ready.get, self._counters.rcodes, lambda packet, asker: self._compose(ready, packet, sock, asker)
            )
        except OSError as error:
            self._counters.ignored[f"socket: {error.strerror}"] += 1
        else:
            self._counters.udp_requests += taken

    def _compose(self, ready: Ready, packet: bytes, sock: socket.socket, asker: Asker) -> bytes | None:
        """Anything but a question that was asked before. Whatever is wrong with one packet is not the next one's."""
        try:
            said = ready.answer(packet)
            if said is None:
                self._counters.ignored["no query"] += 1
            elif isinstance(said, Query):
                number, limit = packet[:2], room(said, over_tcp=False)
                self._forward(said, limit, lambda tail: self._send(sock, number + tail, asker))
            else:
                return self._counted(said)[2:]
        except Exception:
            self._counters.panics += 1
            log.exception("packet_not_answered packet=%s", packet.hex())
        return None

    def _send(self, sock: socket.socket, packet: bytes, asker: Asker) -> None:
        self._counters.rcodes[packet[3] & 15] += 1
        if sock.fileno() < 0:
            return
        try:
            sock.sendto(packet, asker)
        except OSError as error:
            self._not_sent(str(error.strerror))

    def _not_sent(self, reason: str) -> None:
        self._counters.ignored[f"not sent: {reason}"] += 1

    # Both -------------------------------------------------------------------------------------------------------------

    def take(self, workspace: str, packet: bytes, done: Callable[[bytes | None], None]) -> None:
        """Answer one packet as over TCP; *done* is called once, with None when there is to be no answer."""
        try:
            said = answer(self.snapshot.view(workspace), packet, over_tcp=True)
        except Exception:
            self._counters.panics += 1
            log.exception("packet_not_answered packet=%s", packet.hex())
            done(None)
            return
        if isinstance(said, Query):
            number = packet[:2]
            self._forward(said, room(said, over_tcp=True), lambda tail: done(self._counted(number + tail)))
        else:
            done(None if said is None else self._counted(said))

    def _counted(self, packet: bytes) -> bytes:
        self._counters.rcodes[packet[3] & 15] += 1
        return packet

    def _forward(self, query: Query, limit: int, send: Callable[[bytes], None]) -> None:
        def done(found: Cached | None) -> None:
            send(failure(query) if found is None else found.answer.reply(query, limit, found.age_s))

        self._forwarder.ask(query, done)
