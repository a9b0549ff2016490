"""
Many packets of a socket for two calls into the kernel: recvmmsg and sendmmsg, which Python's sockets do not have.

A packet and its answer share one place: the ID stays where it is, the answer goes behind it, and the address that it
came from is the one that it goes to, never looked at by us.

A packet that is alone goes by the socket's own calls: these two are made by ctypes, which costs more than the answer
when it was not needed for a while, and there is no other packet to share that with.
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import sys
from collections.abc import Callable
from typing import Any

BURST = 32
"""Packets of one socket before the others have their turn."""
PACKET_BYTES = 4096
_ADDRESS_BYTES = 28
"""Of a `sockaddr_in6`."""
_AGAIN = frozenset({errno.EAGAIN, errno.EINTR})

Answers = Callable[[bytes], bytes | None]
"""From what was asked to what is said, both without their ID; None when that has to be composed."""
Asker = tuple[Any, ...]
"""An address as `recvfrom` gives it."""
Rare = Callable[[bytes, Asker], bytes | None]
"""From a packet, and whom it is from, to what is said without its ID; None when that is nothing, or comes later."""


class _Piece(ctypes.Structure):
    """`struct iovec`."""

    _fields_ = (("base", ctypes.c_void_p), ("size", ctypes.c_size_t))


class _Header(ctypes.Structure):
    """`struct mmsghdr`: a `struct msghdr`, and how much was received."""

    _fields_ = (
        ("name", ctypes.c_void_p), ("name_size", ctypes.c_uint32), ("pieces", ctypes.c_void_p),
        ("pieces_count", ctypes.c_size_t), ("control", ctypes.c_void_p), ("control_size", ctypes.c_size_t),
        ("flags", ctypes.c_int), ("unused", ctypes.c_uint32), ("received", ctypes.c_uint32),
    )  # fmt: skip


_HEADER_BYTES = ctypes.sizeof(_Header)
_libc = ctypes.CDLL(None, use_errno=True)
_receive = _libc.recvmmsg
_receive.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_uint, ctypes.c_int, ctypes.c_void_p)
_send = _libc.sendmmsg
_send.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_uint, ctypes.c_int)


class Burst:
    """
    Room for `BURST` packets. One is enough for all sockets of a loop: between two turns it holds nothing.

    Args:
        failed: Told of an answer that can't be sent, with the reason.
    """

    def __init__(self, failed: Callable[[str], None]) -> None:
        self._failed = failed
        self._memory = ctypes.create_string_buffer(BURST * PACKET_BYTES)
        self._addresses = ctypes.create_string_buffer(BURST * _ADDRESS_BYTES)
        self._pieces = (_Piece * BURST)()
        self._headers = (_Header * BURST)()
        for number in range(BURST):
            self._pieces[number] = _Piece(ctypes.addressof(self._memory) + number * PACKET_BYTES, PACKET_BYTES)
            self._headers[number] = _Header(
                ctypes.addressof(self._addresses) + number * _ADDRESS_BYTES, _ADDRESS_BYTES,
                ctypes.addressof(self._pieces) + number * ctypes.sizeof(_Piece), 1,
            )  # fmt: skip
        memory = memoryview(self._memory).cast("B")
        self._places = tuple(memory[at : at + PACKET_BYTES] for at in range(0, len(memory), PACKET_BYTES))
        self._sizes = memoryview(self._pieces).cast("B").cast("Q")[1::2]
        headers = memoryview(self._headers).cast("B")
        self._received = headers.cast("I")[_Header.received.offset // 4 :: _HEADER_BYTES // 4]
        self._crowded = False
        """The turn before found more than one packet."""
        self._made = tuple((part, part.tobytes()) for part in (headers, memoryview(self._pieces).cast("B")))

    def turn(self, sock: socket.socket, said: Answers, rcodes: list[int], rare: Rare) -> int:
        """
        Answer what waits in *sock*, which does not block, `BURST` packets at most. Returns how many there were.

        Args:
            rcodes: Answers of *said* by their code; added to.
            rare: Asked for what *said* has no answer to. May not raise.

        Raises: OSError when nothing can be received.
        """
        if self._crowded:
            count = self._many(sock, BURST, said, rcodes, rare)
        elif count := self._one(sock, said, rcodes, rare):
            count += self._many(sock, BURST - 1, said, rcodes, rare)
        self._crowded = count > 1
        return count

    def _one(self, sock: socket.socket, said: Answers, rcodes: list[int], rare: Rare) -> int:
        try:
            packet, asker = sock.recvfrom(PACKET_BYTES)
        except (BlockingIOError, InterruptedError):
            return 0
        answer = said(packet[2:])
        if answer is not None:
            rcodes[answer[1] & 15] += 1
        else:
            answer = rare(packet, asker)
        if answer is not None:
            try:
                sock.sendto(packet[:2] + answer, asker)
            except OSError as error:
                self._failed(str(error.strerror))
        return 1

    def _many(self, sock: socket.socket, limit: int, said: Answers, rcodes: list[int], rare: Rare) -> int:
        descriptor = sock.fileno()
        count: int = _receive(descriptor, self._headers, limit, socket.MSG_DONTWAIT, None)
        if count < 0:
            if ctypes.get_errno() in _AGAIN:
                return 0
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        sizes, places = self._sizes, self._places
        begin = 0
        for number, size in enumerate(self._received[:count].tolist()):
            place = places[number]
            answer = said(place[2:size].tobytes())
            if answer is not None:
                rcodes[answer[1] & 15] += 1
            else:
                answer = rare(place[:size].tobytes(), self._asker(number))
            if answer is not None:
                end = len(answer) + 2
                place[2:end] = answer
                sizes[number] = end
            else:
                self._send(descriptor, begin, number)
                begin = number + 1
        self._send(descriptor, begin, count)
        for part, as_made in self._made:
            part[:] = as_made
        return count

    def _send(self, descriptor: int, begin: int, end: int) -> None:
        """Answers *begin* to *end*; one that can't be sent is left out."""
        first = ctypes.addressof(self._headers)
        while begin < end:
            sent: int = _send(descriptor, first + begin * _HEADER_BYTES, end - begin, socket.MSG_DONTWAIT)
            if sent < 0:
                self._failed(os.strerror(ctypes.get_errno()))
            begin += max(sent, 1)

    def _asker(self, number: int) -> Asker:
        raw = self._addresses.raw[number * _ADDRESS_BYTES : (number + 1) * _ADDRESS_BYTES]
        family, port = int.from_bytes(raw[:2], sys.byteorder), int.from_bytes(raw[2:4], "big")
        if family == socket.AF_INET:
            return socket.inet_ntop(family, raw[4:8]), port
        return socket.inet_ntop(family, raw[8:24]), port, 0, int.from_bytes(raw[24:28], sys.byteorder)
