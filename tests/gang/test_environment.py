"""What a worker finds in its environment, and the names it can look up."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astra_agent.wire import MachineFacts
from astra_gang.core.state import RunState, Worker
from astra_gang.environment import environment
from astra_gang.hosts import hosts
from astra_gang.slurm import job_number, nodelist, repeated
from astra_gang.spec import Spec, parse
from tests.gang.cluster import machine, placed_run


def spec(name: str, machines: int, gpus: int = 0, **resources: Any) -> Spec:
    asked = {"machines": machines, "gpu_requests": {"count": gpus * machines}, **resources}
    template = {"image": "host", "requested_resources": asked}
    return parse({"metadata": {"name": name}, "spec": {"start": "Gang", "task_template": template}})


def facts(*machines: Any) -> dict[str, MachineFacts]:
    return {found.facts.name: found.facts for found in machines}


def env_of(run: RunState, rank: int, gpus: int = 0, *machines: Any, **resources: Any) -> dict[str, str]:
    return environment(run, spec(run.name, len(run.workers), gpus, **resources), rank, facts(*machines))


FOUR = placed_run("llama", ["m-1", "m-2", "m-3", "m-4"], gpus=8, tier="infiniband", domain="ib-a", attempt=2)


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("RANK", "3"),
        ("WORLD_SIZE", "4"),
        ("MASTER_ADDR", "198.51.100.0"),
        ("MASTER_PORT", "29500"),
        ("ASTRAEUS_REPLICA_INDEX", "3"),
        ("ASTRAEUS_WORLD_SIZE", "4"),
        ("ASTRAEUS_GPU_COUNT", "8"),
        ("ASTRAEUS_LEADER_TASK_NAME", "default.llama-0"),
        ("ASTRAEUS_ATTEMPT", "2"),
        ("ASTRAEUS_RESTART_COUNT", "2"),
        ("PET_NNODES", "4"),
        ("PET_NODE_RANK", "3"),
        ("PET_NPROC_PER_NODE", "8"),
        ("PET_MASTER_ADDR", "198.51.100.0"),
        ("PET_MASTER_PORT", "29500"),
        ("PET_LOCAL_ADDR", "198.51.100.3"),
        ("JAX_COORDINATOR_ADDRESS", "198.51.100.0:29500"),
        ("JAX_LOCAL_DEVICE_IDS", "0,1,2,3,4,5,6,7"),
        ("SLURM_PROCID", "3"),
        ("SLURM_NODEID", "3"),
        ("SLURM_LOCALID", "0"),
        ("SLURM_GTIDS", "3"),
        ("SLURM_NTASKS", "4"),
        ("SLURM_NPROCS", "4"),
        ("SLURM_NNODES", "4"),
        ("SLURM_JOB_NUM_NODES", "4"),
        ("SLURM_NTASKS_PER_NODE", "1"),
        ("SLURM_TASKS_PER_NODE", "1(x4)"),
        ("SLURM_JOB_NAME", "llama"),
        ("SLURM_JOB_NODELIST", "llama-[0-3]"),
        ("SLURM_NODELIST", "llama-[0-3]"),
        ("SLURM_STEP_ID", "0"),
        ("SLURM_STEP_NODELIST", "llama-[0-3]"),
        ("SLURM_STEP_NUM_NODES", "4"),
        ("SLURM_STEP_NUM_TASKS", "4"),
        ("SLURM_STEP_TASKS_PER_NODE", "1(x4)"),
        ("SLURMD_NODENAME", "llama-3"),
        ("SLURM_GPUS_ON_NODE", "8"),
        ("SLURM_CPUS_ON_NODE", "96"),
        ("SLURM_CPUS_PER_TASK", "96"),
        ("SLURM_JOB_CPUS_PER_NODE", "96(x4)"),
        ("SLURM_RESTART_COUNT", "2"),
        ("SLURM_TOPOLOGY_ADDR", "block0.node3"),
        ("SLURM_TOPOLOGY_ADDR_PATTERN", "block.node"),
        ("SLURM_CLUSTER_NAME", "astraeus"),
        ("SLURM_LAUNCH_NODE_IPADDR", "198.51.100.0"),
        ("NCCL_DEBUG", "WARN"),
        ("NCCL_ASYNC_ERROR_HANDLING", "1"),
        ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
        ("NCCL_SOCKET_IFNAME", "^lo,docker,virbr,veth,cni,wg"),
    ],
)
def test_a_variable_of_worker_3_of_4_on_8_gpus_each(variable: str, value: str) -> None:
    assert env_of(FOUR, 3, 8, per_gpu={"cpu_cores": 12})[variable] == value


def test_the_leader_s_own_port_is_everybody_s_master_port() -> None:
    assert {env_of(FOUR, rank, 8)["MASTER_PORT"] for rank in range(4)} == {"29500"}


def test_the_leader_s_machine_is_told_apart_from_the_leader() -> None:
    """With addresses of their own, workers meet at the leader's; ASTRAEUS_LEADER_ADDRESS stays the machine's."""
    leader = machine("m-1")
    env = env_of(FOUR, 1, 8, leader)
    assert env["ASTRAEUS_LEADER_ADDRESS"] == leader.facts.address != env["MASTER_ADDR"]


@pytest.mark.parametrize(
    ("tier", "gpus", "domains", "expected"),
    [
        ("machine", 8, {"nvlink": "nv"}, {}),
        ("nvlink", 8, {"nvlink": "nv"}, {}),
        ("infiniband", 8, {}, {}),
        ("infiniband", 8, {"nvlink": "nv"}, {"NCCL_MNNVL_ENABLE": "0"}),
        ("ethernet", 8, {}, {"NCCL_IB_DISABLE": "1"}),
        ("ethernet", 8, {"nvlink": "nv"}, {"NCCL_IB_DISABLE": "1", "NCCL_MNNVL_ENABLE": "0"}),
        ("ethernet", 0, {"nvlink": "nv"}, {"NCCL_IB_DISABLE": "1"}),
    ],
)
def test_nccl_is_told_what_it_can_not_use(
    tier: str, gpus: int, domains: dict[str, Any], expected: dict[str, str]
) -> None:
    run = placed_run("x", ["m-1", "m-2"], gpus=gpus, tier=tier)
    env = env_of(run, 0, gpus, machine("m-1", **domains), machine("m-2", **domains))
    told = {name: value for name, value in env.items() if name.endswith(("_DISABLE", "_ENABLE"))}
    assert told == expected


def test_without_gpus_torchrun_starts_one_process_and_nothing_speaks_of_gpus() -> None:
    env = env_of(placed_run("x", ["m-1", "m-2"]), 1)
    assert env["PET_NPROC_PER_NODE"] == "1"
    assert env["ASTRAEUS_GPU_COUNT"] == env["SLURM_GPUS_ON_NODE"] == "0"
    assert [name for name in env if "NCCL" in name or name == "JAX_LOCAL_DEVICE_IDS"] == ["NCCL_IB_DISABLE"]


def test_a_worker_of_a_group_gets_its_place_in_the_group() -> None:
    run = placed_run("etl", ["m-1"])
    env = env_of(led_by(run, replace(run.workers[0], group="driver", group_index=0)), 0)
    assert (env["ASTRAEUS_GROUP_NAME"], env["ASTRAEUS_GROUP_REPLICA_INDEX"]) == ("driver", "0")
    assert "ASTRAEUS_GROUP_NAME" not in env_of(run, 0)


def test_an_environment_needs_a_leader_that_can_be_reached() -> None:
    run = placed_run("x", ["m-1", "m-2"])
    with pytest.raises(ValueError, match="x-0 leads and is not ready"):
        env_of(led_by(run, replace(run.workers[0], slot=None)), 1)


def test_a_worker_without_a_cpu_limit_is_told_the_machine_s_cores() -> None:
    assert env_of(placed_run("x", ["m-1"]), 0, 0, machine("m-1"))["SLURM_CPUS_ON_NODE"] == "96"
    assert env_of(placed_run("x", ["m-1"]), 0, 0, machine("m-1"), cpu_cores=0.5)["SLURM_CPUS_ON_NODE"] == "1"


def test_blocks_are_the_closest_domains_in_order_of_rank() -> None:
    run = placed_run("x", ["m-1", "m-2", "m-3"], tier="infiniband")
    known = [machine("m-1", nvlink="rack-7.b"), machine("m-2", nvlink="rack-7.b"), machine("m-3", nvlink="rack-9")]
    addresses = [env_of(run, rank, 0, *known)["SLURM_TOPOLOGY_ADDR"] for rank in range(3)]
    assert addresses == ["block0.node0", "block0.node1", "block1.node2"]


@given(st.lists(st.sampled_from(["", "a", "b.2", "c:::1"]), min_size=1, max_size=6))
def test_a_topology_address_can_be_ordered_by_the_digits_of_its_two_parts(domains: list[str]) -> None:
    """As NVIDIA's resiliency launcher reads it: block x 10^10 + node, one number for each node."""
    names = [f"m-{n}" for n in range(len(domains))]
    run = placed_run("sft-20240901-15", names)
    known = [
        machine(name, nvlink=found) if found else machine(name) for name, found in zip(names, domains, strict=True)
    ]
    numbers = []
    for rank in range(len(names)):
        parts = env_of(run, rank, 0, *known)["SLURM_TOPOLOGY_ADDR"].split(".")
        block, node = (int(re.sub(r"\D", "", part)) for part in parts)
        assert node < 10**10
        numbers.append(block * 10**10 + node)
    assert len(set(numbers)) == len(names)


