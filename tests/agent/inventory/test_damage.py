"""Files that are missing, cut short, unreadable or no text: never an exception, no wrong answer without a finding."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import pytest

from astra_agent.inventory import CapturedTree, Inventory, LibraryReading, read
from astra_agent.inventory.library import GpuReading
from astra_cli.machine.answers import answers
from tests.agent.inventory.captured import NAMES, captured, inventory

KINDS = ("missing", "cut", "unreadable", "binary", "empty")
ROUNDS = 8
"""For each machine and kind of damage."""


def damaged(tree: CapturedTree, path: str, kind: str, dice: random.Random) -> CapturedTree:
    files, errors = dict(tree.files), dict(tree.errors)
    content = files.pop(path)
    if kind == "cut":
        files[path] = content.rstrip(b"\n")[: dice.randrange(0, max(1, len(content) - 1))].rstrip(b"\n")
    elif kind == "unreadable":
        errors[path] = dice.choice(("EIO", "EACCES", "EBUSY"))
    elif kind == "binary":
        files[path] = dice.randbytes(dice.randrange(1, 40)) + b"\xff\n"
    elif kind == "empty":
        files[path] = b""
    return CapturedTree(files, tree.links, errors, tree.devices)


def facts(found: Inventory) -> Inventory:
    return replace(found, findings=())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NAMES)
def test_damage_to_a_file_changes_no_answer_without_a_finding(name: str, kind: str) -> None:
    tree, library = captured(name)
    whole = inventory(name)
    dice = random.Random(f"{name} {kind}")
    for path in dice.sample(sorted(tree.files), min(ROUNDS, len(tree.files))):
        found = read(damaged(tree, path, kind, dice), library)
        json.dumps(answers(found))
        new = set(found.findings) - set(whole.findings)
        assert facts(found) == facts(whole) or new, f"{path} ({kind}) changed an answer, and nobody was told"


@pytest.mark.parametrize("share", [0.1, 0.4, 1.0])
@pytest.mark.parametrize("name", NAMES)
def test_heavy_damage_never_raises(name: str, share: float) -> None:
    tree, library = captured(name)
    dice = random.Random(name)
    files = {path: dice.randbytes(9) if dice.random() < share else content for path, content in tree.files.items()}
    found = read(CapturedTree(files, tree.links, tree.errors, tree.devices), library)
    json.dumps(answers(found))
    assert found.findings


@pytest.mark.parametrize("name", NAMES)
def test_missing_links_and_nodes_never_raise(name: str) -> None:
    tree, library = captured(name)
    dice = random.Random(name)
    for _ in range(3):
        links = {path: target for path, target in tree.links.items() if dice.random() < 0.7}
        links |= {path: path for path in list(tree.links)[:2]}  # loops
        devices = {path: numbers for path, numbers in tree.devices.items() if dice.random() < 0.7}
        found = read(CapturedTree(tree.files, links, tree.errors, devices), library)
        json.dumps(answers(found))


@pytest.mark.parametrize("name", ["dgx-h100-ndr", "gb200-nvl72-tray"])
def test_a_library_that_answers_little_never_raises(name: str) -> None:
    tree, library = captured(name)
    dice = random.Random(name)
    fields = [field for field in GpuReading.__slots__ if field not in ("index", "error", "mig_devices")]
    for _ in range(15):
        gpus = tuple(
            replace(gpu, error=dice.choice((0, 0, 0, 15, 999)), **dict.fromkeys(dice.sample(fields, 4)))  # type: ignore[arg-type]
            for gpu in library.gpus
        )
        reading: LibraryReading = replace(library, gpus=gpus[: dice.randrange(len(gpus) + 1)])
        json.dumps(answers(read(tree, reading)))
