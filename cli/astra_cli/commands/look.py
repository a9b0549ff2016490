"""`astra status`, `ranks`, `events`, `logs`: commands that only look at runs."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import click

from astra_agent.errors import Unavailable
from astra_cli import completing, documents, render
from astra_cli.client import Client
from astra_cli.follow import Lines, Patience, expect_log, follow_log
from astra_cli.invocation import Invocation, ask, run_argument, talks
from astra_cli.narrator import Quiet
from astra_cli.output import Output


@click.command()
@click.argument("run", required=False, shell_complete=completing.runs)
@talks
def status(invocation: Invocation, run: str | None) -> None:
    """How the runs are, or one run and its workers."""
    output, now = invocation.output, datetime.now(UTC)
    document = ask(invocation, lambda client: client.job(run) if run else client.jobs())
    if output.as_json:
        output.document(document)
    elif run:
        output.page(render.job(documents.Job.model_validate(document), now))
    elif document["items"]:
        output.table(render.jobs((documents.Job.model_validate(item) for item in document["items"]), now))
    else:
        output.note("no runs yet; submit one with `astra run FILE`")


@click.command()
@run_argument
@click.option("--attempt", type=click.IntRange(0), help="Another attempt than the newest.")
@talks
def ranks(invocation: Invocation, run: str, attempt: int | None) -> None:
    """Machine, slot and end of each rank.

    Of the newest attempt unless --attempt says otherwise."""
    document = ask(invocation, lambda client: client.ranks(run, attempt))
    if invocation.output.as_json:
        invocation.output.document(document)
    else:
        invocation.output.page(render.ranks(documents.Ranks.model_validate(document)))


@click.command()
@run_argument
@click.option("-f", "--follow", is_flag=True, help="Go on until the run has ended.")
@talks
def events(invocation: Invocation, run: str, follow: bool) -> None:
    """What happened to a run, oldest first."""

    async def show(client: Client) -> None:
        if not follow:
            document = await client.events(run)
            if invocation.output.as_json:
                invocation.output.document(document)
                return
            for item in document["items"]:
                _event(invocation.output, item)
            return
        async for item in _followed_events(client, run, Patience(Quiet(invocation.output))):
            _event(invocation.output, item)

    ask(invocation, show)


def _event(output: Output, item: dict[str, Any]) -> None:
    if output.as_json:
        output.record(item)
    else:
        output.line(*render.event(documents.Event.model_validate(item)))


async def _followed_events(client: Client, run: str, patience: Patience) -> AsyncIterator[dict[str, Any]]:
    """Every event once, also when the coordinator is started again in between."""
    after = 0
    while True:
        try:
            async for item in client.follow_events(run, after):
                patience.met()
                after = max(after, int(item["id"]))
                yield item
            return
        except Unavailable as error:
            await patience.wait(error)


@click.command()
@run_argument
@click.argument("rank", type=click.IntRange(0), default=0)
@click.option("-f", "--follow", is_flag=True, help="Go on until the attempt has ended.")
@click.option("--attempt", type=click.IntRange(0), help="Another attempt than the newest.")
@click.option("--tail", "tail_bytes", type=click.IntRange(0), metavar="BYTES", help="Only the last bytes.")
@talks
def logs(
    invocation: Invocation, run: str, rank: int, follow: bool, attempt: int | None, tail_bytes: int | None
) -> None:
    """What a worker wrote, rank 0 by default."""

    async def show(client: Client) -> None:
        if follow and tail_bytes is None:  # a tail can't be taken up again where it broke off
            pieces = follow_log(client, run, rank, attempt, Patience(Quiet(invocation.output)))
        else:
            pieces = client.logs(run, rank, attempt=attempt, follow=follow, tail_bytes=tail_bytes)
        lines, empty = Lines(), True
        async for piece in pieces:
            empty = False
            if invocation.output.as_json:
                _log_records(rank, lines.feed(piece))
            else:
                sys.stdout.buffer.write(piece)
                sys.stdout.buffer.flush()
        _log_records(rank, lines.rest())
        if follow and empty:
            await expect_log(client, run, rank, attempt)

    ask(invocation, show)


def _log_records(rank: int, lines: list[str]) -> None:
    for line in lines:
        sys.stdout.write(json.dumps({"rank": rank, "line": line}, ensure_ascii=False) + "\n")
    sys.stdout.flush()
