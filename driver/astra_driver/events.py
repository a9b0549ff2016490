"""
What the user of a task reads of its slot: from one status to the next, the sentences that are new. Pure; times are
monotonic seconds.

Nomad keeps ten events of a task, its own included: so few of ours, but for progress while a task is prepared.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from astra_agent.wire import AttemptStatus, SlotStatus

_LONGEST = 300
_UNTOLD_S = 1.0
"""A slot that is ready as soon as this has nothing to say of how it came to be."""
_PROGRESS_EVERY_S = 5.0
_STORIES_MAX = 2000
BARRIER = "Waiting at the gang barrier"


@dataclass(slots=True)
class Story:
    """
    One slot's events so far.

    Attributes:
        progress: The last that was told.
        progress_s: When progress may be told again.
    """

    last: SlotStatus | None
    progress_s: float
    progress: str = ""

    def next(self, status: SlotStatus, now: float) -> tuple[str, ...]:
        """The sentences to tell at once, of *status*."""
        before, self.last = self.last, status
        if before is None or before.rev >= status.rev:
            return ()
        return tuple(sentence[:_LONGEST] for sentence in (*self.paced(now), *news(before, status)))

    def paced(self, now: float) -> Iterator[str]:
        """The newest progress, if its time has come."""
        if self.last is not None and self.is_held and now >= self.progress_s:
            self.progress, self.progress_s = self.last.detail, now + _PROGRESS_EVERY_S
            yield self.progress[:_LONGEST]

    @property
    def is_held(self) -> bool:
        """There is progress that has not been told."""
        last = self.last
        return last is not None and last.phase == "preparing" and last.detail not in ("", self.progress)


class Stories:
    """Of all slots. What was there before somebody listened is no news."""

    def __init__(self) -> None:
        self._by_slot: dict[str, Story] = {}
        self._held: dict[str, Story] = {}
        self._is_first = True

    def next(self, status: SlotStatus, now: float) -> tuple[str, ...]:
        story = self._by_slot.pop(status.slot, None)
        if story is None:
            last = None if self._is_first else _unborn(status)
            story = Story(last, progress_s=now + _UNTOLD_S)
        self._by_slot[status.slot] = story
        if len(self._by_slot) > _STORIES_MAX:
            oldest = next(iter(self._by_slot))
            del self._by_slot[oldest]
            self._held.pop(oldest, None)
        told = story.next(status, now)
        self._hold(status.slot, story)
        return told

    def late(self, now: float) -> Iterator[tuple[SlotStatus, str]]:
        """Progress that came too soon after other, and whose time has come since."""
        for slot, story in tuple(self._held.items()):
            for sentence in story.paced(now):
                if story.last is not None:
                    yield story.last, sentence
            self._hold(slot, story)

    def pause_s(self, now: float) -> float | None:
        """Until there is something late. None: not before the next status."""
        return max(0.0, min(story.progress_s for story in self._held.values()) - now) if self._held else None

    def _hold(self, slot: str, story: Story) -> None:
        if story.is_held:
            self._held[slot] = story
        else:
            self._held.pop(slot, None)

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