# Slurm's notations ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (["llama-0"], "llama-0"),
        ([f"llama-{n}" for n in range(12)], "llama-[0-11]"),
        (["a-0", "a-2", "a-3", "a-7"], "a-[0,2-3,7]"),
        (["etl-driver-0", "etl-executor-0", "etl-executor-1"], "etl-driver-0,etl-executor-[0-1]"),
        (["login"], "login"),
    ],
)
def test_a_node_list_is_in_slurm_s_brackets(names: list[str], text: str) -> None:
    assert nodelist(names) == text


@given(
    st.lists(st.sampled_from(["a-", "b2-", "b-c-"]), unique=True),
    st.lists(st.sets(st.integers(0, 40), min_size=1), min_size=3, max_size=3),
)
def test_a_node_list_expands_to_the_names_in_order(prefixes: list[str], numbers: list[set[int]]) -> None:
    names = [f"{prefix}{n}" for prefix, found in zip(prefixes, numbers, strict=False) for n in sorted(found)]
    assert expand(nodelist(names)) == names


def expand(text: str) -> list[str]:
    """As `scontrol show hostnames` does."""
    names = []
    for prefix, brackets, plain in re.findall(r"([^,\[]+)\[([^\]]*)\]|([^,]+)", text):
        if plain:
            names.append(plain)
        for span in brackets.split(",") if brackets else ():
            first, _, last = span.partition("-")
            names += [f"{prefix}{n}" for n in range(int(first), int(last or first) + 1)]
    return names


