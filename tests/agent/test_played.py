"""A simulated machine, played by a captured one: what its workers get, and what becomes of them when it changes."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from astra_agent.wire import Arm, Placed, RunRef
from tests.agent.inventory.captured import document
from tests.agent.machine import SLOT, Machine, a_machine, arm, finish, request, start, until

FABRIC = '[fabric]\nname = "ib-1"\n'
CHANNELS = "[imex]\nexclusive_channels = true\n"
ON_IB = Placed(tier="infiniband", domain="ib-1", min_gbps=400)


class Played(Machine):
    """*document*: what the machine's file says; `rewrite` after a change of it."""

    def __init__(self, folder: Path, fixture: str, operator: str = FABRIC, **settings: Any) -> None:
        self.file = folder / "machine.json"
        self.document = document(fixture)
        self.document["files"]["/etc/astraeus/machine.toml"] = operator
        self.rewrite()
        super().__init__(folder, machine_file=self.file, **settings)

    def rewrite(self) -> None:
        beside = self.file.with_suffix(".new")
        beside.write_text(json.dumps(self.document))
        beside.replace(self.file)

    def port_down(self, device: str) -> None:
        for path in self.document["files"]:
            if path.endswith(f"/{device}/ports/1/state"):
                self.document["files"][path] = "1: DOWN\n"
        self.rewrite()

    async def port_seen_down(self) -> None:
        await until(lambda: any(not port.up for port in self.agent.facts().ports))

    async def failed(self, number: int = 0) -> str:
        await until(lambda: self.status().arm_failed == number)
        assert self.status().fault == "machine"
        assert self.containers.starts[f"{SLOT}-a{number}"] == 0
        return self.status().detail


@pytest.fixture
async def dgx(tmp_path: Path) -> AsyncIterator[Played]:
    machine = Played(tmp_path, "dgx-h100-ndr")
    yield machine
    await machine.crash()


async def armed(machine: Machine, directive: Arm) -> dict[str, str]:
    """The variables of the container that waits."""
    assert machine.agent.obey(directive) is None
    await until(lambda: machine.attempt(directive.attempt).state == "armed")
    return dict(machine.containers.plan(f"{directive.slot}-a{directive.attempt}").env)


def spec(machine: Machine) -> dict[str, Any]:
    edit = machine.containers.plan(f"{SLOT}-a0").spec_edits
    assert edit is not None
    return edit({})


# What it offers ----------------------------------------------------------------------------------------------------


async def test_its_facts_are_the_captured_machines(dgx: Played) -> None:
    facts = dgx.agent.facts()
    assert (facts.name, len(facts.gpus), facts.domains) == ("gpu-1", 8, {"infiniband": "ib-1", "rdma": "ib-1"})
    assert [port.gbps for port in facts.ports if port.tier == "infiniband"] == [400.0] * 8


async def test_a_port_that_goes_down_is_a_change_of_its_facts(dgx: Played) -> None:
    dgx.port_down("mlx5_3")
    await until(lambda: [port.name for port in dgx.agent.facts().ports if not port.up] == ["mlx5_3:1"])
    assert dgx.agent.facts_changed.is_set()
    facts = dgx.agent.facts()
    assert any(found.subject == "mlx5_3:1" and found.level == "fault" for found in facts.findings)


async def test_a_file_that_becomes_nonsense_is_a_finding_and_the_last_word_stands(dgx: Played) -> None:
    dgx.file.write_text("{")
    await until(lambda: any("is no JSON" in found.sentence for found in dgx.agent.facts().findings))
    assert len(dgx.agent.facts().gpus) == 8
    dgx.rewrite()
    await until(lambda: not any("is no JSON" in found.sentence for found in dgx.agent.facts().findings))


@contextmanager
def held(log: Path) -> Iterator[None]:
    """What is written into a FIFO stays as long as somebody has it open."""
    descriptor = os.open(log, os.O_RDWR)
    try:
        yield
    finally:
        os.close(descriptor)


def say(log: Path, *lines: str) -> None:
    """To a FIFO that nobody may have opened yet."""
    descriptor = os.open(log, os.O_RDWR)
    os.write(descriptor, "".join(f"{line}\n" for line in lines).encode())
    os.close(descriptor)


