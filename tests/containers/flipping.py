"""
A relay that changes one byte of what goes by, behind every checksum: `python -m tests.containers.flipping PORT AFTER`.

Connections that a firewall rule redirected to it go on to where they were meant for.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import sys
import threading

MARK = 7
"""Set on the relay's own connections, so that they are not redirected again."""
_ORIGINAL = 80
"""SO_ORIGINAL_DST of linux/netfilter_ipv4.h."""


def main() -> None:
    port, after = int(sys.argv[1]), int(sys.argv[2])
    with socket.create_server(("0.0.0.0", port)) as listener:
        print("ready", flush=True)
        while True:
            caller, _ = listener.accept()
            threading.Thread(target=_relay, args=(caller, after), daemon=True).start()


def _relay(caller: socket.socket, after: int) -> None:
    raw = caller.getsockopt(socket.IPPROTO_IP, _ORIGINAL, 16)
    meant = (socket.inet_ntoa(raw[4:8]), struct.unpack_from("!H", raw, 2)[0])
    onward = socket.socket()
    onward.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, MARK)
    onward.bind((caller.getpeername()[0], 0))
    onward.connect(meant)
    threading.Thread(target=_copy, args=(onward, caller, -1), daemon=True).start()
    _copy(caller, onward, after)


def _copy(source: socket.socket, target: socket.socket, flip_at: int) -> None:
    """Byte number *flip_at* has its lowest bit flipped; -1: none has."""
    seen = 0
    with contextlib.suppress(OSError):
        while content := source.recv(1 << 18):
            if seen <= flip_at < seen + len(content):
                changed = bytearray(content)
                changed[flip_at - seen] ^= 1
                content = bytes(changed)
            seen += len(content)
            target.sendall(content)
    for end in (source, target):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


if __name__ == "__main__":
    main()
