"""Machines of our own give the answers that were worked out for them beforehand."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from astra_agent.inventory import read
from astra_cli.machine.answers import answers
from tests.agent.inventory.machines import ALL, CHOICES, Written
from tests.agent.inventory.test_expectations import differences


@pytest.mark.parametrize("written", ALL, ids=lambda written: written.__name__)
def test_a_machine_gives_the_answers_that_were_worked_out_by_hand(written: Callable[[], Written]) -> None:
    machine, expected = written()
    found = json.loads(json.dumps(answers(read(*machine.capture()))))
    assert differences(expected, found) == {}
    chosen = {bound: found["nccl"][str(bound)]["recommended"] for bound in CHOICES[written.__name__]}
    assert chosen == CHOICES[written.__name__]
