"""A probe led from the command line: the picture of its matrix, on a terminal and in a file."""

from __future__ import annotations

import asyncio
import io
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
from matplotlib import image
from rich.console import Console

from astra_agent.errors import InvalidRequest
from astra_cli.commands import netcheck as commands
from astra_cli.main import invoke
from astra_cli.netcheck import plot, report
from astra_cli.netcheck.endpoints import Named, Place, Standing
from astra_cli.netcheck.lead import lead
from astra_cli.netcheck.lead_rails import lead_rails
from astra_cli.output import Output
from astra_netprobe.matrix import Matrix
from astra_netprobe.readings import Evidence, Flow
from astra_netprobe.responder import Responder
from astra_netprobe.settings import MIB, Settings
from astra_netprobe.verdict import Asked, judge
from tests.fakes.api import TOKEN as API_TOKEN
from tests.fakes.api import FakeApi, job

TOKEN = "a-token"
NAMES = ("m-0", "m-1", "m-2")
SLOW = Matrix(
    NAMES,
    rates=((None, 0.95e9, 0.2e9), (0.94e9, None, 0.21e9), (0.95e9, 0.95e9, None)),
    trips_s=((None,) * 3,) * 3,
)
SENTENCE = "m-2 receives at 0.22 of the others' median; the link of m-2 is slow in one direction"
QUICK = Settings(small_sizes=(8,), large_sizes=(MIB, 2 * MIB), budget_s=3, pair_s=0.2, small_iterations=5, trips=10)


@pytest.fixture
async def two() -> AsyncIterator[list[Standing]]:
    """Two machines with responders, on loopback."""
    async with asyncio.TaskGroup() as group:
        places, tasks = [], []
        for address in ("127.0.0.1", "127.0.0.2"):
            made, ready = Responder(TOKEN), asyncio.Event()
            tasks.append(group.create_task(made.run(address, 0, ready)))
            await ready.wait()
            places.append(Standing(address, made.port))
        yield places
        for task in tasks:
            task.cancel()


def test_the_picture_of_a_slow_machine_has_its_names_its_numbers_and_the_verdict(tmp_path: Path) -> None:
    file = tmp_path / "matrix.svg"
    plot.to(file)(SLOW, SENTENCE, ("m-2",))
    text = file.read_text()
    assert text.count(">m-2<") == 2 and text.count(">m-0<") == 2
    for written in ("0.20", "0.21", "0.94", "Gbit/s", "sender", "receiver"):
        assert written in text
    assert "m-2 receives at 0.22" in text


def test_in_a_png_what_is_slow_is_darker_than_what_is_not(tmp_path: Path) -> None:
    def brightness(rate: float) -> float:
        """Of the whole picture: one cell of two differs."""
        file = tmp_path / "matrix.png"
        plot.to(file)(Matrix(NAMES[:2], ((None, 1e9), (rate, None)), ((None,) * 2,) * 2), "", ())
        return float(image.imread(file)[..., :3].mean())

    assert brightness(0.1e9) < brightness(0.9e9) - 0.01


@pytest.mark.parametrize("count", [1, 17, 130])
def test_any_number_of_machines_gets_a_picture(tmp_path: Path, count: int) -> None:
    names = tuple(f"gpu-{i}" for i in range(count))
    rates = tuple((None,) * count for _ in names)
    file = tmp_path / "matrix.svg"
    plot.to(file)(Matrix(names, rates, rates), "nothing was measured", (names[-1],))
    assert file.read_text().count(f">{names[-1]}<") == 2


@pytest.mark.parametrize("name", ["matrix", "matrix.pdf", "matrix.svg.gz"])
def test_a_file_that_is_no_picture_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidRequest, match=r"a picture is \.svg or \.png"):
        plot.to(tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="there is no folder"):
        plot.to(tmp_path / "absent" / "matrix.svg")


def test_without_the_library_it_says_which_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(InvalidRequest, match=r"matplotlib, which is not installed: pip install 'astraeus\[plot\]'"):
        plot.to(tmp_path / "matrix.svg")


