"""A part's README names every module of it: whoever looks for something begins there."""

from __future__ import annotations

import re

import pytest

from tests.house.tree import ROOT


@pytest.mark.parametrize("part", ["agent", "gang"])
def test_every_module_is_in_its_parts_table(part: str) -> None:
    package = ROOT / part / f"astra_{part}"
    here = {path.stem for path in package.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    named = set(re.findall(r"`(\w+)/?`", (ROOT / part / "README.md").read_text()))
    assert here - {"__init__"} - named == set()