def fallen(address: str) -> str:
    return f"6,2,2,-;NVRM: Xid (PCI:{address}): 79, pid=1, name=x, GPU has fallen off the bus."


async def comes_to(machine: Machine, slot: str, state: str) -> None:
    await until(lambda: machine.attempt(0, slot).state == state)


@pytest.fixture
async def heard(tmp_path: Path) -> AsyncIterator[Played]:
    """One whose kernel log the test writes, with `falls_off`."""
    os.mkfifo(tmp_path / "kmsg")
    machine = Played(tmp_path, "dgx-h100-ndr", kernel_log=tmp_path / "kmsg")
    yield machine
    await machine.crash()


def address_of(machine: Played, index: int) -> str:
    """On the PCI bus, as the kernel's log has it."""
    return str(machine.document["nvml"]["devices"][index]["pci_bus_id"].lower()[4:-2])


@contextmanager
def falls_off(machine: Played, folder: Path, *before: str) -> Iterator[None]:
    """GPU 5, in the kernel's log."""
    with held(folder / "kmsg"):
        say(folder / "kmsg", *before, fallen(address_of(machine, 5)))
        yield


async def test_the_kernel_log_takes_a_gpu_that_fell_off_the_bus_away(heard: Played, tmp_path: Path) -> None:
    with falls_off(heard, tmp_path, "6,1,1,-;mlx5_core: Port 1 Link ACTIVE"):
        await until(lambda: [gpu.index for gpu in heard.agent.facts().gpus] == [0, 1, 2, 3, 4, 6, 7])
    assert any(f"{address_of(heard, 5)}.0" in found.subject for found in heard.agent.facts().findings)


async def test_a_lost_gpu_ends_its_own_worker_as_the_machines_fault_and_no_other(heard: Played, tmp_path: Path) -> None:
    for slot, gpus in (("mine-0", (4, 5)), ("other-0", (0, 1))):
        await heard.ready(request(slot, gpus=gpus))
        heard.agent.obey(arm(slot=slot))
        await comes_to(heard, slot, "armed")
        heard.agent.obey(start(slot=slot))
        await comes_to(heard, slot, "running")
    with falls_off(heard, tmp_path):
        await until(lambda: heard.attempt(0, "mine-0").state == "exited")
    ended = heard.attempt(0, "mine-0")
    assert ended.fault == "machine"
    assert ended.detail == f"GPU 5 ({address_of(heard, 5)}.0) of gpu-1 is lost: GPU 5: GPU is lost"
    assert (heard.status("mine-0").phase, heard.status("mine-0").fault) == ("failed", "machine")
    assert heard.attempt(0, "other-0").state == "running"
    assert heard.status("other-0").phase == "ready"


async def test_a_gpu_that_is_lost_during_a_pull_fails_the_slot_that_waits_for_it(heard: Played, tmp_path: Path) -> None:
    heard.images.hold()
    heard.agent.put_slot(request("mine-0", gpus=(4, 5)))
    with falls_off(heard, tmp_path):
        await until(lambda: heard.status("mine-0").phase == "failed")
    heard.images.release()
    await asyncio.sleep(0.2)
    assert (heard.status("mine-0").phase, heard.status("mine-0").fault) == ("failed", "machine")
    assert "GPU 5: GPU is lost" in heard.status("mine-0").detail


# What a worker gets ------------------------------------------------------------------------------------------------


async def test_a_worker_on_the_fabric_gets_its_ports_nodes_and_limits(dgx: Played) -> None:
    await dgx.ready(request(gpus=(0, 1)))
    env = await armed(dgx, arm(placed=ON_IB))
    assert env["NCCL_IB_HCA"].startswith("=mlx5_0:1,mlx5_3:1,")
    assert env["NVIDIA_VISIBLE_DEVICES"] == "void"
    changed = spec(dgx)
    assert {"/dev/infiniband/uverbs0", "/dev/nvidia0", "/dev/nvidia1"} <= {
        d["path"] for d in changed["linux"]["devices"]
    }
    assert "CAP_IPC_LOCK" in changed["process"]["capabilities"]["ambient"]
    topology = next(m for m in dgx.containers.plan(f"{SLOT}-a0").mounts if m.target == "/run/astraeus/topology.json")
    assert topology.read_only
    assert len(json.loads(Path(topology.source).read_text())["local_ranks"]) == 2
    assert "lock" in dgx.containers.tried[f"{SLOT}-a0"]