async def test_on_a_terminal_the_matrix_is_shown_as_it_fills_and_drawn_at_the_end(
    two: list[Standing], tmp_path: Path
) -> None:
    screen = io.StringIO()
    output = Output(
        out=Console(file=io.StringIO(), force_terminal=True),
        err=Console(file=screen, force_terminal=True, width=120, height=40),
    )
    file = tmp_path / "matrix.svg"
    code = await lead(
        output, None, two, token=TOKEN, asked=Asked(), settings=QUICK, save=None, drawing=file
    )  # fmt: skip
    assert code in (0, 1), output.out.file
    assert "Gbit/s, from row to column" in screen.getvalue()
    assert two[0].name in file.read_text()


async def test_several_ports_are_told_each_by_itself_and_the_worst_decides(two: list[Standing]) -> None:
    out = Console(file=io.StringIO())
    code = await lead_rails(
        Output(out=out), None, two, ("lo", "ib7"), token=TOKEN, asked=Asked(), settings=replace(QUICK, budget_s=6)
    )
    text = cast(io.StringIO, out.file).getvalue()
    assert code in (1, 3), text  # 1 where a busy machine's loopback is uneven
    told = text.partition("\n\n")[0]
    assert "there is no port ib7 with an IPv4 address here: there are lo" in told and "\nlo: " in f"\n{told}"
    assert "\nlo by itself\n" in text and "\nib7 by itself\n" in text


async def test_on_a_terminal_the_matrix_of_each_port_is_shown_as_it_fills(two: list[Standing]) -> None:
    screen = io.StringIO()
    output = Output(
        out=Console(file=io.StringIO(), force_terminal=True),
        err=Console(file=screen, force_terminal=True, width=120, height=40),
    )
    await lead_rails(output, None, two, ("lo", "ib7"), token=TOKEN, asked=Asked(), settings=replace(QUICK, budget_s=6))
    assert "lo" in screen.getvalue() and "Gbit/s, from row to column" in screen.getvalue()


