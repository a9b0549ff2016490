"""Every captured machine gives the answers that it carries."""

from __future__ import annotations

import json
from typing import Any

import pytest

from astra_cli.machine.answers import answers
from tests.agent.inventory.captured import NAMES, document, inventory

# Sentences for people: somebody wrote them for one machine. Ours have to be there, in their own words.
IN_OWN_WORDS = ("/excluded_ports/", "/fabric/why", "/plugin", "/trap", "/note_min_")
# Values of a site that none of a machine's files holds: they come from the operator's file, which this one lacks.
OF_THE_SITE = {"oci-h100-roce": {"/recommended_env/rdma/NCCL_IB_TC", "/recommended_env/rdma/NCCL_IB_SL"}}


def differences(expected: Any, found: Any, path: str = "") -> dict[str, tuple[Any, Any]]:
    """Where *found* is not as *expected*; what it has besides is no difference at the top, and is one below it."""
    if isinstance(expected, dict) and isinstance(found, dict):
        names = expected.keys() if path == "" else expected.keys() | found.keys()
        below = [
            differences(expected.get(name, "(not expected)"), found.get(name, "(absent)"), f"{path}/{name}")
            for name in names
        ]
        return {where: both for one in below for where, both in one.items()}
    if path.startswith(IN_OWN_WORDS) and isinstance(found, str) and found != "(absent)":
        return {}
    return {} if expected == found else {path: (expected, found)}


@pytest.mark.parametrize("name", NAMES)
def test_a_captured_machine_gives_the_answers_that_it_carries(name: str) -> None:
    found = json.loads(json.dumps(answers(inventory(name))))
    expected = document(name)["expect"]
    for path in OF_THE_SITE.get(name, ()):
        section, row, variable = path.strip("/").split("/")
        del expected[section][row][variable]
        if not expected[section][row]:
            del expected[section]
    assert differences(expected, found) == {}


@pytest.mark.parametrize("name", NAMES)
def test_answers_hold_nothing_that_json_has_no_word_for(name: str) -> None:
    found = answers(inventory(name))
    assert json.loads(json.dumps(found, allow_nan=False)) == found
