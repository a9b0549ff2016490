"""`astra capture`, and what `astra doctor` says of a machine that is not this one."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import click

from astra_agent.errors import InvalidRequest
from astra_agent.inventory import Inventory
from astra_agent.nvml import read_library
from astra_agent.sysfs import DirectoryRoot
from astra_cli import completing
from astra_cli.machine.answers import answers
from astra_cli.machine.capturing import capture as captured
from astra_cli.machine.picture import picture
from astra_cli.output import Output


def show(inventory: Inventory, output: Output) -> None:
    """The answers as JSON, or the picture."""
    if output.as_json:
        output.document(answers(inventory))
    else:
        for line in picture(inventory):
            output.line(line)


@click.command()
@click.option(
    "-o",
    "--output",
    "file",
    type=completing.FILE,
    metavar="FILE",
    help="Where to; `-`, the default, is standard output.",
)
@click.option(
    "--root", type=completing.FOLDER, default=Path("/"), metavar="DIR", help="Another root than this machine's."
)
@click.option("--names", is_flag=True, help="Keep names, addresses and serial numbers.")
def capture(file: Path | None, root: Path, names: bool) -> None:
    """Write this machine down as one JSON file that tests can read.

    Host names, serial numbers, UUIDs, MAC and IP addresses are replaced, the same by the same, so that the file can go
    into a bug report."""
    document = captured(DirectoryRoot(root), read_library(), names=names)
    text = json.dumps(document, indent=1, sort_keys=True) + "\n"
    if file is None or str(file) == "-":
        sys.stdout.write(text)
        return
    try:
        _write(file, text)
    except OSError as error:
        raise InvalidRequest(f"{file} can't be written: {error.strerror}", "output") from error


def _write(file: Path, text: str) -> None:
    """Whole or not at all."""
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        temporary.write_text(text)
        temporary.replace(file)
    finally:
        temporary.unlink(missing_ok=True)
