"""
What every command that talks to a coordinator shares: its options, its client, and how it runs.
"""

from __future__ import annotations

import asyncio
import functools
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any, Concatenate, ParamSpec, TypeVar

import click

from astra_cli import completing, context
from astra_cli.client import Client
from astra_cli.output import Output

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
    def wrapped(invocation: Invocation, as_json: bool, *args: P.args, **kwargs: P.kwargs) -> R:
        return command(replace(invocation, output=Output(as_json=as_json)), *args, **kwargs)

    return reaches(json_option(wrapped))


def reaches(command: Callable[..., R]) -> Callable[..., R]:
    """As `talks`, without `--json`: for a command whose output is a program's own."""

    @functools.wraps(command)
    def wrapped(api: str, token: str, workspace: str, **given: Any) -> R:
        return command(Invocation(context.Flags(api, token, workspace), Output()), **given)

    for option in (
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
    return click.argument("run", shell_complete=completing.runs)(command)
