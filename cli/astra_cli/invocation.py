"""
What every command that talks to a coordinator shares: its options, its client, and how it runs.
"""

from __future__ import annotations

import asyncio
import functools
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Concatenate, ParamSpec, TypeVar

import click
from click.shell_completion import CompletionItem

from astra_agent.errors import AstraError
from astra_cli import context
from astra_cli.client import Client
from astra_cli.output import Output

COMPLETION_TIMEOUT_S = 2.0
"""A shell that waits for names must not wait long."""


P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Invocation:
    flags: context.Flags
    output: Output

    def client(self) -> Client:
        return Client(context.find(self.flags, os.environ))


def json_option(command: F) -> F:
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(command)


def talks(command: Callable[Concatenate[Invocation, P], R]) -> Callable[..., R]:
    """Adds `--api`, `--token`, `--workspace` and `--json`; the command gets them as an `Invocation`."""

    @functools.wraps(command)
    def wrapped(api: str, token: str, workspace: str, as_json: bool, *args: P.args, **kwargs: P.kwargs) -> R:
        flags = context.Flags(api, token, workspace)
        return command(Invocation(flags, Output(as_json=as_json)), *args, **kwargs)

    for option in (
        json_option,
        click.option("--workspace", default="", metavar="NAME", help="Workspace [ASTRA_WORKSPACE, default]."),
        click.option("--token", default="", metavar="TOKEN", help="Token [ASTRA_TOKEN, the dev cluster's]."),
        click.option("--api", default="", metavar="URL", help="Coordinator [ASTRA_API, the dev cluster's]."),
    ):
        wrapped = option(wrapped)
    return wrapped


def ask(invocation: Invocation, question: Callable[[Client], Awaitable[R]]) -> R:
    """Run one conversation with the coordinator."""

    async def conversation() -> R:
        async with invocation.client() as client:
            return await question(client)

    return asyncio.run(conversation())


def run_argument(command: F) -> F:
    return click.argument("run", shell_complete=_run_names)(command)


def _run_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of runs, for the shell; none when the coordinator is slow or away."""
    flags = context.Flags(*(ctx.params.get(name) or "" for name in ("api", "token", "workspace")))

    async def names(client: Client) -> list[str]:
        async with asyncio.timeout(COMPLETION_TIMEOUT_S):
            return [item["metadata"]["name"] for item in (await client.jobs())["items"]]

    try:
        found = ask(Invocation(flags, Output()), names)
    except (AstraError, TimeoutError):
        return []
    return [CompletionItem(name) for name in found if name.startswith(incomplete)]
