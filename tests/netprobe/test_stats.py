"""Formulas of bandwidth tests, medians, and where a plateau is."""

from __future__ import annotations

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astra_netprobe import stats

MIB = 1 << 20
rates = st.floats(1e3, 1e12)


@pytest.mark.parametrize(
    ("collective", "factor"),
    [("all_reduce", 1.75), ("all_gather", 0.875), ("reduce_scatter", 0.875), ("all_to_all", 0.875), ("broadcast", 1.0)],
)
def test_factors_are_those_of_nccl_tests(collective: stats.Collective, factor: float) -> None:
    assert stats.bus_factor(collective, 8) == factor


def test_bus_bandwidth_of_a_published_run_gives_its_port_rate() -> None:
    assert stats.port_rate(381.8e9, ranks=32, machines=4) == pytest.approx(36.9e9, rel=0.01)


@given(st.floats(1, 1e12), st.floats(1e-6, 1e4), st.integers(2, 5000))
def test_bus_bandwidth_is_between_algorithm_bandwidth_and_its_double(size: float, time: float, ranks: int) -> None:
    alg = stats.algbw(size, time)
    assert alg * 0.999 <= stats.busbw("all_reduce", size, time, ranks) <= 2 * alg


@given(st.lists(rates, min_size=1))
def test_median_is_the_median(values: list[float]) -> None:
    assert stats.median(values) == pytest.approx(statistics.median(values))


@given(st.lists(rates, min_size=1), st.floats(0, 1))
def test_a_quantile_is_within_the_values(values: list[float], share: float) -> None:
    assert min(values) * (1 - 1e-9) <= stats.quantile(values, share) <= max(values) * (1 + 1e-9)


def test_an_outlier_does_not_move_the_spread() -> None:
    assert stats.sigma([9.9, 10.0, 10.1, 10.05, 9.95, 500.0]) < 0.2
    assert stats.sigma([10.0, 10.0]) == 0.0


def test_the_tail_counts_spikes() -> None:
    found = stats.spread([1.0] * 9 + [2.0])
    assert (found.min_s, found.median_s, found.max_s, found.spikes) == (1.0, 1.0, 2.0, 1)


@given(st.lists(st.tuples(st.integers(8, MIB - 1), rates)))
def test_small_sizes_have_no_plateau(points: list[tuple[int, float]]) -> None:
    assert stats.plateau(points) is None


def test_bandwidth_that_still_grows_has_no_plateau() -> None:
    assert stats.plateau([(MIB, 10.0), (4 * MIB, 40.0), (16 * MIB, 160.0)]) is None


def test_the_plateau_is_the_best_of_large_sizes_and_small_ones_do_not_count() -> None:
    assert stats.plateau([(8, 0.1), (MIB, 60.0), (16 * MIB, 99.0), (64 * MIB, 100.0)]) == stats.Plateau(64 * MIB, 100.0)
