"""What a task uses, as Nomad counts it. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from astra_agent.wire import SlotUsage
from astra_driver.proto.driver_pb2 import CPUUsage, MemoryUsage, TaskResourceUsage

_CPU = (
    CPUUsage.SYSTEM_MODE,
    CPUUsage.USER_MODE,
    CPUUsage.TOTAL_TICKS,
    CPUUsage.THROTTLED_PERIODS,
    CPUUsage.THROTTLED_TIME,
    CPUUsage.PERCENT,
)
_MEMORY = (
    MemoryUsage.RSS,
    MemoryUsage.CACHE,
    MemoryUsage.MAX_USAGE,
    MemoryUsage.KERNEL_USAGE,
    MemoryUsage.USAGE,
    MemoryUsage.SWAP,
)


@dataclass(frozen=True, slots=True)
class Sample:
    """Counters, and when they were read (monotonic seconds)."""

    usage: SlotUsage
    at_s: float


def resource_usage(before: Sample | None, now: Sample, mhz: float) -> TaskResourceUsage:
    """
    Percentages are of one processor, so up to 100 for each.

    Args:
        before: The sample before this one; None: nothing is known of the time in between.
        mhz: Of one processor.
    """
    user, system = _percent(before, now)
    used = now.usage
    return TaskResourceUsage(
        cpu=CPUUsage(
            system_mode=system,
            user_mode=user,
            percent=user + system,
            total_ticks=(user + system) / 100 * mhz,
            throttled_periods=used.throttled_periods,
            throttled_time=used.throttled_ns,
            measured_fields=_CPU,
        ),
        memory=MemoryUsage(
            rss=used.memory_rss_bytes,
            cache=used.memory_cache_bytes,
            usage=used.memory_bytes,
            max_usage=used.memory_peak_bytes,
            kernel_usage=used.memory_kernel_bytes,
            swap=used.memory_swap_bytes,
            measured_fields=_MEMORY,
        ),
    )


def _percent(before: Sample | None, now: Sample) -> tuple[float, float]:
    """Of user and system. Counters of a newer attempt begin anew, below those of the one before."""
    if before is None or now.at_s <= before.at_s:
        return 0.0, 0.0
    elapsed_ns = (now.at_s - before.at_s) * 1e9
    user = now.usage.cpu_user_ns - before.usage.cpu_user_ns
    system = now.usage.cpu_system_ns - before.usage.cpu_system_ns
    return max(0.0, user / elapsed_ns * 100), max(0.0, system / elapsed_ns * 100)


def mhz_of(cpuinfo: str) -> float:
    """The fastest processor of /proc/cpuinfo; 1000 where it does not say."""
    found = [line.partition(":")[2] for line in cpuinfo.splitlines() if line.startswith("cpu MHz")]
    return max((float(text) for text in found), default=1000.0)