@pytest.mark.parametrize("option", ["--save", "--plot", "--with"])
def test_what_goes_with_one_port_is_refused_with_several_before_anybody_is_asked(
    option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    value = {"--save": "before.json", "--plot": "matrix.svg", "--with": "torch"}[option]
    words = ["netcheck", "preflight", "--machines", "2", "--rail", "eth1", "--rail", "eth2", option, value]
    assert invoke([*words, "--image", "torch:2"] if option == "--with" else words) == 2
    said = capsys.readouterr().err
    assert f"{option}, wh" in said and "goes with one --rail at most: here are eth1, eth2" in said, said


def test_a_run_is_measured_where_its_workers_have_their_addresses(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    led: list[Place] = []

    async def lead_none(output: Output, client: object, places: Sequence[Place], **_: object) -> int:
        led[:] = places
        return 0

    monkeypatch.setattr(commands, "lead", lead_none)
    api.job = job()
    at_machine, own, early = [{**api.job["status"]["workers"][0], "machine": "m-1"} for _ in range(3)]
    at_machine["slot"] = "s0"
    own |= {"slot": "s1", "address": "10.99.0.1"}
    early |= {"slot": "s2", "address": None, "name": "first-gang-2"}
    api.job["status"]["workers"] = [at_machine, own, early]
    assert invoke(["netcheck", "run", "first-gang"]) == 0
    machine = Named("m-1", "10.83.1.1")
    assert led == [machine, Named("m-1", "10.99.0.1", "s1"), machine]
    assert "first-gang-2: no address yet; measured at the machine's" in capsys.readouterr().err
    assert invoke(["netcheck", "run", "first-gang", "--rail", "eth1"]) == 0
    assert led == [machine] * 3


async def test_a_port_that_is_named_twice_is_refused(two: list[Standing]) -> None:
    with pytest.raises(InvalidRequest, match="names a port twice: lo, lo"):
        await lead_rails(Output(), None, two, ("lo", "lo"), token=TOKEN, asked=Asked(), settings=QUICK)


async def test_what_can_not_be_drawn_is_said_before_anything_is_measured(tmp_path: Path) -> None:
    nobody = [Standing("127.0.0.1", 9), Standing("127.0.0.1", 10)]
    with pytest.raises(InvalidRequest, match="picture"):
        await lead(
            Output(), None, nobody, token="", asked=Asked(), settings=QUICK, save=None, drawing=tmp_path / "a.gif"
        )


@pytest.mark.parametrize(
    ("before", "told"),
    [
        ({"bounds": {}}, True),
        ({}, True),  # as an older report
        ({"bounds": {"m-1": 1e9}}, False),
        (None, True),
    ],
)
def test_results_are_compared_where_machines_had_the_same_bounds(before: object, told: bool) -> None:
    flows = tuple(Flow(*pair, 1e9) for pair in (NAMES[:2], NAMES[1::-1]))
    evidence = Evidence(NAMES[:2], rounds=(flows,))
    now = report.document(evidence, judge(evidence), None, at="2026-01-02T00:00:00Z")
    compared = report.comparison(now, now | {"evidence": before})
    assert (compared is not None and "pairs at 1.00 of the last good result" in compared) == told


# Which exit status, and what a run asks for ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "token", "sentence"),
    [
        (["run", "no-such-run"], API_TOKEN, "there is no run no-such-run"),
        (["run", "first-gang"], "wrong", "the token is wrong"),
        (["pair", "m-1", "m-2"], "wrong", "the token is wrong"),
        (["preflight", "--machines", "2"], "wrong", "the token is wrong"),
        (["pair", "m-1", "m-9"], API_TOKEN, "there is no machine m-9"),
    ],
)
def test_what_is_not_there_and_who_may_not_are_bad_input(
    api: FakeApi, capsys: pytest.CaptureFixture[str], words: list[str], token: str, sentence: str
) -> None:
    code = invoke(["netcheck", *words, "--token", token])
    assert (code, sentence in capsys.readouterr().err) == (2, True)


def test_a_run_that_holds_no_machine_and_a_coordinator_that_is_away_could_not_be_measured(
    api: FakeApi, capsys: pytest.CaptureFixture[str]
) -> None:
    api.job = job(phase="Pending", workers=[])
    assert invoke(["netcheck", "run", "first-gang", "--token", API_TOKEN]) == 3
    assert "run first-gang holds no machine now: it is Pending" in capsys.readouterr().err
    api.stop()
    assert invoke(["netcheck", "run", "first-gang", "--token", API_TOKEN]) == 3


@pytest.mark.parametrize(
    ("network", "tier", "options", "asked"),
    [
        ({"min_gbps": 100}, "ethernet", [], Asked(100e9)),
        ({"min_gbps": 400, "interconnect": "infiniband"}, "infiniband", [], Asked(400e9, of_rdma=True)),
        ({"min_gbps": 100}, "ethernet", ["--min-gbps", "25"], Asked(25e9)),
        (None, None, [], Asked()),
    ],
)
def test_a_run_is_asked_for_what_its_specification_says(
    api: FakeApi,
    monkeypatch: pytest.MonkeyPatch,
    network: dict[str, object] | None,
    tier: str | None,
    options: list[str],
    asked: Asked,
) -> None:
    api.job = job(tier=tier)
    api.job["spec"]["task_template"] = {"requested_resources": {"machines": 2, "network": network}}
    for worker in api.job["status"]["workers"]:
        worker["machine"] = "m-1"
    led: list[Asked] = []

    async def lead(*_: object, asked: Asked, **__: object) -> int:
        led.append(asked)
        return 0

    monkeypatch.setattr("astra_cli.commands.netcheck.lead", lead)
    assert invoke(["netcheck", "run", "first-gang", "--token", API_TOKEN, *options]) == 0
    assert led == [asked]
