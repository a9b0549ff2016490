"""
An all-reduce around a ring of TCP connections: one thread, no copy but the sum, every element checked as it arrives.

The buffer is cut into as many segments as there are positions. In the first half of the steps each position adds its
own to the segment that comes in and hands the sum on; in the second half finished segments go around. A chunk is
handed on as soon as it is summed, so the connection never waits for a whole segment. Several connections to the next
position share the buffer, a lane each.
"""

from __future__ import annotations

import itertools
import select
import socket
import time
from collections.abc import Sequence

import numpy as np

from astra_netprobe import pattern
from astra_netprobe.pattern import ELEMENT, Floats

CHUNK = 8 * pattern.BLOCK
"""Elements: 512 KiB. Larger ones gain 2 %, smaller ones lose more to Python."""
_CHUNK_BYTES = CHUNK * ELEMENT
_SEND_MAX = 1 << 20


class Broken(Exception):
    """The ring does not go on: *towards* the next position, or from the previous one."""

    def __init__(self, reason: str, *, towards: bool) -> None:
        super().__init__(reason)
        self.towards = towards


class Lane:
    """
    One connection to the next position and one from the previous, with their share of the buffer.

    Args:
        outgoing, incoming: Connected, without blocking.
        elements: Of this lane's share.
    """

    def __init__(
        self, outgoing: socket.socket, incoming: socket.socket, *, position: int, count: int, elements: int
    ) -> None:
        self.outgoing = outgoing
        self.incoming = incoming
        self.wrong = 0
        self._steps = 2 * (count - 1)
        bounds = [i * elements // count for i in range(count + 1)]
        own = np.empty(elements, np.float32)
        result = np.empty(elements, np.float32)
        for begin, end in itertools.pairwise(bounds):
            pattern.fill(own[begin:end], position)
        segments = [(position - step) % count for step in range(self._steps + 1)]
        self._bounds = [(bounds[segment], bounds[segment + 1]) for segment in segments]
        """Of what is sent in each step; what comes in during a step is sent in the next."""
        self._own = own
        self._result = result
        self._own_bytes = own.data.cast("B")
        self._result_bytes = result.data.cast("B")
        self._scratch: Floats = np.empty(min(CHUNK, max(elements, 1)), np.float32)
        self._scratch_bytes = self._scratch.data.cast("B")
        self._reducing = count - 1
        self._position = position
        self._count = count
        self._expected = pattern.block([position])
        self.begin()

    def begin(self) -> None:
        """Another all-reduce, of the same values."""
        self._out_step, self._out_at = 0, 0
        self._in_step, self._in_done, self._in_fill = -1, 0, 0
        self._members = (0, 0)
        self._next_in_step()

    @property
    def is_done(self) -> bool:
        return self._in_step >= self._steps and self._out_step >= self._steps

    @property
    def wants_in(self) -> bool:
        return self._in_step < self._steps

    @property
    def wants_out(self) -> bool:
        return self._out_step < self._steps and self._allowed() > self._out_at

    # In ---------------------------------------------------------------------------------------------------------------

    def receive(self) -> bool:
        """
        Take what is there, up to the end of a chunk. Returns whether anything came.

        Raises:
            Broken: The previous position is gone.
        """
        if not self.wants_in:
            return False
        begin, end = self._bounds[self._in_step + 1]
        chunk = min(_CHUNK_BYTES, (end - begin) * ELEMENT - self._in_done)
        if self._in_step < self._reducing:
            target = self._scratch_bytes[self._in_fill : chunk]
        else:
            at = begin * ELEMENT + self._in_done
            target = self._result_bytes[at + self._in_fill : at + chunk]
        try:
            got = self.incoming.recv_into(target)
        except BlockingIOError:
            return False
        except OSError as error:
            raise Broken(f"the connection broke: {error.strerror}", towards=False) from error
        if got == 0:
            raise Broken("the connection was closed", towards=False)
        self._in_fill += got
        if self._in_fill == chunk:
            self._take(begin + self._in_done // ELEMENT, chunk // ELEMENT)
            self._in_done, self._in_fill = self._in_done + chunk, 0
            if self._in_done == (end - begin) * ELEMENT:
                self._next_in_step()
        return True

    def _take(self, at: int, elements: int) -> None:
        """A whole chunk has come: check it and, in the first half, add our own."""
        if self._in_step < self._reducing:
            came = self._scratch[:elements]
            self.wrong += pattern.check(came, self._expected)
            np.add(came, self._own[at : at + elements], out=self._result[at : at + elements])
        else:
            self.wrong += pattern.check(self._result[at : at + elements], self._expected)

    def _next_in_step(self) -> None:
        self._in_done = 0
        while True:
            self._in_step += 1
            step = self._in_step
            if step >= self._steps:
                return
            if step < self._reducing:
                sender = (self._position - step - 1) % self._count
                self._members = (self._members[0] + 1, self._members[1] + pattern.offset(sender))
                self._expected = pattern.summed(*self._members)
            elif step == self._reducing:
                self._expected = pattern.block(range(self._count))
            begin, end = self._bounds[step + 1]
            if end > begin:
                return

    # Out --------------------------------------------------------------------------------------------------------------

    def send(self) -> bool:
        """
        Hand on what is summed. Returns whether anything went.

        Raises:
            Broken: The next position is gone.
        """
        if self._out_step >= self._steps:
            return False
        allowed = self._allowed()
        begin, end = self._bounds[self._out_step]
        if allowed > self._out_at:
            at = begin * ELEMENT
            source = self._own_bytes if self._out_step == 0 else self._result_bytes
            try:
                went = self.outgoing.send(source[at + self._out_at : at + min(allowed, self._out_at + _SEND_MAX)])
            except BlockingIOError:
                return False
            except OSError as error:
                raise Broken(f"the connection broke: {error.strerror}", towards=True) from error
            self._out_at += went
        elif end > begin:
            return False
        if self._out_at == (end - begin) * ELEMENT:
            self._out_step, self._out_at = self._out_step + 1, 0
        return True

    def _allowed(self) -> int:
        """Bytes of the current step's segment that may go: what was summed of it."""
        begin, end = self._bounds[self._out_step]
        if self._out_step == 0 or self._in_step >= self._out_step:
            return (end - begin) * ELEMENT
        return self._in_done if self._in_step == self._out_step - 1 else 0


def all_reduce(lanes: Sequence[Lane], *, deadline: float, stall_s: float) -> float:
    """
    One all-reduce over all lanes.

    Args:
        deadline: Monotonic seconds.
        stall_s: Without one byte in or out for so long, the ring is broken.
    Returns:
        Seconds, by this position's own clock.
    Raises:
        Broken: As soon as it is known.
    """
    started = time.monotonic()
    for lane in lanes:
        lane.begin()
    pending = list(lanes)
    while pending:
        moved = False
        for lane in pending:
            moved = lane.receive() or moved
            moved = lane.send() or moved
        if moved:
            pending = [lane for lane in pending if not lane.is_done]
        else:
            _wait(pending, min(stall_s, deadline - time.monotonic()))
    return time.monotonic() - started


def _wait(lanes: Sequence[Lane], seconds: float) -> None:
    incoming = [lane.incoming for lane in lanes if lane.wants_in]
    outgoing = [lane.outgoing for lane in lanes if lane.wants_out]
    readable, writable, _ = select.select(incoming, outgoing, [], max(0.0, seconds))
    if not readable and not writable:
        raise Broken("nothing moves any more", towards=bool(outgoing))
