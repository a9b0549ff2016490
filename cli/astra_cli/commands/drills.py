"""`astra dev link`, `port`, `kill` and `start`: what users' drills with a dev cluster's machines are made of."""

from __future__ import annotations

import asyncio
from typing import Any

import click

from astra_agent.errors import InvalidRequest, NotFound
from astra_cli import completing
from astra_cli.commands.dev import dev, state_option, where_is
from astra_cli.dev import control, files, network, played, requests
from astra_cli.invocation import json_option
from astra_cli.output import Output

machine_option = click.option(
    "--machine", required=True, metavar="NAME", help="Such as m-2.", shell_complete=completing.dev_machines
)


@dev.command()
@machine_option
@click.option("--rate", metavar="RATE", help="Such as 200mbit, in each direction; none takes it away.")
@click.option("--down", is_flag=True, help="Cut it.")
@click.option("--up", is_flag=True, help="Join it again.")
@state_option
@json_option
@click.pass_obj
def link(
    inherited: str | None, state: str | None, machine: str, rate: str | None, down: bool, up: bool, as_json: bool
) -> None:
    """
    Shape or cut a machine's link.

    The one between it and all the others, the coordinator too.
    """
    if down and up:
        raise InvalidRequest("--down and --up are opposites: give one of them")
    if rate is None and not (down or up):
        raise InvalidRequest("say what the link is to be: --rate 200mbit, --rate none, --down or --up")
    wanted = None if rate is None else network.parse_rate(rate)
    request = requests.LinkRequest(machine=machine, rate_bit_s=wanted, up=up if up or down else None)
    answer = asyncio.run(control.ask(where_is(state, inherited), request))
    now = {name: answer[name] for name in ("up", "rate_bit_s")}  # as `dev status` has it
    text = f"{machine}: link {'up' if now['up'] else 'down'}, {network.rate_text(now['rate_bit_s'])}"
    _show({"name": machine, "link": now}, text, as_json)


@dev.command()
@machine_option
@click.option("--port", "name", required=True, metavar="PORT", help="Such as mlx5_3 or mlx5_3:1.")
@click.option("--down", is_flag=True, help="Pull its cable.")
@click.option("--up", is_flag=True, help="Plug it in again.")
@state_option
@json_option
@click.pass_obj
def port(
    inherited: str | None, state: str | None, machine: str, name: str, down: bool, up: bool, as_json: bool
) -> None:
    """
    Fail a port of a machine's training network.

    Only in what the machine says that it has: no traffic goes over it in any case.
    """
    if down == up:
        raise InvalidRequest("say what the port is to be: --down or --up")
    where = where_is(state, inherited)
    plan = files.read_plan(where)
    if plan is None:
        raise NotFound(f"there is no dev cluster with its state in {where.state}; start one with `astra dev`")
    plays = plan.machine(machine)
    path = played.path_of(plays, where)
    files.write(path, played.with_port(plays, path.read_text(), name, up=up))
    _show({"name": machine, "port": name, "up": up}, f"{machine}: port {name} {'up' if up else 'down'}", as_json)


@dev.command()
@machine_option
@state_option
@json_option
@click.pass_obj
def kill(inherited: str | None, state: str | None, machine: str, as_json: bool) -> None:
    """
    Lose a machine.

    Its agent, its workers and its link, all at once, as in a power cut.
    """
    asyncio.run(control.ask(where_is(state, inherited), requests.Kill(machine=machine)))
    text = f"{machine}: off; boot it with `astra dev start --machine {machine}`"
    _show({"name": machine, "off": True}, text, as_json)


@dev.command()
@machine_option
@state_option
@json_option
@click.pass_obj
def start(inherited: str | None, state: str | None, machine: str, as_json: bool) -> None:
    """
    Boot a machine that was killed.

    Its disk is as it was, its workers are gone.
    """
    asyncio.run(control.ask(where_is(state, inherited), requests.Boot(machine=machine)))
    _show({"name": machine, "off": False}, f"{machine}: booted", as_json)


def _show(document: dict[str, Any], text: str, as_json: bool) -> None:
    """What a drill has made of a machine."""
    if as_json:
        Output(as_json=True).document(document)
    else:
        click.echo(text)
