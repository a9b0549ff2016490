"""`astra dns`: which names workers are told, and what one of them would be answered."""

from __future__ import annotations

import click

from astra_agent.errors import NotFound
from astra_cli import completing, documents, render
from astra_cli.client import Client, Json
from astra_cli.invocation import Invocation, ask, talks

TYPES = ("A", "AAAA", "CNAME", "MX", "NS", "PTR", "SOA", "SRV", "TXT")


@click.group()
def dns() -> None:
    """The names of workers, as workers see them."""


@dns.command()
@click.argument("run", required=False, shell_complete=completing.runs)
@talks
def show(invocation: Invocation, run: str | None) -> None:
    """The names of the workspace's live runs, or of one."""
    document = ask(invocation, lambda client: client.names())
    if run is not None:
        document["items"] = [item for item in document["items"] if item["run"] == run]
        if not document["items"]:
            raise NotFound(f"no live run is named {run}: `astra status` lists the runs there are")
    if invocation.output.as_json:
        invocation.output.document(document)
    elif document["items"]:
        items = (documents.NamesOfRun.model_validate(item) for item in document["items"])
        invocation.output.table(render.names(items))
    else:
        invocation.output.note("no run is live, so there are no names")


@dns.command()
@click.argument("name", shell_complete=completing.workers)
@click.option(
    "--as", "worker", required=True, metavar="RUN-RANK", help="The worker who asks; RUN is its rank 0.",
    shell_complete=completing.workers,
)  # fmt: skip
@click.option("--type", "rtype", type=click.Choice(TYPES, case_sensitive=False), default="A", help="Type of record.")
@talks
def query(invocation: Invocation, name: str, worker: str, rtype: str) -> int:
    """Ask for NAME as a worker.

    Its machine's name server is asked as the worker itself would. Exits 1 when the name has no such record."""

    async def looked_up(client: Client) -> Json:
        run, rank = _worker((await client.jobs())["items"], worker)
        return await client.lookup(run, rank, name, rtype)

    document = ask(invocation, looked_up)
    if invocation.output.as_json:
        invocation.output.document(document)
    else:
        invocation.output.page(render.lookup(documents.Lookup.model_validate(document)))
    return 0 if document["records"] else 1


def _worker(jobs: list[Json], name: str) -> tuple[str, int]:
    """Run and rank of a worker by its name. Raises: NotFound."""
    for document in jobs:
        job = documents.Job.model_validate(document)
        if job.metadata.name == name:
            return name, 0
        for worker in job.status.workers:
            if worker.name == name:
                return job.metadata.name, worker.rank
    raise NotFound(f"no worker is named {name}: `astra status` lists the runs, `astra ranks RUN` the workers of one")