@pytest.mark.parametrize(
    ("counts", "text"), [([1], "1"), ([1, 1, 1, 1], "1(x4)"), ([96, 96, 48], "96(x2),48"), ([1, 2, 1], "1,2,1")]
)
def test_counts_for_each_node_are_in_slurm_s_short_form(counts: list[int], text: str) -> None:
    assert repeated(counts) == text


@given(st.text(max_size=40))
def test_a_job_number_is_the_run_s_own_and_fits_slurm_s_range(uid: str) -> None:
    assert job_number(uid) == job_number(uid)
    assert 0 < job_number(uid) < 2**26


def test_what_open_mpi_takes_for_a_start_by_srun_is_never_set() -> None:
    assert "SLURM_STEPID" not in env_of(FOUR, 0, 8)


# Names ------------------------------------------------------------------------------------------------------------


def test_every_worker_and_the_leader_can_be_looked_up_by_every_form_of_name() -> None:
    assert hosts(placed_run("llama", ["m-1", "m-2"])) == {
        "llama-0": "198.51.100.0",
        "llama-0.default": "198.51.100.0",
        "llama": "198.51.100.0",
        "llama.default": "198.51.100.0",
        "llama-1": "198.51.100.1",
        "llama-1.default": "198.51.100.1",
    }


def test_a_worker_without_an_address_has_no_name_yet() -> None:
    run = placed_run("llama", ["m-1", "m-2"])
    assert "llama-0" not in hosts(led_by(run, replace(run.workers[0], slot=None)))


def test_every_node_of_the_node_list_resolves() -> None:
    env = env_of(FOUR, 0, 8)
    assert set(expand(env["SLURM_JOB_NODELIST"])) <= set(hosts(FOUR))
    assert env["SLURMD_NODENAME"] in hosts(FOUR)


def led_by(run: RunState, leader: Worker) -> RunState:
    return replace(run, workers=(leader, *run.workers[1:]))
