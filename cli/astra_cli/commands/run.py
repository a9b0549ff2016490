"""`astra run`, which is `astra astraeus run` as well."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import click

from astra_agent.errors import InvalidRequest
from astra_cli import completing, documents, render, runfile
from astra_cli.client import Client
from astra_cli.follow import follow_run
from astra_cli.invocation import Invocation, ask, talks
from astra_cli.narrator import Story
from astra_cli.reading import read

INTERRUPTED = 130
EXIT = {"Completed": 0, "Failed": 1, "Stopped": 1}
REFUSED = 2


@click.command()
@click.argument(
    "words", nargs=-1, type=click.UNPROCESSED, metavar="FILE | -- COMMAND ARGS…", shell_complete=completing.files
)
@click.option("--name", metavar="NAME", help="The run's name: a DNS label.")
@click.option(
    "--image", metavar="IMAGE", help="`host`, a reference such as busybox:1.36, or `oci-archive:` and a path."
)
@click.option("--machines", type=int, metavar="N", help="How many machines; more than one is a gang.")
@click.option("--gpus", type=int, metavar="N", help="GPUs in all.")
@click.option("--start", type=click.Choice(runfile.STARTS), help="How its workers start.")
@click.option("--on-failure", type=click.Choice(runfile.ON_FAILURE), help="What a failed worker leads to.")
@click.option("--env", multiple=True, metavar="K=V", help="A variable for every worker; wins over Astraeus's.")
@click.option("--drive", "drives", multiple=True, metavar="NAME:/PATH[:ro]", help="Mount a drive of the cluster.")
@click.option("--time-limit", metavar="TIME", help="Such as 90s, 30m, 24h.")
@click.option("--cpus", "cpu_cores", type=float, metavar="N", help="CPU cores of each worker.")
@click.option("--memory", metavar="SIZE", help="Memory of each worker, such as 16Gi.")
@click.option(
    "--preflight", is_flag=True, default=None, help="Prove the network between the machines before any program starts."
)
@click.option("--spares", type=int, metavar="N", help="Machines that are held for those that fail.")
@click.option("--follow", "following", is_flag=True, help="Show progress and rank 0's log; exit as the run does.")
@talks
def run(invocation: Invocation, /, words: tuple[str, ...], following: bool, **flags: Any) -> int:
    """
    Submit a run, from a file or flags.

    FILE is JSON or YAML, `-` standard input.

    \b
    astra run examples/first-gang.json --follow
    astra run --name hello --image host --machines 4 -- sh -c 'echo rank $RANK of $WORLD_SIZE'

    With --follow the exit status is the run's: 0 completed, 1 failed or stopped, 2 refused. Ctrl-C leaves it running.
    """
    document = _document(words, flags)
    try:
        job = ask(invocation, lambda client: client.submit(document))
    except InvalidRequest as error:
        if flags["image"] is None:  # a file was read: the fields are those that its writer knows
            raise
        raise InvalidRequest(runfile.in_flags(str(error)), error.field) from error
    name = documents.Metadata.model_validate(job["metadata"]).name
    if following:
        return _follow(invocation, name, job)
    if invocation.output.as_json:
        invocation.output.document(job)
        return 0
    invocation.output.line(render.Cell(render.submitted(documents.Job.model_validate(job))))
    invocation.output.note(f"  astra status {name}     how it is\n  astra logs {name} -f    what rank 0 writes")
    return 0


def _document(words: tuple[str, ...], flags: dict[str, Any]) -> dict[str, Any]:
    """A file when `--image` is not given, else a document of the flags."""
    given = [name for name, value in flags.items() if value not in (None, ())]
    if flags["image"] is not None:
        if len(words) == 1 and words[0].endswith((".json", ".yaml", ".yml")) and Path(words[0]).is_file():
            raise InvalidRequest(f"--image does not go with a file: write it into {words[0]}", "--image")
        if not flags["name"]:
            raise InvalidRequest("--name is missing: a run made of flags needs one, such as --name hello", "--name")
        return runfile.build(runfile.RunFlags(command=words, **flags))
    if flags["name"] and (len(words) != 1 or not (words[0] == "-" or Path(words[0]).exists())):
        no_file = f"{words[0]} is no file, and " if len(words) == 1 else ""
        raise InvalidRequest(
            f"{no_file}--image is missing: a run made of flags needs it, such as --image host", "--image"
        )
    if len(words) != 1:
        raise InvalidRequest(
            "give one FILE, or --name and --image (and after `--` the command); see `astra run --help`"
        )
    if others := [name for name in given if name != "name"]:
        option = "--" + others[0].replace("_", "-").replace("drives", "drive").replace("cpu-cores", "cpus")
        raise InvalidRequest(f"{option} does not go with a file: write it into {words[0]}", option)
    document = runfile.parse(sys.stdin.read(), "standard input") if words[0] == "-" else read(Path(words[0]))
    return runfile.named(document, flags["name"]) if flags["name"] else document


def _follow(invocation: Invocation, name: str, submitted: dict[str, Any]) -> int:
    """Tell of the run until its end. Ctrl-C ends the telling only."""

    async def watch(client: Client) -> documents.Job:
        with Story(invocation.output) as story:
            story.phase(documents.Job.model_validate(submitted), submitted)
            return await follow_run(client, name, story)

    try:
        job = ask(invocation, watch)
    except (KeyboardInterrupt, asyncio.CancelledError):
        invocation.output.note(f"{name} goes on: `astra status {name}` shows it, `astra stop {name}` ends it", "yellow")
        return INTERRUPTED
    return REFUSED if job.status.refused else EXIT[job.status.phase]
