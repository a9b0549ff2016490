"""
Reports on their way to the coordinator: in order, sent again until acknowledged, the newest status of a slot in the
place of an older one that has not been sent. Nothing here needs to be durable: a hello carries everything.
"""

from __future__ import annotations

import asyncio
from collections import deque

from astra_agent.wire import Report, SlotStatus

_WINDOW = 64
"""Reports that may be on their way at once; the rest waits, and melts together meanwhile."""


class Outbox:
    def __init__(self) -> None:
        self._waiting: dict[str, SlotStatus] = {}
        self._sent: deque[Report] = deque()
        self._seq = 0
        self._changed = asyncio.Event()

    def put(self, status: SlotStatus) -> None:
        self._waiting[status.slot] = status
        self._changed.set()

    async def next(self) -> Report:
        """The next report to send. What is sent stays here until it is acknowledged."""
        while not self._waiting or len(self._sent) >= _WINDOW:
            self._changed.clear()
            await self._changed.wait()
        slot = next(iter(self._waiting))
        self._seq += 1
        report = Report(seq=self._seq, status=self._waiting.pop(slot))
        self._sent.append(report)
        return report

    def acknowledge(self, seq: int) -> tuple[SlotStatus, ...]:
        """Everything up to *seq* has arrived, since reports travel in order. Returns what that was."""
        arrived = []
        while self._sent and self._sent[0].seq <= seq:
            arrived.append(self._sent.popleft().status)
        self._changed.set()
        return tuple(arrived)

    def resend(self) -> None:
        """The link was lost: what was sent and not acknowledged comes first again, unless something newer waits."""
        again = {report.status.slot: report.status for report in self._sent}
        self._sent.clear()
        self._waiting = again | self._waiting
        self._changed.set()
