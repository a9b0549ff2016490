"""The recorded answers of `tests/fixtures/nomad`, as templates."""

from __future__ import annotations

import copy
import json
from functools import cache
from pathlib import Path
from typing import Any

FIXTURES = Path(__file__).parents[2] / "fixtures" / "nomad"
VERSIONS = ("1.6.5", "2.0.5")
NEWEST = VERSIONS[-1]


@cache
def _document(version: str, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FIXTURES / version / f"{name}.json").read_text())
    return found


def body(version: str, name: str) -> Any:
    """A copy: change it as you like."""
    return copy.deepcopy(_document(version, name)["body"])


def refusal(version: str, name: str) -> tuple[int, str]:
    """Status and text of a recorded refusal."""
    document = _document(version, name)
    text = document["body"]
    return document["status"], text if isinstance(text, str) else json.dumps(text)
