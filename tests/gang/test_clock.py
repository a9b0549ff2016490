from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path

import astra_gang
from astra_gang.clock import BoottimeClock, Reading, rfc3339
from tests.fakes.clock import EPOCH, FakeClock


def boottime_s() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def test_a_new_cluster_starts_near_zero() -> None:
    assert 0 <= BoottimeClock().now() < 60


def test_in_the_same_boot_it_goes_on_as_if_the_coordinator_had_never_stopped() -> None:
    past = Reading("this", seconds=5000.0, boottime_s=boottime_s() - 100, wall_s=0.0)
    assert 5100 <= BoottimeClock([past], boot="this").now() < 5160


def test_after_a_boot_it_goes_on_from_the_last_record_plus_the_time_since_the_boot() -> None:
    past = Reading("earlier", seconds=5000.0, boottime_s=9e9, wall_s=0.0)
    before = boottime_s()
    assert 5000 + before <= BoottimeClock([past], boot="this").now() < 5000 + before + 60


def test_on_another_machine_that_has_been_up_for_long_it_goes_on_from_the_last_record() -> None:
    past = Reading("of the other", seconds=5000.0, boottime_s=1.0, wall_s=0.0)
    assert 5000 <= BoottimeClock([past], boot="this", shared=True).now() < 5060


def test_a_wall_clock_that_was_wrong_in_an_earlier_boot_does_not_touch_durations() -> None:
    past = [
        Reading("one", seconds=100.0, boottime_s=100.0, wall_s=86400.0 * 365 * 80),
        Reading("two", seconds=200.0, boottime_s=50.0, wall_s=-7200.0),
    ]
    assert BoottimeClock(past, boot="three").now() >= 200


def test_a_moment_of_an_earlier_boot_is_shown_by_the_wall_clock_of_that_boot() -> None:
    past = Reading("one", seconds=100.0, boottime_s=100.0, wall_s=1_700_000_100.0)
    clock = BoottimeClock([past], boot="two")
    assert clock.wall(40.0) == datetime.fromtimestamp(1_700_000_040.0, UTC)
    assert abs(clock.wall(clock.now()).timestamp() - time.time()) < 5


def test_a_reading_makes_the_next_clock_agree_with_this_one() -> None:
    clock = BoottimeClock()
    again = BoottimeClock([clock.reading()])
    assert abs(again.now() - clock.now()) < 1


async def test_sleeping_ends_when_the_time_has_come() -> None:
    clock = BoottimeClock()
    until = clock.now() + 0.02
    await clock.sleep_until(until)
    assert clock.now() >= until


def test_no_other_module_of_the_coordinator_reads_a_clock() -> None:
    folder = Path(astra_gang.__file__).parent
    asked = ("time.time(", "time.monotonic(", "clock_gettime(", "datetime.now(", ".utcnow(", "loop().time(")
    found = [f.name for f in folder.rglob("*.py") if any(call in f.read_text() for call in asked)]
    assert found == ["clock.py"]


def test_times_are_shown_in_utc_with_their_zone() -> None:
    assert rfc3339(FakeClock().wall(0.25)) == "2025-01-01T00:00:00.250Z"
    assert FakeClock().wall(0).timestamp() == EPOCH
