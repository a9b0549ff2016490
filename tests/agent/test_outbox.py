"""Reports: in order, again until acknowledged, the newest in the place of an older one that was not sent."""

from __future__ import annotations

import asyncio

import pytest

from astra_agent.outbox import Outbox
from astra_agent.wire import RunRef, SlotStatus


def status(slot: str, rev: int) -> SlotStatus:
    return SlotStatus(slot=slot, rev=rev, run=RunRef(workspace="d", name="r", uid="u"), worker="w", phase="preparing")


async def sent(outbox: Outbox) -> list[tuple[str, int]]:
    found: list[tuple[str, int]] = []
    while True:
        try:
            async with asyncio.timeout(0.01):
                report = await outbox.next()
        except TimeoutError:
            return found
        found.append((report.status.slot, report.status.rev))


async def test_the_newest_takes_the_place_of_an_older_one_that_waits() -> None:
    outbox = Outbox()
    for slot, rev in (("a", 1), ("b", 2), ("a", 3)):
        outbox.put(status(slot, rev))
    assert await sent(outbox) == [("a", 3), ("b", 2)]


async def test_what_was_not_acknowledged_comes_again_first() -> None:
    outbox = Outbox()
    for slot, rev in (("a", 1), ("b", 2), ("c", 3)):
        outbox.put(status(slot, rev))
    await sent(outbox)
    assert [one.slot for one in outbox.acknowledge(1)] == ["a"]
    outbox.put(status("d", 4))
    outbox.put(status("b", 5))
    outbox.resend()
    assert await sent(outbox) == [("b", 5), ("c", 3), ("d", 4)]


async def test_an_acknowledgement_covers_all_before_it() -> None:
    outbox = Outbox()
    for rev in range(5):
        outbox.put(status(f"s{rev}", rev))
    await sent(outbox)
    assert len(outbox.acknowledge(5)) == 5
    assert outbox.acknowledge(5) == ()
    outbox.resend()
    assert await sent(outbox) == []


async def test_few_are_under_way_at_once_and_the_rest_melts_together() -> None:
    outbox = Outbox()
    for rev in range(100):
        outbox.put(status(f"s{rev}", rev))
    first = await sent(outbox)
    outbox.put(status("s99", 1000))
    outbox.acknowledge(len(first))
    rest = await sent(outbox)
    assert len(first) < 100
    assert ("s99", 1000) in rest
    assert len(first) + len(rest) == 100


@pytest.mark.parametrize("again", [1, 2])
async def test_a_lost_link_twice_changes_nothing(again: int) -> None:
    outbox = Outbox()
    outbox.put(status("a", 1))
    await sent(outbox)
    for _ in range(again):
        outbox.resend()
    assert await sent(outbox) == [("a", 1)]
