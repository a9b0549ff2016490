"""`astra stop` and `astra exec`: commands that change a run, or enter a worker."""

from __future__ import annotations

import sys

import click

from astra_agent.errors import InvalidRequest
from astra_cli import documents, render
from astra_cli.client import Client
from astra_cli.invocation import Invocation, ask, reaches, run_argument, talks
from astra_cli.terminal import attach, size


@click.command()
@run_argument
@talks
def stop(invocation: Invocation, run: str) -> None:
    """Stop a run.

    SIGTERM to every worker, SIGKILL after the grace time, 30 s unless the coordinator says otherwise."""
    document = ask(invocation, lambda client: client.stop(run))
    if invocation.output.as_json:
        invocation.output.document(document)
        return
    status = documents.Job.model_validate(document).status
    invocation.output.line(render.Cell(f"{run}: {status.phase}", render.STYLES.get(status.phase, "")))


@click.command("exec")
@run_argument
@click.argument("rank", type=click.IntRange(0))
@click.option("-i", "--stdin", "stdin", is_flag=True, help="Hand standard input on.")
@click.option("-t", "--tty", "tty", is_flag=True, help="Give the program a terminal.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@reaches
def execute(invocation: Invocation, run: str, rank: int, stdin: bool, tty: bool, command: tuple[str, ...]) -> int:
    """Run COMMAND in a worker.

    The worker must run; the command's exit code is this one's."""
    if tty and stdin and not sys.stdin.isatty():
        raise InvalidRequest("-t needs a terminal as standard input; leave it out to hand a pipe on", "-t")

    async def session(client: Client) -> int:
        width, height = size()
        async with client.exec(run, rank, command, tty=tty, stdin=stdin, width=width, height=height) as socket:
            return await attach(socket, stdin=stdin, raw=tty and stdin)

    return ask(invocation, session)
