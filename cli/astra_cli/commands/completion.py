"""`astra completion`: the script that a shell evaluates."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]), metavar="SHELL")
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """
    Print the completion script for a shell: bash, zsh or fish.

    \b
    bash: eval "$(astra completion bash)"
    zsh:  eval "$(astra completion zsh)"
    fish: astra completion fish | source
    """
    kind = get_completion_class(shell)
    if kind is None:
        raise click.UsageError(f"there is no completion for {shell}")
    click.echo(kind(ctx.find_root().command, {}, "astra", "_ASTRA_COMPLETE").source())
