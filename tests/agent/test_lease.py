"""The lease, on a clock that the test turns."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from astra_agent.lease import Lease, LeaseKeeper
from tests.agent.machine import until


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def keeper(folder: Path, clock: Clock, boot: str = "b1") -> LeaseKeeper:
    return LeaseKeeper(folder / "lease.json", boot, clock)


def test_it_is_counted_from_when_the_answered_message_was_sent(tmp_path: Path) -> None:
    made = keeper(tmp_path, Clock())
    made.renew(990.0, 60.0)
    assert made.lease == Lease("b1", 990.0, 60.0)
    assert made.lease.ends_s == 1050.0


def test_a_late_answer_to_an_older_message_takes_nothing_back(tmp_path: Path) -> None:
    made = keeper(tmp_path, Clock())
    made.renew(990.0, 60.0)
    made.renew(980.0, 600.0)
    assert made.lease == Lease("b1", 990.0, 60.0)


def test_the_next_agent_goes_on_with_it(tmp_path: Path) -> None:
    keeper(tmp_path, Clock()).renew(990.0, 60.0)
    assert keeper(tmp_path, Clock()).lease == Lease("b1", 990.0, 60.0)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"boot": "b1"}'])
def test_a_file_that_makes_no_sense_is_no_lease(tmp_path: Path, text: str) -> None:
    (tmp_path / "lease.json").write_text(text)
    assert keeper(tmp_path, Clock()).lease is None


def test_another_boot_has_no_lease(tmp_path: Path) -> None:
    keeper(tmp_path, Clock()).renew(990.0, 60.0)
    assert keeper(tmp_path, Clock(), "b2").lease is None


async def test_its_end_is_said_once_and_again_after_the_next(tmp_path: Path) -> None:
    clock, ends = Clock(), list[Lease]()
    made = keeper(tmp_path, clock)
    task = asyncio.create_task(made.run(ends.append))
    made.renew(clock.now_s - 61.0, 60.0)
    await until(lambda: ends)
    await asyncio.sleep(0.02)
    assert len(ends) == 1
    made.renew(clock.now_s, 60.0)
    await asyncio.sleep(0.02)
    assert len(ends) == 1
    clock.now_s += 1000.0
    made.renew(clock.now_s - 61.0, 60.0)
    await until(lambda: len(ends) == 2)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
