"""
What a command prints, and how: rich on a terminal, plain text in a pipe, JSON when asked for.

Colours follow `NO_COLOR` and the terminal (rich's own rules). Data goes to standard output, everything else to
standard error.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from astra_cli.render import Cell, Page, Table, plain


@dataclass(frozen=True, slots=True)
class Output:
    """*as_json*: documents are printed as the coordinator sent them, one object, or one a line when they stream."""

    as_json: bool = False
    out: Console = field(default_factory=lambda: Console(highlight=False, soft_wrap=True))
    err: Console = field(default_factory=lambda: Console(stderr=True, highlight=False, soft_wrap=True))

    @property
    def on_terminal(self) -> bool:
        return self.out.is_terminal and not self.as_json

    def document(self, document: Mapping[str, Any]) -> None:
        self.out.file.write(json.dumps(document, indent=2, ensure_ascii=False) + "\n")

    def record(self, document: Mapping[str, Any]) -> None:
        """One line of a stream of JSON."""
        self.out.file.write(json.dumps(document, ensure_ascii=False) + "\n")
        self.out.file.flush()

    def line(self, *cells: Cell, between: str = "  ") -> None:
        self.out.print(Text(between).join(Text(cell.text, style=cell.style) for cell in cells))

    def progress(self, cell: Cell) -> None:
        """What is being done: on standard error where standard output is for a document."""
        if self.as_json:
            self.note(cell.text, cell.style)
        else:
            self.line(cell)

    def note(self, text: str, style: str = "dim") -> None:
        """For the person, not for the pipe."""
        self.err.print(Text(text, style=style))

    def table(self, table: Table) -> None:
        if not self.on_terminal:
            self.out.file.write(plain(table) + "\n")
            return
        rich = RichTable(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
        for i, column in enumerate(table.columns):
            last = i == len(table.columns) - 1
            rich.add_column(column, justify="right" if i in table.right else "left", no_wrap=not last, overflow="fold")
        for row in table.rows:
            rich.add_row(*(Text(cell.text or "-", style=cell.style) for cell in row))
        self.out.print(rich, soft_wrap=False)

    def page(self, page: Page) -> None:
        for line in page.lines:
            self.line(line)
        if page.table is not None:
            self.out.file.write("\n")
            self.table(page.table)


def complain(message: str) -> None:
    """The one way that errors are told: a sentence on standard error."""
    sys.stderr.write(f"astra: {message}\n")
    sys.stderr.flush()
