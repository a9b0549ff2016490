"""`astra demo`: what `make demo` runs once everything is installed."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

import click

import astra_cli
from astra_agent.errors import HostFault, InvalidRequest
from astra_cli import completing
from astra_cli import demo as demonstration
from astra_cli.commands.dev import purge
from astra_cli.dev import supervisor, sweep
from astra_cli.dev.plan import layout
from astra_cli.output import Output
from astra_cli.render import Cell

INTERRUPTED = 130


@click.command(hidden=True)
@click.option(
    "--state",
    type=completing.FOLDER,
    default=demonstration.STATE,
    metavar="DIR",
    help="State folder; removed afterwards.",
)
def demo(state: Path) -> int:
    """Start a cluster of four, run the first gang, kill a worker, watch it start again, clean up."""
    supervisor.require_root()
    examples = Path(astra_cli.__file__).resolve().parents[2] / "examples"
    if not (examples / "first-gang.json").is_file():
        raise InvalidRequest(f"the demonstration needs the examples of a checkout, and {examples} has none")
    where, output = layout(state), Output()
    if supervisor.stop(where, lambda sentence: output.line(Cell(sentence, "dim"))):
        output.line(Cell("An earlier demonstration was still there; it is gone now.", "dim"))
    purge(where)
    try:
        finished = asyncio.run(demonstration.Demo(examples, where, output).run())
    finally:
        purge(where)
        if where.state == demonstration.STATE:
            with suppress(OSError):  # it has a real cluster in it
                where.state.parent.rmdir()
    if sweep.is_left(where):
        raise HostFault(f"something of the demonstration is left in {where.state}; `astra dev stop --state` removes it")
    if not finished:
        output.line(Cell("Interrupted; nothing is left."))
        return INTERRUPTED
    output.line(
        Cell(
            "Nothing is left: no process, namespace, mount or cgroup. Now by hand: astra dev, astra run …", "bold green"
        )
    )
    return 0
