"""
Promises in real containers that wait for their start: what holds, and the sentence for each thing that does not. There
is no driver behind the devices, as on a simulated machine.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from astra_agent.attach import Edits, Placement, Request, apply, attach
from astra_agent.attach.edits import Device, Rlimit
from astra_agent.promises import Place, Trial, broken, promise
from tests.agent.inventory.captured import inventory
from tests.contract.conftest import ContainerdBench

pytestmark = pytest.mark.containers

USERS = pytest.mark.parametrize("uid", [0, 1000])
LOW = Edits(rlimits=(Rlimit("RLIMIT_MEMLOCK", 65536, 65536),))
PLACE = Place("llama-1", "gpu-2", is_played=True)


async def promised(bench: ContainerdBench) -> Edits:
    can_raise = (await bench.containers.probe()).memlock_unlimited
    request = Request(gpus=(0,), min_gbps=400, can_raise_memlock=can_raise)
    return replace(attach(inventory("dgx-h100-ndr"), Placement("infiniband"), request), cpus=None, mounts=())


async def what_is_missing(bench: ContainerdBench, edits: Edits, given: Edits, uid: int, place: Place) -> str | None:
    """Of *edits* in a container that has *given*."""
    trials = promise(edits).trials
    return broken(trials, await answers_inside(bench, trials, given, uid), place)


async def answers_inside(bench: ContainerdBench, trials: tuple[Trial, ...], given: Edits, uid: int) -> tuple[str, ...]:
    spec = lambda spec: apply(apply(spec, LOW), given)  # noqa: E731
    await bench.containers.create(bench.plan("s-a0", uid=uid, gid=uid, spec_edits=spec))
    answers = await bench.containers.try_inside("s-a0", tuple(trial.word for trial in trials))
    await bench.containers.remove("s-a0")
    return answers


@USERS
async def test_all_that_is_attached_is_found_inside(containerd_bench: ContainerdBench, uid: int) -> None:
    edits = await promised(containerd_bench)
    assert len(promise(edits).trials) > 10
    assert await what_is_missing(containerd_bench, edits, edits, uid, PLACE) is None


@USERS
@pytest.mark.parametrize(
    ("lack", "sentence"),
    [
        ("devices", "/dev/infiniband/rdma_cm is not in the container of llama-1 on gpu-2"),
        ("rules", "/dev/infiniband/rdma_cm may not be opened in the container of llama-1 on gpu-2 (EPERM): "),
        ("capabilities", "CAP_IPC_LOCK is not effective in the container of llama-1 on gpu-2"),
    ],
)
async def test_each_missing_piece_has_its_sentence(
    containerd_bench: ContainerdBench, uid: int, lack: str, sentence: str
) -> None:
    edits = await promised(containerd_bench)
    nothing: dict[str, Any] = {lack: ()}
    given = replace(edits, **nothing)
    found = await what_is_missing(containerd_bench, edits, given, uid, PLACE)
    assert found is not None
    assert found.startswith(sentence)


@USERS
@pytest.mark.parametrize("path", ["/dev/infiniband/uverbs0", "/dev/infiniband/rdma_cm"])
@pytest.mark.parametrize(
    ("lack", "sentence"),
    [
        ("node", "{path} is not in the container of llama-1 on gpu-2"),
        ("rule", "{path} may not be opened in the container of llama-1 on gpu-2 (EPERM): its device cgroup forbids it"),
    ],
)
async def test_one_node_or_one_rule_that_is_missing_among_all_the_others_is_named(
    containerd_bench: ContainerdBench, uid: int, path: str, lack: str, sentence: str
) -> None:
    edits = await promised(containerd_bench)
    (node,) = (device for device in edits.devices if device.path == path)
    if lack == "node":
        given = replace(edits, devices=tuple(device for device in edits.devices if device != node))
    else:
        ours = (node.major, node.minor)
        given = replace(edits, rules=tuple(rule for rule in edits.rules if (rule.major, rule.minor) != ours))
        assert len(given.rules) == len(edits.rules) - 1
    assert await what_is_missing(containerd_bench, edits, given, uid, PLACE) == sentence.format(path=path)


@USERS
async def test_a_low_limit_on_locked_memory_is_told_where_no_capability_lifts_it(
    containerd_bench: ContainerdBench, uid: int
) -> None:
    edits = replace(await promised(containerd_bench), rlimits=())
    only_memory = replace(edits, devices=(), rules=())
    trials = tuple(trial for trial in promise(only_memory).trials if trial.word == "lock")
    for given, sentence in (
        (edits, None),
        (
            replace(edits, capabilities=()),
            "no program may lock 1 GiB of memory in the container of llama-1 on gpu-2 (ENOMEM), which RDMA needs: "
            "set LimitMEMLOCK=infinity in containerd's unit",
        ),
    ):
        answers = await answers_inside(containerd_bench, trials, given, uid)
        assert broken(trials, answers, PLACE) == sentence


async def test_another_device_under_the_same_name_is_told(containerd_bench: ContainerdBench) -> None:
    edits = await promised(containerd_bench)
    other = tuple(Device(device.path, "c", 1, 3) for device in edits.devices)
    found = await what_is_missing(containerd_bench, edits, replace(edits, devices=other), 0, PLACE)
    assert found is not None
    assert "is another device than the machine's" in found


async def test_a_device_that_nothing_answers_for_is_a_fault_of_a_real_machine(
    containerd_bench: ContainerdBench,
) -> None:
    edits = await promised(containerd_bench)
    found = await what_is_missing(containerd_bench, edits, edits, 0, Place("llama-1", "gpu-2"))
    assert found is not None
    assert "nothing answers behind /dev/" in found
    assert found.endswith("): is its driver loaded?")
