"""`astra dev`: the cluster on this machine. Drills with it are in `drills`."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import click

import astra_cli
from astra_agent import errors
from astra_agent.errors import AstraError, HostFault, InvalidRequest, NotFound
from astra_cli import completing, context, render
from astra_cli.dev import checking, control, files, lock, network, played, requests, supervisor, sweep, topology
from astra_cli.dev.cluster import Cluster
from astra_cli.dev.plan import ClusterPlan, Layout, drive, layout, setting
from astra_cli.invocation import json_option
from astra_cli.output import Output
from astra_cli.reading import read

INTERRUPTED = 130
DEFAULT_MACHINES = 4

state_option = click.option(
    "--state",
    metavar="DIR",
    shell_complete=completing.folders,
    help="State folder [ASTRA_DEV_STATE, /var/lib/astraeus/dev].",
)


@click.group(invoke_without_command=True)
@click.option("--machines", type=int, metavar="N", help="How many machines to simulate [4].")
@click.option("--gpus-per-machine", "gpus", type=int, metavar="N", help="GPUs that each says it has [0].")
@click.option(
    "--topology", "topology_file", type=completing.FILE, metavar="FILE", help="YAML or JSON: what each machine has."
)
@click.option("--drive", "drives", multiple=True, metavar="NAME=PATH", help="A folder that runs may mount by name.")
@click.option(
    "--network",
    "slot_network",
    type=click.Choice(["host", "own"]),
    help="Workers share their machine's address [host], or have their own.",
)
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="NAME=N",
    help="The coordinator's policy, such as backoff_first_s=0, or the agents' bounds, such as stuck_after_s=5.",
)
@click.option("--disconnect-limit", type=float, metavar="S", help="Seconds that a machine may be cut off [60].")
@click.option(
    "--port", type=click.IntRange(1, 65535), metavar="N", help="Of the API on 127.0.0.1 [7410, or the next free one]."
)
@click.option("--detach", is_flag=True, help="Return once it is up; `astra dev stop` ends it.")
@state_option
@json_option
@click.pass_context
def dev(
    ctx: click.Context, /, state: str | None, port: int | None, detach: bool, as_json: bool, **shape: Any
) -> int | None:
    """
    A cluster of simulated machines on this one.

    Without a subcommand: start it, and stop it with Ctrl-C.

    Started again with the same state folder it has the same machines (unless told otherwise), runs and images.

    With --json one document is printed once it is up: its state folder and what `astra dev env` prints.
    """
    ctx.obj = state
    if ctx.invoked_subcommand is not None:
        return None
    where = layout(context.dev_state(os.environ, state))
    plan = _plan(where, **shape)
    checking.check(plan, where)
    supervisor.require_root()
    output = Output(as_json=as_json)
    output.progress(render.Cell(f"Astraeus dev cluster, state in {where.state}", "bold"))
    return _detach(output, plan, where, port or 0) if detach else _foreground(output, plan, where, port or 0)


def _plan(
    where: Layout, machines: int | None, gpus: int | None, topology_file: Path | None, drives: tuple[str, ...],
    slot_network: str | None, settings: tuple[str, ...], disconnect_limit: float | None,
) -> ClusterPlan:  # fmt: skip
    """What is asked for, and where nothing is, what the cluster had when it was last started."""
    before = files.read_plan(where)
    if topology_file is not None:
        if machines is not None or gpus is not None:
            raise InvalidRequest("--topology says all about the machines; leave out --machines and --gpus-per-machine")
        shape = topology.parse(read(topology_file), topology_file.absolute().parent)
        for machine in shape:
            if machine.machine_file is not None:
                played.machine_file(machine)
    elif machines is None and gpus is None and before is not None:
        shape = before.machines
    else:
        shape = topology.uniform(DEFAULT_MACHINES if machines is None else machines, gpus or 0)
    old = before or ClusterPlan(shape)
    return ClusterPlan(
        machines=shape,
        slot_network=slot_network or old.slot_network,
        drives={**_example_drive(), **(dict(drive(item) for item in drives) if drives else old.drives)},
        settings=dict(setting(item) for item in settings) if settings else old.settings,
        disconnect_limit_s=old.disconnect_limit_s if disconnect_limit is None else disconnect_limit,
    )


def _example_drive() -> dict[str, str]:
    """The drive `examples`, where this is a checkout: what the runs of that folder mount."""
    folder = Path(astra_cli.__file__).resolve().parents[2] / "examples"
    return {"examples": str(folder)} if (folder / "first-gang.json").is_file() else {}


def _foreground(output: Output, plan: ClusterPlan, where: Layout, port: int) -> int:
    async def run() -> bool:
        keeper = supervisor.Supervisor(
            plan, where, lambda sentence: output.progress(render.Cell(f"  {sentence}")), port
        )
        await keeper.run(introduce)
        return keeper.interrupted

    async def introduce(cluster: Cluster) -> None:
        _introduce(output, cluster.layout, "Ctrl-C stops it.")
        await supervisor.until_stopped()

    interrupted = asyncio.run(run())
    output.progress(render.Cell("stopped; nothing runs any more, runs and images are kept"))
    return INTERRUPTED if interrupted else 0


def _detach(output: Output, plan: ClusterPlan, where: Layout, port: int) -> int:
    """Start the supervisor as a process of its own, and tell what it does until the cluster is up."""
    where.logs.mkdir(parents=True, exist_ok=True, mode=0o700)
    request = json.dumps({"plan": plan.to_json(), "state": str(where.state), "port": port})
    with (where.logs / "dev.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "astra_cli.dev.detached"], cwd="/", start_new_session=True, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
        )  # fmt: skip
    interrupted = False
    while True:
        try:
            if process.stdin is not None and not process.stdin.closed:
                process.stdin.write(request)
                process.stdin.close()
            if _told(process, output):
                _introduce(output, where, "`astra dev stop` ends it.")
                return 0
            process.wait()
            return INTERRUPTED if interrupted else 1
        except KeyboardInterrupt:
            interrupted = True
            process.send_signal(signal.SIGTERM)


def _told(process: subprocess.Popen[str], output: Output) -> bool:
    """Show what the supervisor says until it is ready (True) or ends. Raises: the error that it ended with."""
    assert process.stdout is not None
    for line in process.stdout:
        document = json.loads(line)
        if "ready" in document:
            return True
        if "error" in document:
            process.wait()
            raise getattr(errors, document["error"]["code"], AstraError)(document["error"]["message"])
        output.progress(render.Cell(f"  {document['say']}"))
    return False


def _introduce(output: Output, where: Layout, ending: str) -> None:
    """What to do next, with lines that can be copied."""
    lines = _exports(where)
    if output.as_json:
        output.document({"state": str(where.state), **lines})
        output.out.file.flush()
        return
    output.line(render.Cell(f"The cluster is up: {lines['ASTRA_API']}. {ending}", "bold green"))
    if where.state != context.DEV_STATE:
        output.line(render.Cell(f"  export ASTRA_DEV_STATE={shlex.quote(str(where.state))}"))
    output.line(render.Cell("  astra run examples/first-gang.json --follow"))
    output.line(render.Cell(f"  export API={lines['API']} ASTRA_TOKEN={lines['ASTRA_TOKEN']}"))
    output.out.file.flush()


def _exports(where: Layout) -> dict[str, str]:
    """Raises: NotFound when the cluster does not run."""
    client = context.read_client_file(where.client_file)
    if client is None:
        raise NotFound(f"no dev cluster with its state in {where.state} is running; start it with `astra dev`")
    target = context.Target(client.api, client.token, "default", "")
    return {"API": target.workspace_url, "ASTRA_API": client.api, "ASTRA_TOKEN": client.token}


@dev.command()
@state_option
@click.option("--purge", "forget", is_flag=True, help="Also forget runs, images and logs.")
@json_option
@click.pass_obj
def stop(inherited: str | None, state: str | None, forget: bool, as_json: bool) -> None:
    """
    End the cluster and all that runs in it.

    Also what a killed one left. Runs and images are kept.
    """
    output, where = Output(as_json=as_json), where_is(state, inherited)
    there = supervisor.stop(where, lambda sentence: output.progress(render.Cell(f"  {sentence}")))
    purged = forget and where.state.is_dir()
    if purged:
        purge(where)
        output.progress(render.Cell(f"stopped; nothing is left of {where.state}"))
    elif there:
        output.progress(render.Cell("stopped; nothing runs any more, runs and images are kept"))
    else:
        output.progress(render.Cell(f"no dev cluster with its state in {where.state} was running"))
    if as_json:
        output.document({"state": str(where.state), "was_running": there, "purged": purged})


def purge(where: Layout) -> None:
    """Remove what a stopped cluster kept, and only that: a folder that was somebody's before keeps the rest."""
    if not where.state.is_dir():
        return
    if sweep.is_left(where):  # never remove what may be mounted on something else
        raise HostFault(f"something of the cluster in {where.state} still runs or is mounted; `astra dev stop` ends it")
    with lock.held(where, timeout_s=10.0):
        for name in ("coordinator", "containerd", "machines", "log", "tokens", "run"):
            shutil.rmtree(where.state / name, ignore_errors=True)
        for path in (where.plan_file, where.client_file, where.lock):
            path.unlink(missing_ok=True)
        if not any(where.state.iterdir()):
            where.state.rmdir()


