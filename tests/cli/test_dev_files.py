"""What the dev cluster writes down is what its processes read, each by its own parser."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from astra_agent import config as agent_config
from astra_agent.errors import InvalidRequest
from astra_agent.inventory import Besides
from astra_agent.inventory.library import MISSING
from astra_agent.sources import source_of
from astra_cli.dev import files, network
from astra_cli.dev.plan import ClusterPlan, Layout, drive, layout, setting
from astra_cli.dev.topology import uniform
from astra_gang import config as coordinator_config

SOCKET, RUNC = Path("/s/containerd.sock"), Path("/s/runc")


@pytest.fixture
def plan() -> ClusterPlan:
    return ClusterPlan(
        uniform(2, 8),
        drives={"data": '/with "quotes"'},
        settings={"backoff_first_s": 0, "lost_margin_s": 2.5},
        disconnect_limit_s=5.0,
    )


@pytest.fixture
def where(tmp_path: Path) -> Layout:
    return Layout(tmp_path)


def test_the_coordinator_reads_its_configuration(plan: ClusterPlan, where: Layout) -> None:
    config = coordinator_config.parse(tomllib.loads(files.coordinator_toml(plan, where, 7412)))
    assert [(a.host, a.port, a.netns) for a in config.listen] == [
        ("127.0.0.1", 7412, ""),
        ("10.83.0.1", 7411, str(where.hub)),
    ]
    assert config.agents == {"m-1": where.agent_socket(1), "m-2": where.agent_socket(2)}
    assert config.policy.backoff_first_s == 0
    assert config.lost_margin_s == 2.5
    assert config.drives == ("data",)


@pytest.mark.parametrize("slot_network", ["host", "own"])
def test_an_agent_reads_its_configuration_and_facts(plan: ClusterPlan, where: Layout, slot_network: str) -> None:
    plan = replace(plan, slot_network=slot_network)
    files.write_all(plan, where, 7410, SOCKET, RUNC)
    config = agent_config.load(where.machine("m-2") / "agent.toml")
    assert config.address == "10.83.2.1"
    assert config.containerd_namespace == f"astra-{where.cluster_id}-m-2"
    assert config.drives == {"data": Path('/with "quotes"')}
    assert (config.own_network is not None) == (slot_network == "own")
    assert len(source_of(config).read(MISSING, Besides()).gpus) == 8


def test_settings_of_agents_go_to_agents(plan: ClusterPlan, where: Layout) -> None:
    plan = replace(plan, settings={**plan.settings, "stuck_after_s": 5, "log_max_bytes": 4096})
    files.write_all(plan, where, 7410, SOCKET, RUNC)
    agent = agent_config.load(where.machine("m-1") / "agent.toml")
    assert (agent.stuck_after_s, agent.log_max_bytes) == (5, 4096)
    assert coordinator_config.load(where.coordinator / "coordinator.toml").lost_margin_s == 2.5


def test_what_is_written_is_for_root_only_and_tokens_stay(plan: ClusterPlan, where: Layout) -> None:
    files.write_all(plan, where, 7410, SOCKET, RUNC)
    token = files.token(where, "operator")
    files.write_all(plan, where, 7410, SOCKET, RUNC)
    assert files.token(where, "operator") == token != files.token(where, "agent")
    assert {path.stat().st_mode & 0o077 for path in where.state.rglob("*") if path.is_file()} == {0}


def test_a_plan_is_read_back_as_it_was(plan: ClusterPlan, where: Layout) -> None:
    files.write_all(plan, where, 7410, SOCKET, RUNC)
    assert files.read_plan(where) == plan


def test_no_plan_is_read_from_what_is_none(where: Layout) -> None:
    assert files.read_plan(where) is None
    where.plan_file.write_text('{"machines": [{"oops": 1}]}')
    assert files.read_plan(where) is None


def test_two_state_folders_share_no_name(tmp_path: Path) -> None:
    a, b = layout(tmp_path / "a"), layout(tmp_path / "b")
    assert a.cluster_id != b.cluster_id
    assert a.cgroup != b.cgroup
    assert a.containerd_namespace("m-1") != b.containerd_namespace("m-1")


def test_a_state_folder_that_sockets_could_not_live_in_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="at most 70 characters"):
        layout(Path("/" + "x" * 80))
    with pytest.raises(InvalidRequest, match="must be one of its own"):
        layout(Path("/"))


def test_drives_and_settings_are_checked(tmp_path: Path) -> None:
    assert drive(f"data={tmp_path}") == ("data", str(tmp_path))
    assert setting("backoff_first_s=0.5") == ("backoff_first_s", 0.5)
    with pytest.raises(InvalidRequest, match="there is no folder"):
        drive(f"data={tmp_path}/none")
    with pytest.raises(InvalidRequest, match="--set has no 'colour'; there are"):
        setting("colour=1")
    for wrong in ("backoff_first_s", "backoff_first_s=soon", "backoff_first_s=inf", "backoff_first_s=nan"):
        with pytest.raises(InvalidRequest, match="--set must be NAME=NUMBER"):
            setting(wrong)


def test_no_interface_is_made_outside_of_the_clusters_namespaces(plan: ClusterPlan, where: Layout) -> None:
    for batch in network.batches(plan, where):
        assert Path(batch.netns).is_relative_to(where.run)


@pytest.mark.parametrize(
    ("text", "rate"), [("200mbit", 200_000_000), ("1.5gbit", 1_500_000_000), ("64kbit", 64_000), ("0", 0), ("none", 0)]
)
def test_a_rate_has_a_unit(text: str, rate: int) -> None:
    assert network.parse_rate(text) == rate


@pytest.mark.parametrize("text", ["200", "200Mbit", "1kbit", "-1mbit", "200gbit", "fast", ""])
def test_a_rate_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="--rate must be from 8kbit to 100gbit"):
        network.parse_rate(text)


def test_a_link_is_shaped_on_both_ends_and_freed_again(plan: ClusterPlan, where: Layout) -> None:
    machine = plan.machines[1]
    lines = network.shape(machine, where, 0, 8_000_000)
    assert [netns for netns, _ in lines] == [str(where.hub), str(where.netns("m-2"))]
    assert all("tbf rate 8000000bit" in line for _, line in lines)
    assert all("qdisc del" in line for _, line in network.shape(machine, where, 8_000_000, 0))
    assert network.shape(machine, where, 0, 0) == ()
