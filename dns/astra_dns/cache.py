"""
Upstream answers that were good once, and for how long. Two bounds, on answers and on bytes; the longest unused goes.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from astra_dns.upstream_answer import UpstreamAnswer

STALE_S = 3600.0
"""How long past its time an answer may still stand in when nobody answers (RFC 8767 would allow days)."""
_OVERHEAD_BYTES = 300


@dataclass(frozen=True, slots=True)
class Cached:
    """*age_s*: whole seconds since it was got."""

    answer: UpstreamAnswer
    age_s: int
    fresh: bool


class Cache:
    """Times are seconds on the caller's one clock."""

    def __init__(self, max_answers: int = 10_000, max_bytes: int = 16 << 20) -> None:
        self._max_answers = max_answers
        self._max_bytes = max_bytes
        self._kept: dict[Hashable, tuple[UpstreamAnswer, float]] = {}
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: Hashable, now: float) -> Cached | None:
        """Fresh or stale; None for what is older than stale, or unknown."""
        found = self._kept.pop(key, None)
        if found is None:
            return None
        answer, got_at = found
        if now >= got_at + answer.ttl_s + STALE_S:
            self._bytes -= _size(answer)
            return None
        self._kept[key] = found
        return Cached(answer, int(now - got_at), now < got_at + answer.ttl_s)

    def put(self, key: Hashable, answer: UpstreamAnswer, now: float) -> None:
        """One that may not be kept is not."""
        if answer.ttl_s <= 0 or _size(answer) > self._max_bytes // 16:
            return
        before = self._kept.pop(key, None)
        if before is not None:
            self._bytes -= _size(before[0])
        self._kept[key] = answer, now
        self._bytes += _size(answer)
        while len(self._kept) > self._max_answers or self._bytes > self._max_bytes:
            oldest, _ = self._kept.pop(next(iter(self._kept)))
            self._bytes -= _size(oldest)


def _size(answer: UpstreamAnswer) -> int:
    return len(answer.body) + 8 * len(answer.ttls) + _OVERHEAD_BYTES
