"""Pure modules stay pure: no waiting, no clock, no random, no files, no logging, however far down."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.house.purity import PURE, breaches, source_of


@pytest.mark.parametrize("module", PURE)
def test_a_pure_module_touches_nothing_outside(module: str) -> None:
    assert source_of(module), f"{module} is listed as pure and is not there: was it renamed?"
    assert not breaches(module), "\n".join(str(breach) for breach in breaches(module))


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("import asyncio", "imports asyncio"),
        ("from os import path", "imports os"),
        ("def late():\n    import random", "imports random"),
        ("from pathlib import Path\nhere = Path('.')", "uses Path"),
        ("text = open('f').read()", "uses open"),
        ("from datetime import datetime\nat = datetime.now()", "asks a clock with now()"),
        ("import logging", "imports logging"),
    ],
)
def test_the_checker_sees_what_is_refused_through_imports_of_ours(tmp_path: Path, line: str, what: str) -> None:
    package = tmp_path / "astra_x"
    (package / "deep").mkdir(parents=True)
    for name, content in {
        "__init__": "",
        "a": "from . import b",
        "b": "from astra_x.deep import c",
        "deep/__init__": "",
    }.items():
        (package / f"{name}.py").write_text(content)
    (package / "deep" / "c.py").write_text(line)
    found = breaches("astra_x.a", (tmp_path,))
    assert [breach.what for breach in found] == [what]
    assert found[0].trail == ("astra_x.a", "astra_x.b", "astra_x.deep.c")


def test_the_checker_lets_plain_values_pass(tmp_path: Path) -> None:
    lines = (
        "from dataclasses import dataclass",
        "from pathlib import PurePosixPath",
        "import re",
        "x = PurePosixPath('/a')",
    )
    (tmp_path / "astra_y.py").write_text("\n".join(lines))
    assert breaches("astra_y", (tmp_path,)) == []
