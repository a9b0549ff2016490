"""Histories of gangs with everything going wrong: the rules of docs/design.md, section 5, hold after each step"""

from __future__ import annotations

import os
import time

import pytest

from astra_gang.core import Phase, Policy
from tests.gang.core.world import World, play

STEPS = int(os.environ.get("ASTRA_SIMULATE_STEPS", "100000"))
SEED = int(os.environ.get("ASTRA_SIMULATE_SEED", str(time.time_ns() % 1_000_000)))
_HISTORY = 10_000
"""Steps in one history: each ends with all runs ended and every machine given back."""


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("history", range(max(1, STEPS // _HISTORY)))
def test_the_rules_hold_in_a_random_history(history: int) -> None:
    seed = SEED + history
    print(f"seed {seed}: make simulate STEPS={_HISTORY} SEED={seed} plays this history again")
    world = play(seed, min(STEPS, _HISTORY))
    assert world.steps >= min(STEPS, _HISTORY)


def test_a_start_is_against_the_rules_unless_every_member_was_armed() -> None:
    world = World(seed=1, faults=False)
    world.submit("1", 2, Policy())
    world.run(steps=1000, until=lambda: world.stored["1"].phase is Phase.STARTING)
    leader, other = (worker.slot for worker in world.stored["1"].workers)
    assert leader is not None and other is not None
    starts, machine = world.machines[leader.machine].slots[leader.id], world.machines[other.machine]
    world._check_start(starts, 0)
    world.boot(machine)
    world._check_start(starts, 0)
    world.armed.remove((other.id, 0))
    with pytest.raises(AssertionError, match="rule 1"):
        world._check_start(starts, 0)
