"""`astra agent`, `astra coordinator` and `astra nomad`: `install` and `uninstall`."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import click

from astra_agent import init
from astra_agent.errors import Conflict, HostFault
from astra_cli import completing
from astra_cli.install import daemons, nomad, sources
from astra_cli.install.placing import Placing
from astra_cli.install.plan import Plan, Step
from astra_cli.invocation import json_option
from astra_cli.output import Output
from astra_cli.render import Cell

F = TypeVar("F", bound=Callable[..., Any])

STYLES = {"written": "green", "updated": "green", "removed": "green", "kept": "yellow"}
ROOT = Path("/")


def _common(command: F) -> F:
    for option in (
        json_option,
        click.option("--dry-run", "dry", is_flag=True, help="Say what would be done, and do nothing."),
        click.option(
            "--root",
            type=completing.FOLDER,
            default=ROOT,
            metavar="DIR",
            help="Another root, for a package or an image.",
        ),
    ):
        command = option(command)
    return command


_bin = click.option(
    "--bin", "bin_folder", type=completing.FOLDER, metavar="DIR", help="Where the programs are [this installation's]."
)


@click.group()
def agent() -> None:
    """The agent as a service of this machine."""


@click.group()
def coordinator() -> None:
    """
    The coordinator as a service of this machine.

    Where it is no job of Nomad's.
    """


@click.group(name="nomad")
def on_nomad() -> None:
    """What Nomad's client on this machine needs."""


@agent.command("install")
@click.option("--name", default="", metavar="NAME", help="This machine, as the coordinator knows it [its hostname].")
@click.option("--address", default="", metavar="IP", help="How peers reach it [of its default route].")
@click.option("--coordinator", "url", default="", metavar="URL", help="Such as http://10.0.0.1:7411.")
@_bin
@_common
def install_agent(
    name: str, address: str, url: str, bin_folder: Path | None, root: Path, dry: bool, as_json: bool
) -> None:
    """Put the agent's unit and settings in place. Can be run again: what is the operator's stays."""
    plan = daemons.agent(sources.programs(bin_folder), name=name, address=address, coordinator=url, root=root)
    notes = [] if dry or root != ROOT else _built()
    _install(plan, root, dry, as_json, notes)


@coordinator.command("install")
@_bin
@_common
def install_coordinator(bin_folder: Path | None, root: Path, dry: bool, as_json: bool) -> None:
    """Put the coordinator's unit, settings and tokens in place. Can be run again."""
    _install(daemons.coordinator(sources.programs(bin_folder)), root, dry, as_json)


@on_nomad.command("install")
@click.option(
    "--plugin-dir", type=completing.FOLDER, metavar="DIR", help=f"Of Nomad's client [its own, or {nomad.PLUGIN_DIR}]."
)
@click.option(
    "--config-dir",
    type=completing.FOLDER,
    default=nomad.CONFIG_DIR,
    metavar="DIR",
    help="Of Nomad's client.",
    show_default=True,
)
@click.option("--no-device", is_flag=True, help="Without the device plugin: on machines without GPUs.")
@_bin
@_common
def install_nomad(
    plugin_dir: Path | None,
    config_dir: Path,
    no_device: bool,
    bin_folder: Path | None,
    root: Path,
    dry: bool,
    as_json: bool,
) -> None:
    """Put the plugins, their configuration and the policies in place. Can be run again."""
    if not config_dir.is_absolute():
        raise click.UsageError(f"--config-dir is {str(config_dir)!r}: it must be an absolute path")
    found = nomad.look(config_dir, root)
    programs = sources.programs(bin_folder)
    plan = nomad.plan(programs, found, plugin_dir=plugin_dir, config_dir=config_dir, with_device=not no_device)
    _install(plan, root, dry, as_json)


@agent.command("uninstall")
@_common
def uninstall_agent(root: Path, dry: bool, as_json: bool) -> None:
    """Take away what `install` put in place and nobody has changed."""
    _refuse_running("astra-agent", root)
    then = ("systemctl daemon-reload", "rm -r /var/lib/astraeus, with the logs and records of this machine")
    _uninstall("agent", root, dry, as_json, then)


@coordinator.command("uninstall")
@_common
def uninstall_coordinator(root: Path, dry: bool, as_json: bool) -> None:
    """Take away what `install` put in place and nobody has changed."""
    _refuse_running("astra-coordinator", root)
    _uninstall("coordinator", root, dry, as_json, ("systemctl daemon-reload",))


@on_nomad.command("uninstall")
@_common
def uninstall_nomad(root: Path, dry: bool, as_json: bool) -> None:
    """Take away what `install` put in place and nobody has changed."""
    _uninstall("nomad", root, dry, as_json, ("systemctl restart nomad",))


def _install(plan: Plan, root: Path, dry: bool, as_json: bool, notes: Iterable[str] = ()) -> None:
    steps = Placing(plan.name, root, dry=dry).install(plan)
    _show(steps, [*plan.notes, *notes], plan.then, dry, Output(as_json=as_json))


def _uninstall(name: str, root: Path, dry: bool, as_json: bool, then: Iterable[str]) -> None:
    steps = Placing(name, root, dry=dry).remove()
    notes = [] if steps else [f"there is no record of an `astra {name} install` here: nothing was taken away"]
    _show(steps, notes, list(then) if steps else [], dry, Output(as_json=as_json))


def _built() -> list[str]:
    """The first process of containers is built where it is installed: a daemon may write nothing there."""
    try:
        init.program()
        init.logger()
    except HostFault as error:
        return [str(error)]
    return []


def _refuse_running(unit: str, root: Path) -> None:
    if root != ROOT:
        return
    try:
        asked = subprocess.run(["systemctl", "is-active", "--quiet", unit], check=False, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return
    if asked.returncode == 0:
        raise Conflict(f"{unit} is running: stop it first, with systemctl disable --now {unit}")


def _show(steps: Iterable[Step], notes: Iterable[str], then: Iterable[str], dry: bool, output: Output) -> None:
    steps, notes, then = list(steps), list(notes), list(then)
    if output.as_json:
        output.document({"dry_run": dry, "steps": [_document(step) for step in steps], "notes": notes, "then": then})
        return
    for step in steps:
        why = f" ({step.sentence})" if step.sentence else ""
        output.line(Cell(f"{step.action:<9}", STYLES.get(step.action, "dim")), Cell(f"{step.path}{why}"))
        if step.difference:
            output.note(step.difference)
    for note in notes:
        output.line(Cell("note     ", "yellow"), Cell(note))
    if dry:
        output.line(Cell("Nothing was done: this was a dry run.", "bold"))
    for number, words in enumerate(then, 1):
        output.line(Cell(f"then {number}.  ", "cyan"), Cell(words))


def _document(step: Step) -> dict[str, str]:
    return {
        "path": str(step.path), "action": step.action, "sentence": step.sentence, "difference": step.difference,
    }  # fmt: skip
