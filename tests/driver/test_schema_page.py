"""The page says what the schema says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from astra_driver.hcl import Settings
from astra_driver.schema_page import table
from astra_driver.settings import PluginSettings, TaskSettings

PAGE = Path(__file__).parents[2] / "docs" / "nomad-driver.md"


@pytest.mark.parametrize(("heading", "model"), [("## The task", TaskSettings), ("## The plugin", PluginSettings)])
def test_the_page_has_the_schemas_own_tables(heading: str, model: type[Settings], pytestconfig: pytest.Config) -> None:
    """`--rewrite` writes them."""
    text = PAGE.read_text()
    pattern = re.compile(rf"({re.escape(heading)}\n.*?\n)(\| name .*?\n)(?=\n)", re.DOTALL)
    found = pattern.search(text)
    assert found is not None, f"{PAGE} has no table under {heading}"
    if pytestconfig.getoption("--rewrite"):
        PAGE.write_text(text[: found.start(2)] + table(model) + text[found.end(2) :])
    else:
        assert found[2] == table(model)
