"""`astra netcheck`: prove the network before a program relies on it."""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import secrets
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ParamSpec

import click

from astra_agent.errors import AstraError, InvalidRequest, NoCapacity, NotFound, Unauthorized
from astra_cli import completing, runfile
from astra_cli.client import Client
from astra_cli.invocation import Invocation, ask, run_argument, talks
from astra_cli.narrator import Quiet
from astra_cli.netcheck import with_program
from astra_cli.netcheck.endpoints import Named, Place, standing
from astra_cli.netcheck.lead import RunProgram, lead
from astra_cli.netcheck.lead_rails import lead_rails
from astra_cli.output import complain
from astra_cli.reading import read
from astra_netprobe.responder import Limits, Responder
from astra_netprobe.settings import Settings
from astra_netprobe.verdict import EXIT, Asked

TOKEN = "ASTRA_NETCHECK_TOKEN"
PORT = 7412
BAD_INPUT = 2
"""What is no run, no machine, or not the token of who may."""

P = ParamSpec("P")


@click.group()
def netcheck() -> None:
    """
    Prove the network between machines, or name its fault.

    Exit status: 0 sound, 1 below what was asked or a sick link, 2 bad input, 3 it could not be measured.
    """


def _measures(command: Callable[P, int]) -> Callable[P, int]:
    """Options of all probes; what keeps one from being made is told, and exits with 3."""

    @functools.wraps(command)
    def measured(*args: P.args, **kwargs: P.kwargs) -> int:
        try:
            rails: Any = kwargs["rails"]
            _check_several(rails, {"--save": kwargs["save"], "--plot": kwargs["picture"]})
            return command(*args, **kwargs)
        except InvalidRequest:
            raise
        except (NotFound, Unauthorized) as error:
            complain(str(error))
            return BAD_INPUT
        except AstraError as error:
            complain(str(error))
            return EXIT["unmeasured"]

    wrapped: Any = measured
    for option in (
        click.option("--save", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
                     help="Compare with the last good result in FILE; keep this one there when it is good."),
        click.option("--plot", "picture", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
                     help="Draw the matrix of pairs into FILE, .svg or .png."),
        click.option("--rail", "rails", multiple=True, metavar="DEVICE",
                     help="Over this port, such as eth1; several: each by itself, then all at once."),
        click.option("--min-gbps", type=click.FloatRange(min=0), default=None, metavar="N",
                     help="The rate that the machines' ports ought to have."),
        click.option("--time", "budget_s", type=click.FloatRange(1, 600), default=20.0, show_default=True,
                     metavar="SECONDS", help="How long it may measure; doubts may take half as much again."),
        click.option("--streams", type=click.IntRange(1, 64), default=1, show_default=True, metavar="N",
                     help="Connections for each pair."),
    ):  # fmt: skip
        wrapped = option(wrapped)
    return wrapped  # type: ignore[no-any-return]  # click's decorators keep the signature


@netcheck.command()
@click.argument("file", required=False, metavar="[FILE]", shell_complete=completing.files)
@click.option("--machines", type=click.IntRange(2), metavar="N", help="Instead of FILE: so many machines.")
@click.option("--gpus", type=click.IntRange(1), metavar="N", help="GPUs in all, with --machines.")
@click.option("--interconnect", type=click.Choice(["rdma", "infiniband", "nvlink"]), help="With --machines.")
@click.option(
    "--with", "framework", type=click.Choice(["torch"]), help="Then run an all-reduce in the run's image, too."
)
@click.option("--image", metavar="IMAGE", help="With --with: the image; FILE's own where FILE is given.")
@click.option(
    "--wait",
    "wait_s",
    type=click.FloatRange(10, 7200),
    default=1800.0,
    show_default=True,
    metavar="SECONDS",
    help="With --with: how long that may take, the fetch of its image included.",
)
@_measures
@talks
def preflight(
    invocation: Invocation,
    /,
    file: str | None,
    machines: int | None,
    gpus: int | None,
    interconnect: str | None,
    framework: str | None,
    image: str | None,
    wait_s: float,
    **measure: Any,
) -> int:
    """
    Probe the machines that a run would get now.

    FILE is the run's JSON or YAML, `-` standard input. Nothing is reserved: what runs there meanwhile is measured, too.

    `--with torch` goes on with a run of its own: an all-reduce by PyTorch in FILE's image, environment and drives, over
    NCCL with GPUs and Gloo without. A run that was promised RDMA and got NCCL's sockets fails the check.

    \b
    astra netcheck preflight examples/first-gang.json
    astra netcheck preflight --machines 4 --min-gbps 25
    astra netcheck preflight --machines 2 --gpus 16 --with torch --image nvcr.io/nvidia/pytorch:24.08-py3
    """
    _check_several(measure["rails"], {"--with": framework})
    document = _document(file, machines, gpus, interconnect, measure["min_gbps"])
    document = _with_image(document, framework, image, of_file=file is not None)

    async def conversation(client: Client) -> int:
        placed = await client.place(document)
        invocation.output.note(f"{placed['why']}: {', '.join(item['name'] for item in placed['machines'])}")
        places = [Named(item["name"], item["address"]) for item in placed["machines"]]
        asked = _asked(measure, placed["min_gbps"], placed["tier"])
        narrator = Quiet(invocation.output)
        after = functools.partial(with_program.run, client, document, narrator, limit_s=wait_s)
        return await _lead(invocation, client, places, measure, asked, after if framework else None)

    return ask(invocation, conversation)


