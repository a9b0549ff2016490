"""
From what a run asks for to the shapes it may take: how many machines, and what one worker has on each of them.

Only arithmetic: whether machines are free is `astra_gang.placement`'s question.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from astra_agent.errors import InvalidRequest

_FIELD = "spec.task_template.requested_resources"


@dataclass(frozen=True, slots=True)
class Resources:
    """
    What a run asks for.

    Attributes:
        gpus: Of the whole run.
        cpu_cores: Of one worker; 0 asks for none in particular, and sets no limit. So do the other sizes.
        machines: Fewest and most; None leaves it to the scheduler.
    """

    gpus: int = 0
    min_gpus_per_machine: int = 1
    machines: tuple[int, int] | None = None
    cpu_cores: float = 0.0
    memory_bytes: int = 0
    cpu_cores_per_gpu: float = 0.0
    memory_bytes_per_gpu: int = 0


@dataclass(frozen=True, slots=True)
class Shape:
    """*machines* workers, each on a machine of its own with so much of it."""

    machines: int
    gpus: int
    cpu_cores: float
    memory_bytes: int


def shapes(asked: Resources, *, machines_max: int) -> Iterator[Shape]:
    """
    Every shape that is allowed, fewest machines first: fewer machines means more of the traffic inside one.

    Args:
        machines_max: Where the scheduler chooses, no more than these.
    Raises:
        InvalidRequest: No shape is. Raised by the call, not by the first step of the iterator.
    """
    fewest, most = _range(asked, machines_max)
    counts = _even_counts(asked, fewest, most)
    return (of(asked, count) for count in counts)


def most_workers(asked: Resources, *, machines_max: int) -> int:
    """
    The largest number of workers of any shape.

    Raises:
        InvalidRequest: No shape is possible.
    """
    return _even_counts(asked, *_range(asked, machines_max))[-1]


def of(asked: Resources, machines: int) -> Shape:
    """The shape on this many machines; *machines* divides the GPUs."""
    gpus = asked.gpus // machines
    return Shape(
        machines=machines,
        gpus=gpus,
        cpu_cores=asked.cpu_cores or asked.cpu_cores_per_gpu * gpus,
        memory_bytes=asked.memory_bytes or asked.memory_bytes_per_gpu * gpus,
    )


def _range(asked: Resources, machines_max: int) -> tuple[int, int]:
    _check(asked)
    if asked.machines is not None:
        return asked.machines
    return 1, min(max(asked.gpus, 1), machines_max)


def _even_counts(asked: Resources, fewest: int, most: int) -> list[int]:
    if not asked.gpus:
        return [fewest]
    even = [count for count in range(fewest, min(most, asked.gpus) + 1) if asked.gpus % count == 0]
    if not even:
        raise _refused(f"cannot evenly distribute {asked.gpus} gpus across {_machines(fewest, most)}")
    enough = [count for count in even if asked.gpus // count >= asked.min_gpus_per_machine]
    if not enough:
        raise _refused(
            f"{asked.gpus} gpus across {even[0]} {_plural(even[0], 'machine')} are {asked.gpus // even[0]} on each, "
            f"fewer than gpu_requests.min_per_machine asks for, {asked.min_gpus_per_machine}"
        )
    return enough


def _check(asked: Resources) -> None:
    if asked.cpu_cores and asked.cpu_cores_per_gpu:
        raise _both("cpu_cores")
    if asked.memory_bytes and asked.memory_bytes_per_gpu:
        raise _both("memory_bytes")
    if not asked.gpus and (asked.cpu_cores_per_gpu or asked.memory_bytes_per_gpu):
        field = f"{_FIELD}.per_gpu"
        raise InvalidRequest(
            f"{field} is for runs with GPUs: give cpu_cores and memory_bytes of a worker instead", field
        )
    if asked.machines is None:
        return
    fewest, most = asked.machines
    field = f"{_FIELD}.machines"
    if most < fewest:
        raise InvalidRequest(f"{field} has min {fewest} and max {most}: max must not be less than min", field)
    if not asked.gpus and fewest != most:
        raise InvalidRequest(
            f"{field} is from {fewest} to {most} for a run without GPUs: give one number, such as {fewest}", field
        )


def _both(name: str) -> InvalidRequest:
    field = f"{_FIELD}.{name}"
    return InvalidRequest(f"{field} and {_FIELD}.per_gpu.{name} are both given: keep one of them", field)


def _refused(why: str) -> InvalidRequest:
    return InvalidRequest(f"Cannot plan workers: {why}", f"{_FIELD}.machines")


def _machines(fewest: int, most: int) -> str:
    return f"{fewest} {_plural(fewest, 'machine')}" if fewest == most else f"{fewest} to {most} machines"


def _plural(count: int, noun: str) -> str:
    return noun if count == 1 else f"{noun}s"
