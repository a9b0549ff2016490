"""
The stories under `scripts/`. `pytest tests/gang/core/test_scripts.py --rewrite` writes what the core answers into them:
read the difference before you believe it.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import TypeAdapter

from astra_gang.core import (
    Arm,
    ClusterChanged,
    Decision,
    Event,
    GiveBack,
    GivenBack,
    Ignore,
    MachineLost,
    NotPlaced,
    NotReserved,
    Outcome,
    Phase,
    Place,
    Placed,
    Proved,
    Reserve,
    Reserved,
    RunState,
    SlotGone,
    SlotSeen,
    Start,
    Stop,
    StopAsked,
    Tick,
    outstanding,
    step,
)
from astra_gang.core.check import check
from tests.gang.core.script import Story

SCRIPTS = sorted((Path(__file__).parent / "scripts").glob("*.txt"))


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_the_story_goes_as_written(path: Path, request: pytest.FixtureRequest) -> None:
    story, lines = Story(), []
    for line in _commands(path):
        lines.append(line)
        if line and not line.startswith("#"):
            lines += [f"> {answer}" for answer in story.play(line)]
    text = "\n".join(lines) + "\n"
    if request.config.getoption("--rewrite"):
        path.write_text(text)
    assert path.read_text() == text


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_the_story_ends_the_same_with_every_event_twice_and_stale_ones_between(path: Path) -> None:
    past: list[Event] = []

    def meddle(state: RunState, event: Event, now: float) -> RunState:
        stale = [replace(old, rev=old.rev - 1) if isinstance(old, SlotSeen) else old for old in past[-12:]]
        for old in (*[e for e in stale if isinstance(e, SlotSeen | GivenBack | Proved)], event):
            state, _ = step(state, old, now)
        past.append(event)
        return state

    assert _essence(_play(path, Story(meddle))) == _essence(_play(path, Story()))


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_a_coordinator_that_starts_again_after_any_event_wants_the_same(path: Path) -> None:
    stored = TypeAdapter(RunState)

    def meddle(state: RunState, event: Event, now: float) -> RunState:
        again = stored.validate_json(stored.dump_json(state))
        assert again == state
        assert outstanding(again) == outstanding(state)
        return again

    assert _play(path, Story(meddle)) == _play(path, Story())


@pytest.mark.parametrize("phase", list(Phase))
@pytest.mark.parametrize(
    "event",
    [
        Placed(99, (), "ethernet", "lan", ""),
        NotPlaced(99, ""),
        Reserved(99),
        NotReserved(99, ""),
        Proved(("nobody",), "sick", "m-1 is slow", ("m-1",)),
        SlotSeen("nobody", 1, "ready"),
        SlotGone("nobody"),
        MachineLost("nowhere"),
        GivenBack("nobody"),
        ClusterChanged(),
        Tick(),
    ],
    ids=lambda event: type(event).__name__,
)
def test_what_does_not_apply_changes_nothing(phase: Phase, event: Event) -> None:
    state, now = _a_run_in(phase)
    after, decisions = step(state, event, now)
    if phase is Phase.PENDING and isinstance(event, ClusterChanged):
        return
    assert after == state
    assert all(isinstance(decision, Ignore) for decision in decisions)


@pytest.mark.parametrize("phase", [phase for phase in Phase if phase is not Phase.ENDED])
def test_a_stop_ends_a_run_in_every_phase(phase: Phase) -> None:
    """Played to its end: whatever runs is stopped, every slot is given back, and nothing is begun any more."""
    story = _a_story_in(phase)
    outcome = story.run.outcome or Outcome.STOPPED
    held = {w.slot.id for w in story.run.workers if w.slot is not None}
    after: list[Decision] = []

    def feed(event: Event) -> None:
        state, decisions = step(story.run, event, story.now)
        check(state)
        story.state = state
        after.extend(decisions)

    feed(StopAsked())
    while (wanted := [d for d in outstanding(story.run) if isinstance(d, Stop | GiveBack)]) and len(after) < 100:
        for decision in wanted:
            feed(GivenBack(decision.slot) if isinstance(decision, GiveBack) else story.stopped(decision.slot))
    assert (story.run.phase, story.run.outcome) == (Phase.ENDED, outcome)
    assert held <= {decision.slot for decision in after if isinstance(decision, GiveBack)}
    assert not [decision for decision in after if isinstance(decision, Place | Reserve | Arm | Start)]
    assert outstanding(story.run) == ()


def _a_run_in(phase: Phase) -> tuple[RunState, float]:
    story = _a_story_in(phase)
    return story.run, story.now


def _a_story_in(phase: Phase) -> Story:
    """The first of all stories that comes into this phase, played so far."""
    for path in SCRIPTS:
        story = Story()
        for line in _commands(path):
            if not line or line.startswith("#"):
                continue
            story.play(line)
            if story.run.phase is phase and not (phase is Phase.PENDING and story.run.wants_place is False):
                return story
    raise AssertionError(f"no story comes through {phase}")


def _commands(path: Path) -> list[str]:
    return [line for line in path.read_text().splitlines() if not line.startswith("> ")]


def _play(path: Path, story: Story) -> RunState:
    for line in _commands(path):
        if line and not line.startswith("#"):
            story.play(line)
    return story.run


def _essence(state: RunState) -> object:
    """What must not depend on repeats: where the run stands, not which report was the newest."""
    return state.phase, state.reason, state.outcome, state.attempt, state.attempts, [w.failures for w in state.workers]