@dev.command()
@state_option
@json_option
@click.pass_obj
def status(inherited: str | None, state: str | None, as_json: bool) -> None:
    """The cluster's processes, machines and links."""
    output, where = Output(as_json=as_json), where_is(state, inherited)
    document = asyncio.run(control.ask(where, requests.Status()))
    if as_json:
        output.document(document)
        return
    output.line(render.Cell(f"Astraeus dev cluster {document['cluster']}, state in {document['state']}", "bold"))
    daemons = (f"{name} {_pid(document[name])}" for name in ("coordinator", "containerd"))
    output.line(render.Cell(", ".join((f"API {document['api']}", *daemons))))
    output.out.file.write("\n")
    output.table(_machines(document))


def _machines(document: dict[str, Any]) -> render.Table:
    rows = []
    for machine in document["machines"]:
        link = machine["link"]
        on = render.Cell("off", "bold red") if machine["off"] else render.Cell("on", "green")
        shaped = network.rate_text(link["rate_bit_s"]) if link["up"] else "down"
        rows.append((
            render.Cell(machine["name"]), render.Cell(machine["address"]), on, render.Cell(shaped),
            render.Cell(_pid(machine["agent"])), render.Cell(machine["log"]),
        ))  # fmt: skip
    return render.Table(("MACHINE", "ADDRESS", "POWER", "LINK", "AGENT", "LOG"), tuple(rows))


def _pid(process: dict[str, Any]) -> str:
    return f"process {process['pid']}" if process["pid"] else "not running"


@dev.command()
@state_option
@json_option
@click.pass_obj
def env(inherited: str | None, state: str | None, as_json: bool) -> None:
    """
    Variables for curl, as lines for a shell.

    eval "$(astra dev env)"
    """
    exports = _exports(where_is(state, inherited))
    if as_json:
        Output(as_json=True).document(exports)
        return
    for name, value in exports.items():
        click.echo(f"export {name}={shlex.quote(value)}")


def where_is(state: str | None, inherited: str | None) -> Layout:
    return layout(context.dev_state(os.environ, state or inherited))