@netcheck.command("run")
@run_argument
@_measures
@talks
def run_(invocation: Invocation, /, run: str, **measure: Any) -> int:
    """
    Probe the machines that a run holds now.

    Workers with addresses of their own are measured in their own network, others, and with --rail all, in their
    machine's.
    """

    async def conversation(client: Client) -> int:
        job = await client.job(run)
        workers = [worker for worker in job["status"]["workers"] if worker["machine"]]
        if not workers:
            raise NoCapacity(f"run {run} holds no machine now: it is {job['status']['phase']}")
        asked = _asked(measure, _min_gbps(job["spec"]), job["status"]["tier"])
        machines = await _named(client, [worker["machine"] for worker in workers])
        if measure["rails"]:
            return await _lead(invocation, client, machines, measure, asked)
        if early := [worker["name"] for worker in workers if worker.get("slot") and not worker["address"]]:
            invocation.output.note(f"{', '.join(early)}: no address yet; measured at the machine's")
        places = [_in_slot(worker, machine) for worker, machine in zip(workers, machines, strict=True)]
        return await _lead(invocation, client, places, measure, asked)

    return ask(invocation, conversation)


@netcheck.command()
@click.argument("one", metavar="A", shell_complete=completing.machines)
@click.argument("other", metavar="B", shell_complete=completing.machines)
@_measures
@talks
def pair(invocation: Invocation, /, one: str, other: str, **measure: Any) -> int:
    """
    Probe the way between two machines.

    A and B are names of machines with agents, or HOST:PORT of responders, whose token is in ASTRA_NETCHECK_TOKEN.
    """
    asked = [standing(one), standing(other)]
    stand = [place for place in asked if place is not None]
    if len(stand) == 2:
        return asyncio.run(_lead(invocation, None, stand, measure, _asked(measure)))

    async def conversation(client: Client) -> int:
        names = [name for name, place in zip((one, other), asked, strict=True) if place is None]
        known = {place.name: place for place in await _named(client, names)}
        places: list[Place] = [place or known[name] for name, place in zip((one, other), asked, strict=True)]
        return await _lead(invocation, client, places, measure, _asked(measure))

    return ask(invocation, conversation)


@netcheck.command()
@click.option("--listen", "address", default="0.0.0.0", show_default=True, metavar="ADDRESS")
@click.option("--port", type=click.IntRange(0, 65535), default=PORT, show_default=True)
@click.option("--at-once", type=click.IntRange(1, 16), default=2, show_default=True, help="Probes at the same time.")
@click.option(
    "--max-gbps",
    type=click.FloatRange(0),
    default=0.0,
    metavar="N",
    help="What this machine sends at most in each; 0: as much as goes.",
)
def responder(address: str, port: int, at_once: int, max_gbps: float) -> int:
    """
    Take part in probes on a machine without an agent.

    Until interrupted. Only for who knows the token in ASTRA_NETCHECK_TOKEN; without one, a new one is made and printed.
    """
    token = os.environ.get(TOKEN, "")
    if not token:
        token = secrets.token_urlsafe(16)
        sys.stderr.write(f"{TOKEN}={token}\n")
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(message)s")
    try:
        asyncio.run(Responder(token, Limits(at_once, 1e9 * max_gbps)).run(address, port))
    except OSError as error:
        raise InvalidRequest(
            f"{address}:{port} can't be listened on: {error.strerror}; name another", "--port"
        ) from error
    return 0


