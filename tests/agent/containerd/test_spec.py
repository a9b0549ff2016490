"""From a plan to what the runtime is told."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from astra_agent.containerd.spec import INIT, Machine, container_spec, exec_process
from astra_agent.runtime import BindMount, ContainerPlan, ImageConfig, PreparedImage

MACHINE = Machine(init_path="/opt/astra/astra-init", cgroup_version=1, open_files=4096, processes=1000)
PLAN = ContainerPlan(
    id="s-a0",
    labels={},
    image=PreparedImage("host", "host", ImageConfig()),
    args=("python", "train.py"),
    env={"RANK": "0", "EMPTY": ""},
    working_dir="/code",
    hostname="llama-0",
    log_path="/logs/0",
    netns="/run/netns/llama",
    cgroup_path="/astraeus/s-a0",
)


def mounts(plan: ContainerPlan, *image_mounts: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {mount["destination"]: mount for mount in container_spec(plan, MACHINE, image_mounts)["mounts"]}


def test_init_runs_the_program() -> None:
    spec = container_spec(PLAN, MACHINE)
    assert spec["process"]["args"] == [INIT, "python", "train.py"]
    assert mounts(PLAN)[INIT]["source"] == "/opt/astra/astra-init"
    assert "ro" in mounts(PLAN)[INIT]["options"]


def test_environment_place_and_names_are_the_plans() -> None:
    spec = container_spec(replace(PLAN, uid=1000, gid=100, groups=(27,)), MACHINE)
    assert spec["process"]["env"] == ["RANK=0", "EMPTY="]
    assert spec["process"]["cwd"] == "/code"
    assert spec["process"]["user"] == {"uid": 1000, "gid": 100, "additionalGids": [27]}
    assert spec["hostname"] == "llama-0"
    assert spec["linux"]["cgroupsPath"] == "/astraeus/s-a0"
    assert {"type": "network", "path": "/run/netns/llama"} in spec["linux"]["namespaces"]


def test_systemd_is_told_of_the_cgroup_in_its_own_words() -> None:
    plan = replace(PLAN, cgroup_path="/astraeus.slice/astraeus-s-a0.scope")
    spec = container_spec(plan, replace(MACHINE, cgroup_driver="systemd"))
    assert spec["linux"]["cgroupsPath"] == "astraeus.slice:astraeus:s-a0"


def test_without_limits_there_are_none() -> None:
    resources = container_spec(PLAN, MACHINE)["linux"]["resources"]
    assert "memory" not in resources
    assert "cpu" not in resources


def test_limits_are_the_plans() -> None:
    resources = container_spec(replace(PLAN, memory_bytes=1 << 30, cpu_cores=1.5), MACHINE)["linux"]["resources"]
    assert resources["memory"] == {"limit": 1 << 30}
    assert resources["cpu"] == {"shares": 1536, "quota": 150_000, "period": 100_000}


def test_a_machine_of_many_cores_does_not_exceed_what_shares_may_be() -> None:
    resources = container_spec(replace(PLAN, cpu_cores=512), MACHINE)["linux"]["resources"]
    assert resources["cpu"]["shares"] == 262_144


@pytest.mark.parametrize(
    ("shm_bytes", "memory_bytes", "options"),
    [
        (1024, 1 << 30, ["size=1024"]),
        (0, 1 << 30, [f"size={1 << 29}"]),
        (0, 0, []),
    ],
    ids=["as asked", "half of the limit", "half of the machine's, which is what a tmpfs has by itself"],
)
def test_shared_memory_has_its_size(shm_bytes: int, memory_bytes: int, options: list[str]) -> None:
    found = mounts(replace(PLAN, shm_bytes=shm_bytes, memory_bytes=memory_bytes))["/dev/shm"]
    assert [option for option in found["options"] if option.startswith("size")] == options


def test_mounts_come_after_what_they_lie_in_and_the_plans_win() -> None:
    plan = replace(PLAN, mounts=(BindMount("/a", "/data/deep"), BindMount("/b", "/data"), BindMount("/c", "/dev/shm")))
    image = {"destination": "/usr/local", "type": "bind", "source": "/usr/local", "options": ["bind"]}
    order = [mount["destination"] for mount in container_spec(plan, MACHINE, [image])["mounts"]]
    assert order[0] == "/usr/local"
    assert order.index("/data") < order.index("/data/deep")
    assert order.index("/dev") < order.index("/dev/pts")
    assert mounts(plan)["/dev/shm"]["source"] == "/c"


@pytest.mark.parametrize(("read_only", "option"), [(True, "ro"), (False, "rw")])
def test_a_bind_is_read_only_when_it_says_so(read_only: bool, option: str) -> None:
    plan = replace(PLAN, mounts=(BindMount("/src", "/data", read_only),))
    assert mounts(plan)["/data"]["options"] == ["rbind", "rprivate", option]


def test_devices_are_denied_but_for_the_harmless_ones() -> None:
    rules = container_spec(PLAN, MACHINE)["linux"]["resources"]["devices"]
    assert rules[0] == {"allow": False, "access": "rwm"}
    assert all(rule["type"] == "c" for rule in rules[1:])


def test_programs_see_their_own_cgroup_on_version_2() -> None:
    kinds = [
        [namespace["type"] for namespace in container_spec(PLAN, machine)["linux"]["namespaces"]]
        for machine in (MACHINE, replace(MACHINE, cgroup_version=2))
    ]
    assert ["cgroup" in kind for kind in kinds] == [False, True]


def test_edits_are_applied_last() -> None:
    plan = replace(PLAN, spec_edits=lambda spec: {**spec, "hostname": f"{spec['hostname']}-edited"})
    assert container_spec(plan, MACHINE)["hostname"] == "llama-0-edited"


def test_an_exec_is_the_containers_own_process_but_for_what_it_runs() -> None:
    container = container_spec(replace(PLAN, uid=1000), MACHINE)
    process = exec_process(container, ("sh",), tty=False, width=80, height=24)
    assert process == {**container["process"], "args": ["sh"]}
    assert container["process"]["args"] == [INIT, "python", "train.py"], "the argument stays as it is"


@pytest.mark.parametrize(("env", "term"), [({}, "TERM=xterm"), ({"TERM": "screen"}, "TERM=screen")])
def test_an_exec_with_a_terminal_has_its_size_and_a_kind(env: dict[str, str], term: str) -> None:
    process = exec_process(container_spec(replace(PLAN, env=env), MACHINE), ("sh",), tty=True, width=100, height=30)
    assert process["consoleSize"] == {"width": 100, "height": 30}
    assert [variable for variable in process["env"] if variable.startswith("TERM=")] == [term]
