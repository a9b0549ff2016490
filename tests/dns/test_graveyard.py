"""Old snapshots are taken apart a little at a time, and only what nobody has any more."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from astra_dns import names
from astra_dns.graveyard import Graveyard
from astra_dns.records import Draft, RunNames
from astra_dns.slices import until_due
from tests.fakes.eventually import until

MANY = 5000


def run(name: str, first: int = 0) -> RunNames:
    found = {f"{name}-{at}": (f"10.0.{(first + at) >> 8 & 255}.{(first + at) & 255}",) for at in range(MANY)}
    return RunNames("nlp", name, found)


async def test_runs_that_have_gone_or_changed_are_emptied_and_those_that_stay_are_not() -> None:
    draft = Draft()
    for name in ("gone", "changed", "stays"):
        draft.put(run(name))
    before = draft.freeze().view("nlp")
    records = dict(before.runs)
    draft.drop(("nlp", "gone"))
    draft.put(run("changed", first=7))
    after = draft.freeze().view("nlp")
    graveyard = Graveyard()
    graveyard.bury_view(before, after)
    await until(lambda: not any(records[name].workers or records[name].reverse for name in (b"gone", b"changed")))
    assert len(records[b"stays"].workers) == MANY
    assert after.runs[b"stays"] is records[b"stays"]
    assert len(after.runs[b"changed"].workers) == MANY
    assert after.find(names.relative("changed-0")) is not None
    assert after.find_reverse(names.reverse("10.0.0.0")) is not None


async def test_what_is_buried_goes_one_after_the_other_and_others_have_their_turn() -> None:
    graveyard = Graveyard()
    first, second = ({str(at).encode(): at for at in range(MANY)} for _ in range(2))
    graveyard.bury(first)
    graveyard.bury(second)
    assert len(first) == MANY
    await asyncio.sleep(0)
    assert len(second) == MANY
    await until(lambda: not first and not second)


def test_long_work_goes_on_where_its_slice_ended() -> None:
    steps = iter(range(10**6))
    slices = 1
    while not until_due(None for _ in steps):
        slices += 1
    assert slices > 1
    assert next(steps, None) is None


def test_a_run_with_one_wrong_worker_changes_nothing() -> None:
    draft = Draft()
    good = RunNames("nlp", "llama", {"llama-0": ("10.0.0.1",)}, "llama-0")
    draft.put(good)
    with pytest.raises(ValueError, match="'other-1' is no worker of run 'llama'"):
        draft.put(replace(good, addresses={"llama-0": ("10.0.0.2",), "other-1": ()}))
    with pytest.raises(ValueError, match="'no address'"):
        draft.put(replace(good, addresses={"llama-0": ("10.0.0.2",), "llama-1": ("no address",)}))
    assert draft.freeze().view("nlp").find(names.relative("llama-0")) == ((1, bytes([10, 0, 0, 1])),)
