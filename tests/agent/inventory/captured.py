"""The captured machines of `tests/fixtures/hosts`, by name."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from astra_agent.inventory import CapturedTree, Inventory, LibraryReading, read
from astra_agent.inventory.capture import parse

HOSTS = Path(__file__).parents[2] / "fixtures" / "hosts"
NAMES = tuple(sorted(file.stem for file in HOSTS.glob("*.json")))


def document(name: str) -> dict[str, Any]:
    """A new copy each time."""
    loaded: dict[str, Any] = json.loads((HOSTS / f"{name}.json").read_text())
    return loaded


def captured(name: str) -> tuple[CapturedTree, LibraryReading]:
    return parse(document(name), name)


@cache
def inventory(name: str) -> Inventory:
    return read(*captured(name))
