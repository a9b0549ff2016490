"""`astra doctor`."""

from __future__ import annotations

import asyncio
import os
from dataclasses import asdict
from pathlib import Path

import click

from astra_cli import completing, context
from astra_cli import doctor as doctors
from astra_cli.commands import machine
from astra_cli.invocation import json_option
from astra_cli.machine import capturing
from astra_cli.output import Output
from astra_cli.render import Cell

MARKS = {
    "ok": Cell("ok     ", "green"),
    "warning": Cell("warning", "yellow"),
    "missing": Cell("MISSING", "bold red"),
}


@click.command()
@click.option("--agent", "agents", multiple=True, type=completing.FILE, metavar="SOCKET", help="Ask this agent, too.")
@click.option("--state", metavar="DIR", shell_complete=completing.folders, help="Where a dev cluster's data would lie.")
@click.option(
    "--capture", "file", type=completing.FILE, metavar="FILE", help="Look at a captured machine instead of this one."
)
@click.option(
    "--root", type=completing.FOLDER, metavar="DIR", help="Look at a machine whose files were laid out in a folder."
)
@json_option
def doctor(agents: tuple[Path, ...], state: str | None, file: Path | None, root: Path | None, as_json: bool) -> int:
    """What this machine lacks, each with its fix.

    Exits 1 when it can be neither an agent nor a dev cluster. With --capture or --root: what that machine has, which of
    its ports are for training, and what is wrong with it; with --json what workers on it would get."""
    if file is not None and root is not None:
        raise click.UsageError("--capture and --root are two machines; name one")
    if file is not None or root is not None:
        looked_at = capturing.from_capture(file) if file is not None else capturing.from_folder(root or Path("/"))
        machine.show(looked_at, Output(as_json=as_json))
        return 0
    found = doctors.examine(context.dev_state(os.environ, state)) + doctors.devices(capturing.from_this_machine())
    for socket in agents:
        found += asyncio.run(doctors.agent(socket))
    fit = all(finding.level != "missing" for finding in found)
    output = Output(as_json=as_json)
    if as_json:
        output.document({"fit": fit, "machine": doctors.machine(), "findings": [asdict(finding) for finding in found]})
        return 0 if fit else 1
    output.line(Cell(doctors.machine(), "dim"))
    for finding in found:
        output.line(MARKS[finding.level], Cell(finding.sentence))
        if finding.fix:
            output.line(Cell("       "), Cell(f"fix: {finding.fix}", "cyan"))
    verdict = "This machine can be an agent and a dev cluster." if fit else "This machine lacks what is marked MISSING."
    output.line(Cell(verdict, "bold"))
    return 0 if fit else 1
