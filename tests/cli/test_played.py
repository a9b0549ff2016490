"""Simulated machines that are captured ones: what is written for their agents, and the drill with a port."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from astra_agent import config as agent_config
from astra_agent.errors import InvalidRequest
from astra_agent.inventory import Besides
from astra_agent.sources import source_of
from astra_cli.dev import files, played
from astra_cli.dev.plan import ClusterPlan, Layout
from astra_cli.dev.topology import MachinePlan, parse

HOSTS = Path(__file__).parents[1] / "fixtures" / "hosts"
ENTRY = {"name": "dgx", "count": 2, "machine_file": "dgx-h100-ndr.json", "fabric": "ib-1"}
SOCKET, RUNC = Path("/s/containerd.sock"), Path("/s/runc")


@pytest.fixture
def machines() -> tuple[MachinePlan, ...]:
    return parse({"machines": [ENTRY]}, HOSTS)


def test_an_agent_reads_the_machine_that_it_is(machines: tuple[MachinePlan, ...], tmp_path: Path) -> None:
    where = Layout(tmp_path)
    files.write_all(ClusterPlan(machines), where, 7410, SOCKET, RUNC)
    source = source_of(agent_config.load(where.machine("dgx-2") / "agent.toml"))
    found = source.read(source.library(), Besides())
    assert (found.machine, len(found.gpus), found.domain("infiniband")) == ("dgx-2", 8, "ib-1")


def test_a_plan_with_captured_machines_is_read_back_as_it_was(
    machines: tuple[MachinePlan, ...], tmp_path: Path
) -> None:
    files.write_all(ClusterPlan(machines), Layout(tmp_path), 7410, SOCKET, RUNC)
    assert files.read_plan(Layout(tmp_path)) == ClusterPlan(machines)


@pytest.mark.parametrize("port", ["mlx5_3", "mlx5_3:1"])
def test_a_port_goes_down_and_comes_up(machines: tuple[MachinePlan, ...], port: str) -> None:
    before = played.machine_file(machines[0])
    down = played.with_port(machines[0], before, port, up=False)
    changed = [path for path, text in json.loads(down)["files"].items() if json.loads(before)["files"][path] != text]
    assert [path.rpartition("/mlx5_3/")[2] for path in changed] == ["ports/1/phys_state", "ports/1/state"]
    assert json.loads(played.with_port(machines[0], down, port, up=True)) == json.loads(before)


def test_a_port_that_is_only_claimed_goes_down_too() -> None:
    (machine,) = parse({"machines": [{"ports": [{"name": "mlx5_0", "tier": "infiniband", "gbps": 400}]}]})
    text = played.with_port(machine, json.dumps(machine.facts()), "mlx5_0", up=False)
    assert json.loads(text)["ports"] == [{"name": "mlx5_0", "tier": "infiniband", "gbps": 400.0, "up": False}]


def test_a_port_that_is_not_there_is_named_with_those_that_are(machines: tuple[MachinePlan, ...]) -> None:
    with pytest.raises(InvalidRequest, match=r"dgx-1 has no port mlx5_77:1; it has mlx5_0:1, mlx5_1:1, "):
        played.with_port(machines[0], played.machine_file(machines[0]), "mlx5_77", up=False)


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ({"machine_file": "a.json", "gpus": 8}, "machine_file, which says what the machine has, and gpus"),
        ({"fabric": "ib-1"}, r"machines\[0\].fabric goes with machine_file only"),
        ({"machine_file": 8}, r"machines\[0\].machine_file must be a text, not 8"),
    ],
)
def test_a_wrong_entry_is_named(entry: dict[str, object], says: str) -> None:
    with pytest.raises(InvalidRequest, match=says):
        parse({"machines": [entry]})


@pytest.mark.parametrize(
    ("text", "says"), [("{", "is no JSON"), ("[]", "no captured machine"), ("{}", "wrong at files")]
)
def test_a_file_that_is_no_captured_machine_is_named(
    machines: tuple[MachinePlan, ...], tmp_path: Path, text: str, says: str
) -> None:
    (tmp_path / "m.json").write_text(text)
    with pytest.raises(InvalidRequest, match=says):
        played.machine_file(replace(machines[0], machine_file=str(tmp_path / "m.json")))
