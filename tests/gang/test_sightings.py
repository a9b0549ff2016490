"""What is made of an agent's words and of its silence."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from astra_agent import wire
from astra_gang.core import Assignment, AttemptSeen, RunState, Slot, SlotSeen
from astra_gang.sightings import PUT_GRACE_S, lost_at, missing, missing_due, slot_seen
from tests.fakes.runs import record


def test_nothing_that_an_agent_says_of_a_slot_is_left_out() -> None:
    attempt = wire.AttemptStatus(
        attempt=2, state="exited", code=137, code_unknown=True, oom=True, detail="d", fault="machine"
    )
    status = wire.SlotStatus(
        slot="s0",
        rev=7,
        run=wire.RunRef(workspace="default", name="llama", uid="u1"),
        worker="llama-0",
        phase="failed",
        detail="no such image",
        fault="user",
        address="10.0.0.1",
        port=29500,
        attempts=(attempt,),
        arm_failed=2,
        stuck="process 4711 does not die",
    )
    seen = slot_seen(status)
    for field in fields(SlotSeen):
        if field.name != "attempts":
            assert getattr(seen, field.name) == getattr(status, field.name)
    for field in fields(AttemptSeen):
        assert getattr(seen.attempts[0], field.name) == getattr(attempt, field.name)


def holding(rev: int, *, asked_at: float = 100.0, **changes: object) -> RunState:
    state = record().state
    slot = Slot("s0", "m1", rev=rev, asked_at=asked_at)
    workers = (replace(state.workers[0], slot=slot), *state.workers[1:])
    return replace(state, workers=workers, **changes)  # type: ignore[arg-type]  # names are RunState's


@pytest.mark.parametrize(
    ("state", "known", "now", "found"),
    [
        (holding(rev=3), {"s0"}, 101.0, []),
        (holding(rev=3), set(), 101.0, ["s0"]),
        (holding(rev=-1), set(), 101.0, []),
        (holding(rev=-1), set(), 100.0 + PUT_GRACE_S, ["s0"]),
        (holding(rev=-1, assignments=(Assignment(0, "m1", slot="s0"),)), set(), 1e9, []),
    ],
    ids=["it has it", "it had it once", "just asked for", "asked for long ago", "being put"],
)
def test_a_slot_is_missed_when_its_agent_should_have_it(
    state: RunState, known: set[str], now: float, found: list[str]
) -> None:
    assert missing(state, "m1", known, now) == found
    assert missing(state, "m2", known, now) == []


def test_the_moment_is_known_at_which_a_slot_will_be_missed() -> None:
    assert missing_due(holding(rev=-1), "m1", set()) == 100.0 + PUT_GRACE_S
    assert missing_due(holding(rev=-1), "m1", {"s0"}) is None


def test_a_machine_is_lost_after_the_limit_the_grace_time_of_the_run_and_the_margin() -> None:
    state = record().state
    state = replace(state, policy=replace(state.policy, stop_grace_s=45.0))
    assert lost_at(state, heard_at=1000.0, limit_s=60.0, margin_s=15.0) == 1120.0
