"""
The `astra` command.

Errors end here: each becomes one sentence on standard error, and the exit status of its row in
`astra_agent.errors.HANDLING`. A bug of ours keeps its traceback and exits with 70.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NoReturn

import click

from astra_agent.errors import AstraError, first_of, handling
from astra_cli.output import complain

INTERRUPTED = 130

_WORDS = (
    (". (Did you mean", " (did you mean"),
    (". Did you mean", "; did you mean"),
    ("'[", "'"),
    ("]'", "'"),
    (". Choose from", "; choose from"),
    ("valid integer range", "valid integer"),
    ("valid float range", "valid number"),
    ("valid float", "valid number"),
)
"""click's words, and ours for people who know no Python."""
_TAKE_A_COMMAND = ("run", "exec")


class Group(click.Group):
    """
    A group whose commands are imported when they are asked for: no command waits for what the others need.

    Attributes:
        later: By name, the module in `astra_cli.commands` and the command in it.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.later: dict[str, str] = {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*self.commands, *self.later})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.commands:
            for name in (cmd_name,) if cmd_name in self.later else tuple(self.later):  # all, to say what was meant
                module, _, attribute = self.later.pop(name).partition(":")
                self.add_command(getattr(import_module(f"astra_cli.commands.{module}"), attribute), name)
        return super().get_command(ctx, cmd_name)


@click.group(cls=Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="astraeus", prog_name="astra")
def cli() -> None:
    """Training on several machines at once: gangs placed whole, started together, restarted together."""


_RUNS = {
    "run": "run:run", "status": "look:status", "ranks": "look:ranks", "events": "look:events", "logs": "look:logs",
    "exec": "act:execute", "stop": "act:stop", "nodes": "nodes:nodes",
}  # fmt: skip
_MACHINES = {
    "agent": "install:agent", "capture": "machine:capture", "completion": "completion:completion",
    "coordinator": "install:coordinator", "demo": "demo:demo", "dev": "drills:dev", "dns": "dns:dns",
    "doctor": "doctor:doctor", "netcheck": "netcheck:netcheck", "nomad": "install:on_nomad",
}  # fmt: skip
astraeus = Group("astraeus", help="The same commands by another name.")
astraeus.later.update(_RUNS)
cli.later.update(_RUNS | _MACHINES)
cli.add_command(astraeus)


def main() -> NoReturn:
    sys.exit(invoke(sys.argv[1:]))


def invoke(arguments: Sequence[str]) -> int:
    """Run one command line. Returns its exit status."""
    try:
        status = cli.main(list(arguments), prog_name="astra", standalone_mode=False)
    except click.exceptions.Abort:
        return INTERRUPTED
    except click.exceptions.NoArgsIsHelpError as error:  # a group alone: its help is the answer, not a sentence
        sys.stderr.write(error.format_message() + "\n")
        return 2
    except click.ClickException as error:
        complain(_usage(error, arguments))
        return 2
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the interpreter flushes once more at its end
        return 1
    except BaseExceptionGroup as group:
        return _fail(first_of(group))
    except AstraError as error:
        return _fail(error)
    return status if isinstance(status, int) else 0


def _fail(error: BaseException) -> int:
    if not isinstance(error, AstraError):
        raise error
    complain(str(error))
    return handling(error).exit


def _usage(error: click.ClickException, arguments: Sequence[str]) -> str:
    """click's message as one sentence of ours, with the help that has the answer."""
    message = " ".join(error.format_message().split()).rstrip(".")
    for theirs, ours in _WORDS:
        message = message.replace(theirs, ours)
    path = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx else _asked(arguments)
    if isinstance(error, click.NoSuchOption) and not error.possibilities and path.rpartition(" ")[2] in _TAKE_A_COMMAND:
        message = f"{message}; options of the command itself come behind `--`"
    see = " See" if message.endswith("?") else "; see"
    return f"{message[:1].lower()}{message[1:]}{see} `{path} --help`"


def _asked(arguments: Sequence[str]) -> str:
    """The command that is meant, for an error of click's own parser, which knows none."""
    path = "astra"
    command: click.Command = cli
    for word in arguments:
        found = command.get_command(click.Context(command), word) if isinstance(command, click.Group) else None
        if found is None:
            break
        path, command = f"{path} {word}", found
    return path


if __name__ == "__main__":
    main()
