"""
What a shell completes: names that the coordinator knows, machines of the dev cluster, files.

Nothing here may fail or wait long: where something is not known, nothing is completed.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from astra_agent.errors import AstraError
from astra_cli import context
from astra_cli.client import Client

TIMEOUT_S = 2.0
"""A shell that waits for names must not wait long."""

FILE = click.Path(path_type=Path, readable=False)
FOLDER = click.Path(path_type=Path, readable=False, file_okay=False)
"""Paths that shells complete. What can't be read is said by whoever reads it."""

Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]
Json = dict[str, Any]


def files(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(incomplete, type="file")]


def folders(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(incomplete, type="dir")]


def _told(question: Callable[[Client], Awaitable[Json]], names: Callable[[Json], list[str]]) -> Complete:
    """Names out of the coordinator's answer; none when it is slow or away."""

    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        flags = context.Flags(*(ctx.params.get(name) or "" for name in ("api", "token", "workspace")))

        async def answer() -> Json:
            async with asyncio.timeout(TIMEOUT_S), Client(context.find(flags, os.environ)) as client:
                return await question(client)

        try:
            found = [name for item in asyncio.run(answer())["items"] for name in names(item)]
        except (AstraError, TimeoutError):
            return []
        return _beginning(found, incomplete)

    return complete


runs = _told(lambda client: client.jobs(), lambda job: [job["metadata"]["name"]])
workers = _told(lambda client: client.jobs(), lambda job: [worker["name"] for worker in job["status"]["workers"]])
machines = _told(lambda client: client.machines(), lambda machine: [machine["name"]])


def dev_machines(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Of the cluster in the state folder that the words before say; none for who may not read it."""
    from astra_cli.dev import files as plans  # reads what only `astra dev` needs
    from astra_cli.dev.plan import layout

    state = ctx.params.get("state") or (ctx.parent.params.get("state") if ctx.parent is not None else None)
    try:
        plan = plans.read_plan(layout(context.dev_state(os.environ, state)))
    except AstraError:
        return []
    return _beginning([machine.name for machine in plan.machines] if plan is not None else [], incomplete)


def _beginning(names: list[str], incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]
