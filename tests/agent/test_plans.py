"""From a slot and an attempt to a container's plan."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from astra_agent import plans
from astra_agent.attach import Edits
from astra_agent.attach.edits import Device, File
from astra_agent.config import AgentConfig
from astra_agent.errors import InvalidRequest
from astra_agent.records import AttemptRecord, Prepared, SlotRecord
from astra_agent.runtime import BindMount, ContainerPlan, ImageConfig, PreparedImage
from astra_agent.wire import DriveMount
from tests.agent.machine import request

NOTHING = Edits()
IMAGE = ImageConfig(
    env={"PATH": "/app/bin", "A": "image"}, entrypoint=("/entry",), command=("serve", "-v"), working_dir="/app"
)


@pytest.mark.parametrize(
    ("command", "args", "expected"),
    [
        (("train",), (), ("train",)),
        (("train",), ("--lr", "1"), ("train", "--lr", "1")),
        ((), (), ("/entry", "serve", "-v")),
        ((), ("check",), ("/entry", "check")),
    ],
)
def test_arguments_are_the_runs_or_the_images(
    command: tuple[str, ...], args: tuple[str, ...], expected: tuple[str, ...]
) -> None:
    assert plans.arguments(request(command=command, args=args), IMAGE) == expected


def test_an_image_without_a_command_needs_one() -> None:
    with pytest.raises(InvalidRequest, match="has no command of its own; set command"):
        plans.arguments(request(command=()), ImageConfig())


def test_variables_win_in_order_image_ours_attached_told_user() -> None:
    layers: dict[str, Any] = {
        "attached": {"HOSTNAME": "attached", "B": "attached"},
        "told": {"B": "told", "C": "told", "A": "told"},
    }
    env = plans.environment(request(env={"C": "user"}), IMAGE, uid=0, **layers)
    assert env == {
        "PATH": "/app/bin", "A": "told", "HOSTNAME": "attached", "HOME": "/root", "B": "told", "C": "user",
    }  # fmt: skip


def test_home_is_the_images_where_it_says_so() -> None:
    assert plans.environment(request(), ImageConfig(env={"HOME": "/h"}), {}, {}, 1000)["HOME"] == "/h"
    assert plans.environment(request(), ImageConfig(), {}, {}, 1000)["HOME"] == "/"


CONFIG = AgentConfig(
    name="gpu-1", state_dir=Path("/s"), address="10.0.0.1", drives={"data": Path("/mnt/data")}, cgroup_parent="/a/"
)


def made_plan(
    edits: Edits = NOTHING, *, worker: str = "", config: AgentConfig = CONFIG, **changes: Any
) -> ContainerPlan:
    prepared = Prepared(PreparedImage("host", "host", IMAGE), ("serve",), "/w", 7, 8, (9,), "10.0.0.1", 29500)
    return plans.container_plan(
        config,
        SlotRecord(request(**changes), "boot"),
        prepared,
        AttemptRecord(3, {"RANK": "1"}, {}, worker=worker),
        edits,
        netns=Path("/n"),
        log_path=Path("/l"),
        files=Path("/f"),
    )


def test_a_plan_says_whose_attempt_it_is() -> None:
    plan = made_plan()
    assert plan.id == "llama-1-0-a3"
    assert plan.cgroup_path == "/a/llama-1-0-a3"
    assert plan.labels == {"astraeus.slot": "llama-1-0", "astraeus.attempt": "3", "astraeus.run": "u1"}
    assert (plan.uid, plan.gid, plan.groups, plan.hostname) == (7, 8, (9,), "llama-1")


def test_with_systemd_its_cgroup_is_a_scope() -> None:
    config = AgentConfig(name="gpu-1", state_dir=Path("/s"), address="10.0.0.1", cgroup_driver="systemd")
    assert config.cgroup_parent == "astraeus.slice"
    assert made_plan(config=config).cgroup_path == "/astraeus.slice/astraeus-llama-1-0-a3.scope"


def test_an_attempt_may_say_what_its_worker_is_called() -> None:
    plan = made_plan(worker="llama-7")
    assert (plan.hostname, plan.env["HOSTNAME"]) == ("llama-7", "llama-7")


def test_drives_and_files_are_mounted() -> None:
    plan = made_plan(drives=(DriveMount(name="data", mount_path="/data", read_only=True),))
    assert BindMount("/mnt/data", "/data", read_only=True) in plan.mounts
    assert {mount.target for mount in plan.mounts} == {"/data", "/etc/hosts", "/etc/resolv.conf", "/etc/hostname"}


def test_the_same_attempt_gives_the_same_plan() -> None:
    assert made_plan() == made_plan()


def test_what_is_attached_is_below_the_users_own_in_the_plan_and_the_rest_in_the_spec() -> None:
    edits = Edits(
        env=(("A", "attached"), ("B", "attached")),
        devices=(Device("/dev/x", "c", 1, 2),),
        files=(File("/run/astraeus/topology.json", "{}"),),
    )
    plan = made_plan(edits, env={"A": "user"})
    assert (plan.env["A"], plan.env["B"]) == ("user", "attached")
    assert BindMount("/f/attached-topology.json", "/run/astraeus/topology.json", read_only=True) in plan.mounts
    assert plan.spec_edits is not None
    spec = plan.spec_edits({})
    assert "mounts" not in spec
    assert "A=" not in str(spec)
    assert "/dev/x" in str(spec)
