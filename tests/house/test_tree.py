"""Rules for every file of the tree."""

from __future__ import annotations

import re

from tests.house.tree import ROOT, documents, text_of, tracked_files

MACHINE_PATHS = re.compile(r"(?<![\w.-])/(?:wor" + r"k|far" + r"m)/|/root/\.py" + r"env")
REGISTRY_HOSTS = re.compile(
    r"\b(?:pypi\.o" + r"rg|files\.pythonhosted\.o" + r"rg|deb\.debian\.o" + r"rg|archive\.ubuntu\.c" + r"om)\b"
)
LEFT_FOR_LATER = re.compile(r"\b(?:T" + r"ODO|F" + r"IXME|X" + r"XX)\b")
NO_MODULE_NAMES = frozenset({"utils", "helpers", "manager", "common"})


def lines_with(pattern: re.Pattern[str]) -> list[str]:
    return [
        f"{file.relative_to(ROOT)}:{number}: {line.strip()}"
        for file in tracked_files()
        if (text := text_of(file)) is not None
        for number, line in enumerate(text.splitlines(), 1)
        if pattern.search(line)
    ]


def test_no_file_names_a_path_of_the_machine_it_was_written_on() -> None:
    assert lines_with(MACHINE_PATHS) == []


def test_no_file_names_the_host_of_a_package_registry() -> None:
    assert lines_with(REGISTRY_HOSTS) == []


def test_nothing_is_left_for_later() -> None:
    assert lines_with(LEFT_FOR_LATER) == []


def test_no_module_has_a_name_that_says_nothing() -> None:
    assert [str(file) for file in tracked_files() if file.suffix == ".py" and file.stem in NO_MODULE_NAMES] == []


def test_every_file_of_text_ends_with_one_newline() -> None:
    offenders = [
        str(file.relative_to(ROOT))
        for file in tracked_files()
        if (text := text_of(file)) and (not text.endswith("\n") or text.endswith("\n\n"))
    ]
    assert offenders == []


def test_links_between_documents_lead_somewhere() -> None:
    broken = [
        f"{document.relative_to(ROOT)}: {target}"
        for document in documents()
        for target in re.findall(r"\]\((?!https?:|#|mailto:)([^)#\s]+)", document.read_text())
        if not (document.parent / target).exists()
    ]
    assert broken == []
