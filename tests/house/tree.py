"""The files of the tree, as a fresh clone has them, and the fenced blocks of its documents."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"^```(?P<kind>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)

BUILT = {line.strip("/") for line in (ROOT / ".gitignore").read_text().splitlines()} | {
    ".git",
    "astra-init",
    "astra-log",
}


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block of a document: *kind* is the word behind the fence, such as `json`."""

    document: Path
    kind: str
    text: str


def tracked_files() -> list[Path]:
    """Files that git knows of, and new ones that it does not ignore; in a tree without git, all but what is built."""
    listing = subprocess.run(
        ["git", "-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    if listing.returncode:
        return [file for file in ROOT.rglob("*") if file.is_file() and not BUILT & set(file.relative_to(ROOT).parts)]
    return [file for name in listing.stdout.split("\0") if name and (file := ROOT / name).is_file()]


def text_of(file: Path) -> str | None:
    """The file's text; None for a binary."""
    try:
        return file.read_text()
    except UnicodeDecodeError:
        return None


def documents() -> list[Path]:
    return [file for file in tracked_files() if file.suffix == ".md"]


def blocks(document: Path) -> Iterator[Block]:
    for match in FENCE.finditer(document.read_text()):
        yield Block(document, match["kind"], match["text"])
