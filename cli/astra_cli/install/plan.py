"""What is to be where: values only. Paths are those of the machine, whatever root they are put under."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True, slots=True)
class File:
    """
    Args:
        settings: It is the operator's from the moment that it is there: written once, never replaced.
        secret: Settings whose text is shown nowhere, and made anew for each machine.
    """

    path: Path
    content: str
    mode: int = 0o644
    settings: bool = False
    secret: bool = False


@dataclass(frozen=True, slots=True)
class Link:
    path: Path
    target: Path


Item = File | Link


@dataclass(frozen=True, slots=True)
class Plan:
    """
    Args:
        name: Of what is installed; the record of what was put where has it.
        items: In the order in which they are put in place.
        notes: What else is wrong or has to be known on this machine, one sentence each.
        then: What is left to do, as commands or sentences.
    """

    name: str
    items: tuple[Item, ...]
    notes: tuple[str, ...] = ()
    then: tuple[str, ...] = ()


Action = Literal["written", "updated", "unchanged", "kept", "removed", "gone"]
"""`kept`: it is there and another one than this version's, and not ours to change. `gone`: nothing was there."""


@dataclass(frozen=True, slots=True)
class Step:
    """
    Args:
        sentence: Why, where the action does not say it.
        difference: From what this version would write to what is there, as a unified diff.
    """

    path: Path
    action: Action
    sentence: str = ""
    difference: str = ""


def difference(path: Path, ours: str, there: str) -> str:
    lines = difflib.unified_diff(
        ours.splitlines(), there.splitlines(), f"{path} of this version", f"{path} as it is", lineterm="", n=1
    )
    return "\n".join(lines)
