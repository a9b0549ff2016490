"""The ACL policies that are delivered: what each gives is written where it is given, with its reason."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from astra_gang.engines.nomad import refusals
from astra_gang.engines.nomad.refusals import Need
from tests.house.tree import ROOT

POLICIES = sorted((ROOT / "deploy/nomad").glob("*-policy.hcl"))
NEEDS = [need for need in vars(refusals).values() if isinstance(need, Need) and need.name]
CAPABILITY = r'"([a-z-]+)"'
IMPLIED = {"variables list": "variables read"}


@pytest.mark.parametrize("file", POLICIES, ids=lambda file: file.stem)
def test_each_capability_has_a_line_with_its_reason(file: Path) -> None:
    text = file.read_text()
    lists = re.findall(r"capabilities = \[(.*?)\]", text, re.DOTALL)
    given = [name for listed in lists for name in re.findall(CAPABILITY, listed)]
    assert given
    assert re.findall(rf"^ +{CAPABILITY}, +# \S.*$", text, re.MULTILINE) == given


@pytest.mark.parametrize("need", NEEDS, ids=lambda need: need.name)
def test_a_refusal_names_no_right_that_the_coordinators_policy_does_without(need: Need) -> None:
    kind, _, word = IMPLIED.get(need.name, need.name).rpartition(" ")
    text = (ROOT / "deploy/nomad/coordinator-policy.hcl").read_text()
    if kind == "node":
        assert need.rule in " ".join(text.split())
        return
    variables = re.findall(r"variables \{.*?^  \}", text, re.DOTALL | re.MULTILINE)
    where = "".join(variables) if kind == "variables" else text.replace("".join(variables), "")
    assert f'"{word}",' in where
