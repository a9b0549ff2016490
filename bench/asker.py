"""
Asks questions at a steady rate until its standard input ends; prints the milliseconds that each answer in a zone took.

From right before the question is sent to the kernel's own time of the answer's arrival, so that whatever else keeps
this program from running does not count. The rate is kept whether or not answers come: one that is late does not hide
others.
A process of its own: a thread beside whoever makes a hundred thousand names would measure the wait for its turn.
"""

from __future__ import annotations

import select
import socket
import struct
import sys
import time
from pathlib import Path

import dns.message
import dns.name

LOST_MS = 5000.0
"""What a question counts that nobody answered."""
_LAST_S = 1.0
"""For answers after the last question."""
_SO_TIMESTAMPNS = 35
_TIMES = struct.Struct("@qq")


class Asker:
    def __init__(self, host: str, port: int, questions: list[bytes], counted: list[bool]) -> None:
        self._questions = questions
        self._counted = counted
        self._sent_ns: dict[int, int] = {}
        self._sent = 0
        self.took_ms: list[float] = []
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        self.socket.connect((host, port))
        self.socket.setblocking(False)

    def ask(self) -> None:
        at = self._sent % len(self._questions)
        number = self._sent & 0xFFFF
        self._sent += 1
        packet = number.to_bytes(2, "big") + self._questions[at]
        if self._counted[at]:
            self._sent_ns[number] = time.time_ns()
        self.socket.send(packet)

    def hear(self) -> None:
        while True:
            try:
                packet, about, _, _ = self.socket.recvmsg(4096, 64)
            except BlockingIOError:
                return
            sent_ns = self._sent_ns.pop(int.from_bytes(packet[:2], "big"), None)
            if sent_ns is not None:
                seconds, nanoseconds = _TIMES.unpack(about[0][2])
                self.took_ms.append((seconds * 10**9 + nanoseconds - sent_ns) / 1e6)

    def close(self) -> None:
        self.took_ms += [LOST_MS] * len(self._sent_ns)
        self.socket.close()


def main(host: str, port: int, file: Path, per_s: float, zone: str) -> None:
    lines = [line.split() for line in file.read_text().splitlines()]
    questions = [dns.message.make_query(name, rtype).to_wire()[2:] for name, rtype in lines]
    own = dns.name.from_text(zone)
    asker = Asker(host, port, questions, [dns.name.from_text(name).is_subdomain(own) for name, _ in lines])
    due_s, sleep_s = time.monotonic(), 1 / per_s
    while True:
        readable, _, _ = select.select([asker.socket, sys.stdin], [], [], max(due_s - time.monotonic(), 0))
        if sys.stdin in readable:
            break
        asker.hear()
        while due_s <= time.monotonic():
            asker.ask()
            due_s += sleep_s
    select.select([], [], [], _LAST_S)
    asker.hear()
    asker.close()
    print(*asker.took_ms)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]), float(sys.argv[4]), sys.argv[5])
