"""What the documents tell a reader to type is there, and what they show as a run is one."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from astra_cli.main import cli
from astra_gang.spec import parse
from tests.house.tree import ROOT, blocks, documents

TARGETS = frozenset(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
SHELL = ("sh", "bash", "console")
PARTS = ("agent", "cli", "deploy", "dns", "driver", "gang", "netprobe")
READ = [document for document in documents() if document.name != "design.md"]
"""Documents that tell a reader what to do; the design speaks of what is to come, too."""


def commands(document: Path) -> Iterator[str]:
    """Lines to type: of shell blocks (after `$ ` where there are prompts), and in backticks."""
    text = document.read_text()
    for block in blocks(document):
        if block.kind in SHELL:
            lines = block.text.replace("\\\n", " ").splitlines()
            prompts = block.kind == "console"
            yield from (line.removeprefix("$ ") for line in lines if not prompts or line.startswith("$ "))
    prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    yield from (span for span in re.findall(r"`([^`\n]+)`", prose) if span.startswith(("astra ", "make ", "scripts/")))


def mistakes(line: str) -> Iterator[str]:
    """What in *line* does not exist: a target, a script, a command of astra or an option of it."""
    for part in re.split(r"&&|\|\||[;|]", re.sub(r"[\[\]]|\$\(.*\)", " ", line)):
        try:
            words = shlex.split(part, comments=True)
        except ValueError:
            words = part.split()
        if words[:1] == ["sudo"]:
            words = words[1:]
        match [word.removeprefix(".venv/bin/") for word in words]:
            case ["make", *rest]:
                yield from (
                    f"make {word}" for word in rest if word.isalpha() and word.islower() and word not in TARGETS
                )
            case [first, *_] if first.startswith("scripts/"):
                if not (ROOT / first).is_file():
                    yield first
            case ["astra", *rest]:
                yield from wrong_words(rest)


def wrong_words(words: list[str]) -> Iterator[str]:
    """Commands and options that `astra` does not have."""
    command: click.Command = cli
    options = options_of(command)
    for position, word in enumerate(words):
        if word == "--":
            return
        if word.startswith("-"):
            named = {word.partition("=")[0]} if word.startswith("--") else {f"-{letter}" for letter in word[1:]}
            if not named <= options:
                yield f"{command.name} {word}"
        elif isinstance(command, click.Group) and (named_so := command.get_command(click.Context(command), word)):
            command = named_so
            options |= options_of(command)
        elif isinstance(command, click.Group) and position == 0 and word.isalpha() and word.islower():
            yield f"astra {word}"


def options_of(command: click.Command) -> set[str]:
    named = (option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts))
    return {"--help", "-h", *named}


@pytest.mark.parametrize("document", READ, ids=lambda document: str(document.relative_to(ROOT)))
def test_every_command_that_a_document_names_exists(document: Path) -> None:
    assert [wrong for line in commands(document) for wrong in mistakes(line)] == []


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("make chekc", ["make chekc"]),
        ("make test LEVELS=core", []),
        ("scripts/nothing demo", ["scripts/nothing"]),
        ("astra stauts", ["astra stauts"]),
        ("astra dev link --machine m-2 --slow", ["link --slow"]),
        ("sudo .venv/bin/astra logs RUN [RANK] -f | less", []),
        ("astra run --name n --image host -- python3 --version", []),
    ],
)
def test_the_checker_tells_what_exists_from_what_does_not(line: str, wrong: list[str]) -> None:
    assert list(mistakes(line)) == wrong


@pytest.mark.parametrize("document", documents(), ids=lambda document: str(document.relative_to(ROOT)))
def test_every_run_that_a_document_shows_is_accepted(document: Path) -> None:
    for block in blocks(document):
        if block.kind == "json" and {"metadata", "spec"} <= (shown := json.loads(block.text)).keys():
            parse(shown)


@pytest.mark.parametrize("part", PARTS)
def test_every_part_says_what_it_knows_and_how_it_fails(part: str) -> None:
    text = (ROOT / part / "README.md").read_text().lower()
    assert [words for words in ("know", "must not know", "fail") if words not in text] == []


def test_what_deploy_puts_into_nomad_the_page_about_removal_takes_away() -> None:
    texts = [path.read_text() for path in sorted((ROOT / "deploy" / "nomad").iterdir())]
    page = (ROOT / "deploy" / "removal.md").read_text().splitlines()
    undo = {
        r"nomad acl policy apply .*?(\S+) \S+\.hcl$": "nomad acl policy delete",
        r"nomad var put (\S+)": "nomad var purge",
        r'^node_pool "(\S+)" \{$': "nomad node pool delete",
    }
    wanted = {
        f"{command} {name}"
        for does, command in undo.items()
        for text in texts
        for name in re.findall(does, text, re.MULTILINE)
    }
    assert {"nomad acl policy delete astra-operator", "nomad var purge nomad/jobs/astra-coordinator"} < wanted
    assert wanted - set(page) == set()
