"""Telling a name server what to answer: the other end of `astra_dns.control`. Every call blocks, within its bound."""

from __future__ import annotations

import itertools
import socket
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType

from astra_dns import channel
from astra_dns.channel import Message
from astra_dns.records import RunKey, RunNames

TIMEOUT_S = 10.0
"""For one message to be taken, or answered."""
_AT_ONCE = 400
"""Workers in one message: well within its size."""


class Client:
    """
    One connection. Every method raises OSError when the server is gone or does not answer in time.

    Raises:
        OSError: nobody listens at *path*.
    """

    def __init__(self, path: Path, timeout_s: float = TIMEOUT_S) -> None:
        self.channel = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.channel.settimeout(timeout_s)
        try:
            self.channel.connect(str(path))
        except OSError:
            self.channel.close()
            raise

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self.channel.close()

    def hello(self) -> Message:
        return self._ask({"op": "hello"})[0]

    def put(self, run: RunNames) -> None:
        about = {"op": "put", "workspace": run.workspace, "run": run.run, "leader": run.leader, "port": run.port}
        about |= {"attempt": run.attempt, "world_size": run.world_size}
        items = iter(run.addresses.items())
        part = dict(itertools.islice(items, _AT_ONCE))
        while True:
            following = dict(itertools.islice(items, _AT_ONCE))
            self._tell({**about, "addresses": part, "last": not following})
            if not following:
                return
            part = following

    def drop(self, key: RunKey) -> None:
        self._tell({"op": "drop", "workspace": key[0], "run": key[1]})

    def publish(self) -> int:
        """All changes become visible at once. Returns the zone's new serial when they are."""
        return int(self._ask({"op": "publish"})[0]["serial"])

    def listen(self, name: str, workspace: str, descriptor: int) -> None:
        """The server answers on this socket, by a handle of its own; *descriptor* stays the caller's."""
        self._tell({"op": "listen", "name": name, "workspace": workspace}, (descriptor,))

    def unlisten(self, name: str) -> None:
        self._tell({"op": "unlisten", "name": name})

    def take(self, name: str) -> socket.socket | None:
        """A second handle of a socket that the server answers on; None when it has none of this name."""
        _, descriptors = self._ask({"op": "take", "name": name})
        return socket.socket(fileno=descriptors[0]) if descriptors else None

    def query(self, workspace: str, packet: bytes) -> bytes | None:
        """What *workspace* would be answered over TCP; None when that is nothing."""
        found = self._ask({"op": "query", "workspace": workspace, "packet": packet.hex()})[0]["packet"]
        return None if found is None else bytes.fromhex(found)

    def show(self) -> Message:
        """`upstreams` (address: whether it answers), `loops`, `metrics` (text for Prometheus)."""
        return self._ask({"op": "show"})[0]

    def stop(self) -> None:
        """Returns once the server has let go of everything."""
        self._tell({"op": "stop"})
        self.channel.recv(1)

    def _ask(self, message: Message) -> tuple[Message, tuple[int, ...]]:
        self._tell(message)
        try:
            answer = channel.receive(self.channel)
        except ValueError as error:
            raise ConnectionError(f"the name server answers {message['op']} with no message") from error
        if answer is None:
            raise ConnectionError("the name server has gone")
        return answer

    def _tell(self, message: Message, descriptors: Iterable[int] = ()) -> None:
        channel.send(self.channel, message, tuple(descriptors))
