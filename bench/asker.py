"""
Asks one question again and again until its standard input ends; prints the milliseconds that each answer took.

A process of its own: a thread beside whoever makes a hundred thousand names would measure the wait for its turn.
"""

from __future__ import annotations

import select
import socket
import sys
import time

import dns.message

PAUSE_S = 0.0005


def main(host: str, port: int, name: str) -> None:
    query = dns.message.make_query(name, "A").to_wire()
    took_ms = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.connect((host, port))
        sock.settimeout(5.0)
        while not select.select([sys.stdin], [], [], PAUSE_S)[0]:
            began = time.perf_counter()
            sock.send(query)
            sock.recv(4096)
            took_ms.append((time.perf_counter() - began) * 1000)
    print(*took_ms)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
