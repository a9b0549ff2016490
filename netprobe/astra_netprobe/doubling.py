"""
An all-reduce of small messages by recursive doubling: in step k each position exchanges what it has with the one whose
number differs in bit k. The time is that of log2(n) messages, where a ring takes 2(n - 1).

Positions past the last power of two hand theirs to a partner first, and get the sum from it at the end.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

from astra_netprobe import pattern
from astra_netprobe.pattern import Floats
from astra_netprobe.ring import Broken

SIZE_MAX = 1 << 16
"""Bytes. Two positions send to one another before they read: that much always fits into the sockets' buffers."""

AWAKE_S = 2e-4
"""How long an answer is looked for before the process sleeps; in between, whoever else wants the core has it."""


def peers(position: int, count: int) -> tuple[int, ...]:
    """Whom *position* exchanges messages with, in the order of steps."""
    power = 1 << (count.bit_length() - 1)
    if position >= power:
        return (position - power,)
    steps = tuple(position ^ (1 << bit) for bit in range(power.bit_length() - 1))
    return (position + power, *steps) if position + power < count else steps


class _Wanted(NamedTuple):
    """What is to come. *packed* tells in a fraction of the time of `pattern.check` that all is well."""

    values: Floats
    packed: bytes


class Doubling:
    """
    Args:
        connections: To each of `peers`, connected, blocking with a timeout of their own (SO_RCVTIMEO).
    """

    def __init__(self, connections: Mapping[int, socket.socket], *, position: int, count: int, elements: int) -> None:
        self.wrong: dict[int, int] = {}
        self._connections = connections
        self._position = position
        self._count = count
        self._power = 1 << (count.bit_length() - 1)
        self._own: Floats = np.empty(elements, np.float32)
        pattern.fill(self._own, position)
        self._sum: Floats = np.empty(elements, np.float32)
        self._came: Floats = np.empty(elements, np.float32)
        self._came_bytes = self._came.data.cast("B")
        self._sum_bytes = self._sum.data.cast("B")
        self._steps = [(peer, *self._expected(peer)) for peer in peers(position, count)]

    def all_reduce(self) -> float:
        """Seconds, by this position's own clock. Raises: Broken."""
        started = time.monotonic()
        np.copyto(self._sum, self._own)
        for peer, before, after in self._steps:
            if peer == self._position + self._power:
                self._receive(peer, before)
            elif peer == self._position - self._power:
                self._send(peer)
                self._receive(peer, after, replace=True)
            else:
                self._send(peer)
                self._receive(peer, before)
        if self._position + self._power < self._count:
            self._send(self._position + self._power)
        return time.monotonic() - started

    def _expected(self, peer: int) -> tuple[_Wanted, _Wanted]:
        """What *peer* hands us, and what it hands back when it holds the whole sum."""
        whole = self._wanted(range(self._count))
        if peer == self._position + self._power:
            return self._wanted([peer]), whole
        bit = (peer ^ self._position).bit_length() - 1
        group = [other for other in range(self._power) if other >> bit == peer >> bit]
        extra = [other + self._power for other in group if other + self._power < self._count]
        return self._wanted([*group, *extra]), whole

    def _wanted(self, positions: Iterable[int]) -> _Wanted:
        values = pattern.block(positions)[: len(self._came)]
        return _Wanted(values, values.tobytes())

    def _send(self, peer: int) -> None:
        try:
            self._connections[peer].sendall(self._sum_bytes)
        except OSError as error:
            raise Broken(f"the connection broke: {error.strerror or error}", towards=True) from error

    def _receive(self, peer: int, wanted: _Wanted, *, replace: bool = False) -> None:
        at, connection = 0, self._connections[peer]
        while at < len(self._came_bytes):
            try:
                got = _read(connection, self._came_bytes[at:])
            except OSError as error:
                raise Broken(f"nothing comes any more: {error.strerror or error}", towards=False) from error
            if got == 0:
                raise Broken("the connection was closed", towards=False)
            at += got
        if self._came_bytes.tobytes() != wanted.packed:
            self.wrong[peer] = self.wrong.get(peer, 0) + pattern.check(self._came, wanted.values)
        if replace:
            np.copyto(self._sum, self._came)
        else:
            np.add(self._sum, self._came, out=self._sum)


def _read(connection: socket.socket, target: memoryview) -> int:
    """As `recv_into`. A process that sleeps is woken up for longer than a near machine takes to answer."""
    until = time.monotonic() + AWAKE_S
    while time.monotonic() < until:
        os.sched_yield()
        with contextlib.suppress(BlockingIOError):
            return connection.recv_into(target, 0, socket.MSG_DONTWAIT)
    return connection.recv_into(target)
