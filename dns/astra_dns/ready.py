"""
Answers that were given before, whole: the hot path is one look into a dictionary, from what was asked to what is said.

Clients of one kind send the same bytes for the same question, but for the ID. What differs each time (a cookie, letters
in random case) is composed anew, which costs twice as much and is not kept for long.
"""

from __future__ import annotations

from astra_dns.answer import answer
from astra_dns.query import Query
from astra_dns.records import View

KEPT = 65536
"""Answers at most, about 20 MB; past it all are forgotten: a flood of new ones has pushed out whatever was good."""
KEPT_BYTES = 128
"""Longer queries than a name and an OPT record are nobody's daily question."""


class Ready:
    """Of one view, over UDP: another snapshot has a `Ready` of its own, so nothing here is ever out of date."""

    __slots__ = ("answers", "get", "view")

    def __init__(self, view: View) -> None:
        self.view = view
        self.answers: dict[bytes, bytes] = {}
        self.get = self.answers.get
        """By a packet without its ID: the answer without its ID, when it was given before."""

    def answer(self, packet: bytes) -> bytes | Query | None:
        """As `astra_dns.answer.answer`."""
        found = self.get(packet[2:])
        if found is not None:
            return packet[:2] + found
        said = answer(self.view, packet)
        if said.__class__ is bytes and len(packet) <= KEPT_BYTES:
            if len(self.answers) >= KEPT:
                self.answers.clear()
            self.answers[packet[2:]] = said[2:]
        return said

    def __len__(self) -> int:
        return len(self.answers)
