"""`astra nodes`: the machines, or one as a picture."""

from __future__ import annotations

import click

from astra_agent.inventory.document import load
from astra_cli import completing, documents, render
from astra_cli.invocation import Invocation, ask, talks
from astra_cli.machine.picture import picture


@click.command()
@click.argument("machine", required=False, metavar="[NAME]", shell_complete=completing.machines)
@talks
def nodes(invocation: Invocation, machine: str | None) -> None:
    """
    The machines, what is free, who is away.

    With a NAME that one alone: what a drain of it would cost, and a picture of its GPUs and ports, and of what is
    wrong with them.
    """
    if machine is not None:
        _machine(invocation, machine)
        return
    document = ask(invocation, lambda client: client.machines())
    if invocation.output.as_json:
        invocation.output.document(document)
    elif document["items"]:
        invocation.output.table(render.machines(documents.Machine.model_validate(item) for item in document["items"]))
    else:
        invocation.output.note(
            "no machine is known to the coordinator yet; `astra dev status` shows a dev cluster's agents"
        )


def _machine(invocation: Invocation, name: str) -> None:
    output = invocation.output
    document = ask(invocation, lambda client: client.machine(name))
    if output.as_json:
        output.document(document)
        return
    summary = documents.Machine.model_validate(document)
    output.table(render.machines((summary,)))
    for cell in render.drain(summary):
        output.line(cell)
    output.out.file.write("\n")
    if document.get("inventory") is None:
        output.note(f"{summary.name} is not connected: what it has is not known now")
        return
    for cell in picture(load(document["inventory"])):
        output.line(cell)
