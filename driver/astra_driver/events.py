"""
What the user of a task reads of its slot: from one status to the next, the sentences that are new. Pure, but for the
clock that paces progress.

Nomad keeps ten events of a task, its own included: so few of ours, and progress at growing intervals.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from astra_agent.wire import AttemptStatus, SlotStatus

_LONGEST = 300
_UNTOLD_S = 1.0
"""A slot that is ready as soon as this has nothing to say of how it came to be."""
_PROGRESS_FIRST_S = 3.0
_PROGRESS_MAX_S = 60.0
_STORIES_MAX = 2000
BARRIER = "Waiting at the gang barrier"


@dataclass(slots=True)
class Story:
    """
    One slot's events so far.

    Attributes:
        progress_s: When progress may be told again.
    """

    last: SlotStatus | None = None
    progress: str = ""
    progress_s: float = float("-inf")
    pause_s: float = _PROGRESS_FIRST_S

    def next(self, status: SlotStatus, now: float) -> tuple[str, ...]:
        """The sentences to tell, of *status* at *now* (monotonic seconds)."""
        before, self.last = self.last, status
        if before is None or before.rev >= status.rev:
            return ()
        return tuple(sentence[:_LONGEST] for sentence in (*self._progress(before, status, now), *news(before, status)))

    def _progress(self, before: SlotStatus, status: SlotStatus, now: float) -> Iterator[str]:
        if status.phase != "preparing" or not status.detail or status.detail == self.progress:
            return
        if now < self.progress_s:
            return
        self.progress = status.detail
        self.progress_s = now + self.pause_s
        self.pause_s = min(2 * self.pause_s, _PROGRESS_MAX_S)
        yield status.detail


class Stories:
    """Of all slots. What was there before somebody listened is no news."""

    def __init__(self) -> None:
        self._by_slot: dict[str, Story] = {}
        self._is_first = True

    def next(self, status: SlotStatus, now: float) -> tuple[str, ...]:
        story = self._by_slot.pop(status.slot, None)
        if story is None:
            last = None if self._is_first else _unborn(status)
            story = Story(last, progress_s=now + _UNTOLD_S)
        self._by_slot[status.slot] = story
        if len(self._by_slot) > _STORIES_MAX:
            del self._by_slot[next(iter(self._by_slot))]
        return story.next(status, now)

    def synced(self) -> None:
        """All that is there has been told: what comes now is new."""
        self._is_first = False


def news(before: SlotStatus, status: SlotStatus) -> Iterator[str]:
    """What the change from *before* to *status* is worth telling of, besides progress."""
    if status.told and status.told != before.told:
        yield status.told
    if status.phase == "failed" and before.phase != "failed":
        yield status.detail
    if status.phase == "ready" and before.phase != "ready" and status.starts == "when_told":
        yield BARRIER
    if status.arm_failed is not None and status.arm_failed != before.arm_failed:
        yield f"Attempt {status.arm_failed} did not start: {status.detail}"
    known = {attempt.attempt: attempt for attempt in before.attempts}
    for attempt in status.attempts:
        yield from _of_attempt(known.get(attempt.attempt), attempt)
    if status.stuck and not before.stuck:
        yield status.stuck


def _of_attempt(before: AttemptStatus | None, attempt: AttemptStatus) -> Iterator[str]:
    if attempt.state == "exited" and (before is None or before.state != "exited") and attempt.detail:
        yield attempt.detail


def _unborn(status: SlotStatus) -> SlotStatus:
    """What comes before the first that is known of a slot."""
    changes = {"rev": -1, "phase": "preparing", "detail": "", "attempts": (), "arm_failed": None, "told": ""}
    return status.model_copy(update={**changes, "stuck": None})