async def _lead(
    invocation: Invocation,
    client: Client | None,
    places: Sequence[Place],
    measure: dict[str, Any],
    asked: Asked,
    after: RunProgram | None = None,
) -> int:
    rails, settings = measure["rails"], Settings(budget_s=measure["budget_s"], streams=measure["streams"])
    token = os.environ.get(TOKEN, "")
    if len(rails) > 1:
        return await lead_rails(invocation.output, client, places, rails, token=token, asked=asked, settings=settings)
    return await lead(
        invocation.output,
        client,
        places,
        token=token,
        asked=asked,
        settings=replace(settings, device=rails[0] if rails else ""),
        save=measure["save"],
        drawing=measure["picture"],
        run_program=after,
    )


def _asked(measure: dict[str, Any], min_gbps: float = 0.0, tier: str | None = None) -> Asked:
    """Of the run, unless another rate is asked for on the command line; of the ports that it is placed by."""
    given = measure["min_gbps"]
    return Asked.of(min_gbps if given is None else given, tier or "")


def _min_gbps(spec: dict[str, Any]) -> float:
    """Of a run's specification as the coordinator tells it."""
    found: Any = spec
    for part in ("task_template", "requested_resources", "network", "min_gbps"):
        found = (found or {}).get(part)
    return float(found or 0.0)


def _in_slot(worker: Mapping[str, Any], machine: Named) -> Named:
    """Where a worker has an address of its own, in its slot's network."""
    slot, address = worker.get("slot"), worker["address"]
    return replace(machine, address=address, slot=slot) if slot and address not in (None, machine.address) else machine


def _check_several(rails: Sequence[str], given: Mapping[str, object]) -> None:
    """Raises: InvalidRequest, for the first option that goes with one port alone, before anybody is asked."""
    reasons = {
        "--save": "which keeps one result",
        "--plot": "which draws one matrix",
        "--with": "whose library chooses its ports itself",
    }
    for option, value in given.items():
        if value is not None and len(rails) > 1:
            raise InvalidRequest(
                f"{option}, {reasons[option]}, goes with one --rail at most: here are {', '.join(rails)}", option
            )


async def _named(client: Client, names: list[str]) -> list[Named]:
    """Raises: NotFound, for a name that no machine has."""
    addresses = {item["name"]: item["address"] for item in (await client.machines())["items"]}
    if unknown := [name for name in names if name not in addresses]:
        raise InvalidRequest(f"there is no machine {unknown[0]}: there are {', '.join(sorted(addresses)) or 'none'}")
    return [Named(name, addresses[name]) for name in names]


def _with_image(document: dict[str, Any], framework: str | None, image: str | None, *, of_file: bool) -> dict[str, Any]:
    if framework is None:
        if image is not None:
            raise InvalidRequest("--image goes with --with torch: the probe itself needs no image", "--image")
        return document
    if image is None and not of_file:
        raise InvalidRequest("--image is missing: --with torch runs in the image that has your PyTorch", "--image")
    return runfile.with_image(document, image) if image is not None else document


def _document(
    file: str | None, machines: int | None, gpus: int | None, interconnect: str | None, min_gbps: float | None
) -> dict[str, Any]:
    if (file is None) == (machines is None):
        raise InvalidRequest("give one of FILE and --machines N; see `astra netcheck preflight --help`")
    if file is not None:
        if gpus or interconnect:
            raise InvalidRequest("--gpus and --interconnect go with --machines: FILE says them itself")
        return runfile.parse(sys.stdin.read(), "standard input") if file == "-" else read(Path(file))
    network = {"interconnect": interconnect} if interconnect else {}
    if min_gbps and interconnect:
        network["min_gbps"] = min_gbps  # type: ignore[assignment]  # a document's values are of any kind
    resources: dict[str, Any] = {"machines": machines}
    if network:
        resources["network"] = network
    if gpus:
        resources["gpu_requests"] = {"count": gpus}
    return {
        "metadata": {"name": "preflight"},
        "spec": {
            "start": "Gang",
            "task_template": {"image": "host", "command": "true", "requested_resources": resources},
        },
    }
