"""Histories of gangs with everything going wrong: the rules of docs/design.md, section 5, hold after each step"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from world import play  # a sibling module: tests are no package

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
