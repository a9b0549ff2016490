"""
Between a name server and whoever runs it: one JSON object for each message, on a unix socket that keeps messages apart
(SOCK_SEQPACKET) and carries sockets along.
"""

from __future__ import annotations

import json
import os
import socket
from typing import Any

MESSAGE_BYTES = 65536
PROTOCOL = 1

Message = dict[str, Any]


def send(channel: socket.socket, message: Message, descriptors: tuple[int, ...] = ()) -> None:
    """Blocks, or raises BlockingIOError, as the socket is set. Raises: OSError when the other side is gone."""
    socket.send_fds(channel, [json.dumps(message, separators=(",", ":")).encode()], list(descriptors))


def receive(channel: socket.socket) -> tuple[Message, tuple[int, ...]] | None:
    """
    The next message with the descriptors that came along, which are the caller's; None at the end.

    Raises:
        OSError: the connection is broken.
        ValueError: that was no message.
    """
    data, descriptors, flags, _ = socket.recv_fds(channel, MESSAGE_BYTES, 4)
    if not data:
        return None
    try:
        message = json.loads(data)
        if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC) or not isinstance(message, dict):
            raise ValueError("a message that is too long, or no object")
    except ValueError:
        for descriptor in descriptors:
            os.close(descriptor)
        raise
    return message, tuple(descriptors)
