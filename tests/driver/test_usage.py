from __future__ import annotations

import pytest

from astra_agent.wire import SlotUsage
from astra_driver.proto.driver_pb2 import CPUUsage, MemoryUsage
from astra_driver.usage import Sample, mhz_of, resource_usage


def test_percentages_are_of_one_processor_between_two_samples() -> None:
    before = Sample(SlotUsage(cpu_user_ns=1_000_000_000, cpu_system_ns=0), 10.0)
    now = Sample(SlotUsage(cpu_user_ns=2_500_000_000, cpu_system_ns=500_000_000), 11.0)
    cpu = resource_usage(before, now, 2000.0).cpu
    assert (cpu.user_mode, cpu.system_mode, cpu.percent) == pytest.approx((150.0, 50.0, 200.0))
    assert cpu.total_ticks == pytest.approx(4000.0)


def test_a_first_sample_and_one_of_a_newer_attempt_have_no_percentage() -> None:
    used = Sample(SlotUsage(cpu_user_ns=5_000_000_000), 10.0)
    newer = Sample(SlotUsage(cpu_user_ns=1_000_000), 11.0)
    assert resource_usage(None, used, 1.0).cpu.percent == 0.0
    assert resource_usage(used, newer, 1.0).cpu.percent == 0.0


def test_all_that_is_measured_is_listed() -> None:
    made = resource_usage(None, Sample(SlotUsage(memory_rss_bytes=7), 1.0), 1.0)
    assert CPUUsage.PERCENT in made.cpu.measured_fields and MemoryUsage.RSS in made.memory.measured_fields
    assert made.memory.rss == 7


@pytest.mark.parametrize(
    ("text", "mhz"), [("cpu MHz\t\t: 2445.4\ncpu MHz\t\t: 3000.0\n", 3000.0), ("", 1000.0), ("flags: x\n", 1000.0)]
)
def test_the_speed_is_the_fastest_processors(text: str, mhz: float) -> None:
    assert mhz_of(text) == mhz
