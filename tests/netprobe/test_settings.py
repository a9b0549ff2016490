"""How long a probe takes that has to be over in time."""

from __future__ import annotations

import pytest

from astra_netprobe import settings
from astra_netprobe.plan import MATRIX_MAX

_DOUBTS = 1.5
"""Of the budget, with what looks slow measured again."""


@pytest.mark.parametrize("machines", [2, 3, 4, 8, 9, 64, 4096])
@pytest.mark.parametrize("limit_s", [10.0, 20.0, 60.0])
def test_a_probe_that_has_a_limit_is_planned_to_be_over_before_it(limit_s: float, machines: int) -> None:
    found = settings.within(limit_s, machines)
    assert _DOUBTS * found.budget_s < limit_s
    rounds = 3 * (min(machines, MATRIX_MAX) - 1)
    assert rounds * found.pair_s <= found.budget_s * (1 - found.ring_share)


def test_its_first_all_reduce_is_small_enough_for_a_link_of_a_thousandth_of_the_rate() -> None:
    found = settings.within(20.0, 8)
    seconds = (2 + 1) * 2 * 8 * min(found.large_sizes) / 1e6
    assert seconds < found.budget_s
    assert list(found.large_sizes) == sorted(found.large_sizes)
