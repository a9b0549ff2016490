"""What a shell is offered, as click's own completion for bash asks for it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.shell_completion import BashComplete

from astra_cli.dev import files
from astra_cli.dev.plan import ClusterPlan, layout
from astra_cli.dev.topology import uniform
from astra_cli.main import cli
from tests.fakes.api import FakeApi


def offered(*words: str) -> list[tuple[str, str]]:
    """Kinds and values for the last of *words*, which may be unfinished."""
    *before, incomplete = words
    items = BashComplete(cli, {}, "astra", "_ASTRA_COMPLETE").get_completions(before, incomplete)
    return [(item.type, item.value) for item in items]


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["status", ""], ["first-gang"]),
        (["status", "x"], []),
        (["logs", "f"], ["first-gang"]),
        (["astraeus", "stop", ""], ["first-gang"]),
        (["dns", "show", ""], ["first-gang"]),
        (["dns", "query", "first-gang-1", "--as", ""], ["first-gang-0", "first-gang-1"]),
        (["netcheck", "run", ""], ["first-gang"]),
        (["netcheck", "pair", "m"], ["m-1"]),
        (["nodes", ""], ["m-1"]),
        (["run", "--start", ""], ["Gang", "MinAvailable", "Independent"]),
        (["run", "--on-failure", "Restart"], ["RestartJob", "RestartTask"]),
        (["dev", "--network", ""], ["host", "own"]),
        (["completion", ""], ["bash", "zsh", "fish"]),
    ],
    ids=lambda value: " ".join(value),
)
def test_names_and_choices_are_completed(api: FakeApi, words: list[str], names: list[str]) -> None:
    assert offered(*words) == [("plain", name) for name in names]


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        (["run", "exa"], "file"),
        (["run", "--name", "n", "exa"], "file"),
        (["netcheck", "preflight", "exa"], "file"),
        (["netcheck", "preflight", "--save", "exa"], "file"),
        (["dev", "--topology", "exa"], "file"),
        (["doctor", "--capture", "exa"], "file"),
        (["capture", "--output", "exa"], "file"),
        (["dev", "--state", "exa"], "dir"),
        (["dev", "stop", "--state", "exa"], "dir"),
        (["agent", "install", "--root", "exa"], "dir"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_paths_are_completed_by_the_shell(words: list[str], kind: str) -> None:
    assert offered(*words) == [(kind, "exa")]


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """Sockets' paths may not be long, so those of state folders may not either."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


@pytest.mark.parametrize("drill", ["link", "port", "kill", "start"])
def test_machines_of_the_dev_cluster_are_completed_for_drills(
    monkeypatch: pytest.MonkeyPatch, short_folder: Path, drill: str
) -> None:
    state = short_folder / "c"
    monkeypatch.setenv("ASTRA_DEV_STATE", str(state))
    assert offered("dev", drill, "--machine", "") == []
    state.mkdir()
    files.write_all(ClusterPlan(uniform(2, 0)), layout(state), 7410, Path("/s"), Path("/r"))
    assert offered("dev", drill, "--machine", "") == [("plain", "m-1"), ("plain", "m-2")]
    monkeypatch.delenv("ASTRA_DEV_STATE")
    assert offered("dev", "--state", str(state), drill, "--machine", "m-2") == [("plain", "m-2")]
    assert offered("dev", drill, "--state", str(state), "--machine", "m-2") == [("plain", "m-2")]


@pytest.mark.parametrize("words", [["status", ""], ["nodes", ""]], ids=" ".join)
def test_nothing_is_completed_and_nothing_said_when_the_coordinator_is_away(
    api: FakeApi, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    api.stop()
    assert offered(*words) == []
    assert capsys.readouterr() == ("", "")
