"""From GPUs and machines to what one worker has."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astra_agent.errors import InvalidRequest
from astra_gang.shape import Resources, Shape, most_workers, of, shapes


def counts(asked: Resources, machines_max: int = 4096) -> list[tuple[int, int]]:
    return [(shape.machines, shape.gpus) for shape in shapes(asked, machines_max=machines_max)]


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        pytest.param(Resources(gpus=16, machines=(2, 2)), [(2, 8)], id="16 GPUs on exactly 2 machines"),
        pytest.param(
            Resources(gpus=16), [(1, 16), (2, 8), (4, 4), (8, 2), (16, 1)], id="the scheduler chooses, fewest first"
        ),
        pytest.param(
            Resources(gpus=16, min_gpus_per_machine=8), [(1, 16), (2, 8)], id="never below 8 on a machine"
        ),
        pytest.param(Resources(gpus=12, machines=(2, 5)), [(2, 6), (3, 4), (4, 3)], id="a range keeps what divides"),
        pytest.param(Resources(), [(1, 0)], id="no GPUs and no machines is one worker"),
        pytest.param(Resources(machines=(4, 4)), [(4, 0)], id="machines without GPUs"),
        pytest.param(Resources(gpus=0, min_gpus_per_machine=8), [(1, 0)], id="a least number of no GPUs says nothing"),
    ],
)  # fmt: skip
def test_shapes_in_order_of_preference(asked: Resources, expected: list[tuple[int, int]]) -> None:
    assert counts(asked) == expected


def test_a_run_that_is_no_gang_has_one_worker_where_the_scheduler_chooses() -> None:
    assert counts(Resources(gpus=16), machines_max=1) == [(1, 16)]


def test_cpu_and_memory_for_each_gpu_come_to_a_worker_s_share() -> None:
    asked = Resources(gpus=16, cpu_cores_per_gpu=12, memory_bytes_per_gpu=120 * 2**30)
    assert of(asked, 2) == Shape(machines=2, gpus=8, cpu_cores=96, memory_bytes=960 * 2**30)


def test_cpu_and_memory_of_a_worker_do_not_depend_on_how_many_there_are() -> None:
    asked = Resources(machines=(4, 4), cpu_cores=16, memory_bytes=2**36)
    assert of(asked, 4) == Shape(machines=4, gpus=0, cpu_cores=16, memory_bytes=2**36)


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        (
            Resources(gpus=12, machines=(5, 5)),
            "Cannot plan workers: cannot evenly distribute 12 gpus across 5 machines",
        ),
        (Resources(gpus=2, machines=(4, 4)), "Cannot plan workers: cannot evenly distribute 2 gpus across 4 machines"),
        (
            Resources(gpus=7, machines=(2, 4)),
            "Cannot plan workers: cannot evenly distribute 7 gpus across 2 to 4 machines",
        ),
        (
            Resources(gpus=16, min_gpus_per_machine=8, machines=(4, 4)),
            "Cannot plan workers: 16 gpus across 4 machines are 4 on each, "
            "fewer than gpu_requests.min_per_machine asks for, 8",
        ),
    ],
)
def test_an_impossible_shape_is_refused_word_for_word(asked: Resources, sentence: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        shapes(asked, machines_max=4096)
    assert str(refused.value) == sentence
    assert refused.value.field == "spec.task_template.requested_resources.machines"


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        (Resources(gpus=8, cpu_cores=4, cpu_cores_per_gpu=1), "cpu_cores"),
        (Resources(gpus=8, memory_bytes=4, memory_bytes_per_gpu=1), "memory_bytes"),
        (Resources(cpu_cores_per_gpu=1), "per_gpu"),
        (Resources(gpus=8, machines=(4, 2)), "machines"),
        (Resources(machines=(1, 2)), "machines"),
    ],
)
def test_what_contradicts_itself_is_refused_with_its_field(asked: Resources, field: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        shapes(asked, machines_max=4096)
    assert refused.value.field == f"spec.task_template.requested_resources.{field}"


@given(gpus=st.integers(1, 512), least=st.integers(1, 16), ends=st.tuples(st.integers(1, 64), st.integers(1, 64)))
def test_every_shape_has_all_gpus_within_the_bounds(gpus: int, least: int, ends: tuple[int, int]) -> None:
    asked = Resources(gpus=gpus, min_gpus_per_machine=least, machines=(min(ends), max(ends)))
    expected = [n for n in range(min(ends), max(ends) + 1) if gpus % n == 0 and gpus // n >= least]
    if not expected:
        with pytest.raises(InvalidRequest):
            shapes(asked, machines_max=4096)
        return
    assert counts(asked) == [(n, gpus // n) for n in expected]
    assert most_workers(asked, machines_max=4096) == expected[-1]