async def test_the_users_own_choice_of_ports_wins(dgx: Played) -> None:
    await dgx.ready(request(env={"NCCL_IB_HCA": "mine"}))
    assert (await armed(dgx, arm(placed=ON_IB)))["NCCL_IB_HCA"] == "mine"


async def test_a_worker_on_one_machine_without_gpus_gets_nothing_extra(dgx: Played) -> None:
    await dgx.ready()
    await dgx.armed()
    assert dgx.containers.plan(f"{SLOT}-a0").spec_edits is None
    assert dgx.containers.tried == {}


# What is not kept --------------------------------------------------------------------------------------------------


async def test_what_is_missing_inside_fails_the_attempt_as_the_machines_fault(dgx: Played) -> None:
    dgx.containers.trial_errors["lock"] = "ENOMEM"
    await dgx.ready(request(gpus=(0,)))
    dgx.agent.obey(arm(placed=ON_IB))
    assert "no program may lock 1 GiB of memory in the container of llama-1 on gpu-1" in await dgx.failed()


@pytest.mark.parametrize(
    ("nvml", "says"),
    [
        ({"init_error": 18}, "gpu-1 takes no work with GPUs: driver "),
        ({"device_count": 0, "devices": []}, "GPU 0 is not on gpu-1; it has: none; it had when llama-1 came"),
    ],
)
async def test_a_gpu_that_a_slot_was_accepted_with_and_is_gone_is_never_the_users_fault(
    dgx: Played, nvml: dict[str, Any], says: str
) -> None:
    await dgx.ready(request(gpus=(0,)))
    dgx.document["nvml"] |= nvml
    dgx.rewrite()
    dgx.agent.obey(arm(placed=ON_IB))
    assert says in await dgx.failed()


async def test_a_speed_that_no_port_has_fails_the_attempt(dgx: Played) -> None:
    await dgx.ready()
    dgx.agent.obey(arm(placed=ON_IB.model_copy(update={"min_gbps": 800})))
    assert "no port of gpu-1 has 800 Gb/s" in await dgx.failed()


async def test_without_the_connection_managers_node_no_worker_is_armed_on_infiniband(dgx: Played) -> None:
    await dgx.ready()
    del dgx.document["devices"]["/dev/infiniband/rdma_cm"]
    dgx.rewrite()
    dgx.agent.obey(arm(placed=ON_IB))
    assert await dgx.failed() == (
        "/dev/infiniband/rdma_cm is not on gpu-1, and programs connect over infiniband through it: modprobe rdma_ucm"
    )
    assert dgx.containers.names() == ()


@pytest.mark.parametrize(
    ("ports", "says"),
    [
        (("mlx5_3",), "mlx5_3:1 of gpu-1 has gone down since llama-1 was placed there"),
        (("mlx5_3", "mlx5_0"), "mlx5_0:1, mlx5_3:1 of gpu-1 have gone down since llama-1 was placed there"),
    ],
)
async def test_a_worker_is_not_armed_over_fewer_ports_than_its_run_was_placed_by(
    dgx: Played, ports: tuple[str, ...], says: str
) -> None:
    await dgx.ready()
    for port in ports:
        dgx.port_down(port)
    dgx.agent.obey(arm(placed=ON_IB))
    assert await dgx.failed() == says


async def test_that_holds_for_the_next_attempt_as_well(dgx: Played) -> None:
    await dgx.ready()
    await armed(dgx, arm(placed=ON_IB))
    dgx.agent.obey(start())
    await until(lambda: dgx.attempt().state == "running")
    dgx.port_down("mlx5_3")
    await dgx.port_seen_down()
    dgx.agent.obey(arm(1, placed=ON_IB))
    assert "mlx5_3:1 of gpu-1 has gone down" in await dgx.failed(1)


async def test_a_port_that_was_down_before_is_left_out(dgx: Played) -> None:
    dgx.port_down("mlx5_3")
    await dgx.port_seen_down()
    await dgx.ready()
    assert "mlx5_3:1" not in (await armed(dgx, arm(placed=ON_IB)))["NCCL_IB_HCA"]


async def test_a_port_that_is_none_of_a_workers_business_may_go_down(dgx: Played) -> None:
    await dgx.ready(request(gpus=(0,)))
    dgx.port_down("mlx5_3")
    await armed(dgx, arm(placed=Placed(tier="machine")))


async def test_one_that_the_operator_has_taken_away_is_left_out(dgx: Played) -> None:
    await dgx.ready()
    dgx.document["files"]["/etc/astraeus/machine.toml"] = FABRIC + '[ports]\nleave = ["mlx5_3"]\n'
    dgx.rewrite()
    assert "mlx5_3:1" not in (await armed(dgx, arm(placed=ON_IB)))["NCCL_IB_HCA"]


async def test_a_port_that_goes_down_while_an_attempt_is_armed_fails_it(dgx: Played) -> None:
    await dgx.ready()
    await armed(dgx, arm(placed=ON_IB))
    dgx.port_down("mlx5_3")
    assert await dgx.failed() == "mlx5_3:1 of gpu-1 is down, which the worker was told to use"


async def test_that_holds_across_a_restart_of_the_agent(dgx: Played) -> None:
    await dgx.ready()
    await armed(dgx, arm(placed=ON_IB))
    await dgx.crash()
    dgx.port_down("mlx5_3")
    dgx.start()
    assert await dgx.failed() == "mlx5_3:1 of gpu-1 has gone down since llama-1 was placed there"


async def test_a_program_that_runs_is_left_alone_when_a_port_goes_down(dgx: Played) -> None:
    await dgx.ready()
    await armed(dgx, arm(placed=ON_IB))
    dgx.agent.obey(start())
    await until(lambda: dgx.attempt().state == "running")
    dgx.port_down("mlx5_3")
    await dgx.port_seen_down()
    assert dgx.attempt().state == "running"


# IMEX channels -----------------------------------------------------------------------------------------------------


async def test_a_channel_that_is_a_runs_own_is_nobody_elses_until_its_slot_has_ended(tmp_path: Path) -> None:
    machine = Played(tmp_path, "gb200-nvl72-tray", operator=CHANNELS)
    try:
        facts = machine.agent.facts()
        assert facts.imex_channels == 2048
        placed = Placed(tier="nvlink", domain=facts.domains["nvlink"], channel=3)
        await machine.ready()
        await armed(machine, arm(placed=placed))
        assert "/dev/nvidia-caps-imex-channels/channel3" in str(spec(machine))
        other = request("other-0", run=RunRef(workspace="default", name="other", uid="u2"))
        await machine.ready(other)
        machine.agent.obey(arm(slot="other-0", placed=placed))
        await until(lambda: machine.status("other-0").arm_failed == 0)
        assert "IMEX channel 3 is held by slot llama-1-0" in machine.status("other-0").detail
        machine.agent.obey(finish())
        await until(lambda: len(machine.agent.slots()) == 1)
        assert await armed_again(machine, placed)
    finally:
        await machine.crash()


async def armed_again(machine: Machine, placed: Placed) -> bool:
    machine.agent.obey(arm(1, slot="other-0", placed=placed))
    await until(lambda: machine.attempt(1, "other-0").state == "armed")
    return True


async def test_a_machine_of_claims_only_gives_nodes_that_nobody_answers_for(tmp_path: Path) -> None:
    claims = {
        "gpus": [{"index": 0, "uuid": "GPU-0"}],
        "ports": [{"name": "mlx5_0", "tier": "infiniband", "gbps": 400}],
        "domains": {"infiniband": "f1"},
    }
    (tmp_path / "facts.json").write_text(json.dumps(claims))
    async with a_machine(tmp_path, facts_file=tmp_path / "facts.json") as machine:
        await machine.ready(request(gpus=(0,)))
        env = await armed(machine, arm(placed=Placed(tier="infiniband", domain="f1")))
        assert env["NCCL_IB_HCA"] == "=mlx5_0:1"
        assert {device["major"] for device in spec(machine)["linux"]["devices"]} == {60}
