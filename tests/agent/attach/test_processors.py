"""Which processors a worker may run on: near its GPUs, whole cores, and none that another worker has."""

from __future__ import annotations

from itertools import combinations

import pytest

from astra_agent.attach import Edits, Placement, Request, attach
from astra_agent.inventory import Inventory, read
from tests.fakes.machine import Machine

ALL = range(4)


def machine(*, gpus: dict[int, int], cores: bool = True) -> Inventory:
    """Two nodes of 8 processors in 4 cores; a processor and the one 8 behind it share a core. *gpus*: node by index."""
    made = Machine("gpu-1", {0: "0-3,8-11", 1: "4-7,12-15"}, route="eno1")
    for index, node in gpus.items():
        made.gpu(f"0000:{0x18 + index:02x}:00.0", numa=node)
    if cores:
        made.cores(*((cpu, cpu + 8) for cpu in range(8)))
    return read(*made.capture())


FOUR = {0: 0, 1: 0, 2: 1, 3: 1}


def attached(inventory: Inventory, *gpus: int, cpu_cores: float = 0.0) -> Edits:
    return attach(inventory, Placement("machine"), Request(gpus=gpus, cpu_cores=cpu_cores))


@pytest.mark.parametrize(
    ("gpus", "cpu_cores", "cpus"),
    [
        ((0,), 4, {0, 1, 8, 9}),
        ((1,), 2, {2, 3, 10, 11}),
        ((1,), 1.5, {2, 3, 10, 11}),
        ((0, 1), 4, {0, 1, 2, 3, 8, 9, 10, 11}),
        ((0, 2), 8, {0, 1, 8, 9, 4, 5, 12, 13}),
        ((0,), 5, {0, 1, 2, 3, 8, 9, 10, 11}),
        ((0,), 0, {0, 1, 2, 3, 8, 9, 10, 11}),
        ((0,), 9, None),
        ((0, 2), 9, None),
        ((0, 1, 2, 3), 16, None),
        ((0, 1, 2, 3), 4, None),
    ],
)
def test_a_worker_has_its_gpus_share_of_their_nodes_cores(
    gpus: tuple[int, ...], cpu_cores: float, cpus: set[int] | None
) -> None:
    assert attached(machine(gpus=FOUR), *gpus, cpu_cores=cpu_cores).cpus == cpus


def test_workers_beside_each_other_have_no_processor_in_common() -> None:
    found = machine(gpus=FOUR)
    shares = [attached(found, gpu, cpu_cores=4).cpus for gpu in ALL]
    assert all(one and other and not one & other for one, other in combinations(shares, 2))
    assert frozenset().union(*filter(None, shares)) == frozenset(range(16))


def test_cores_that_do_not_come_out_even_are_all_somebodys_and_nobodys_twice() -> None:
    found = machine(gpus={0: 0, 1: 0, 2: 0})
    shares = [attached(found, gpu, cpu_cores=1).cpus or frozenset() for gpu in range(3)]
    assert sorted(cpu for share in shares for cpu in share) == [0, 1, 2, 3, 8, 9, 10, 11]
    assert {cpu % 8 for cpu in shares[2]} == {2, 3}


@pytest.mark.parametrize(
    "found",
    [machine(gpus=FOUR, cores=False), machine(gpus=dict.fromkeys(range(5), 0))],
    ids=["it does not say which processors share a core", "more GPUs than cores"],
)
def test_without_whole_cores_to_give_it_has_its_nodes(found: Inventory) -> None:
    assert attached(found, 0, cpu_cores=1).cpus == frozenset({0, 1, 2, 3, 8, 9, 10, 11})


def test_both_nodes_of_a_workers_gpus_are_among_its_processors() -> None:
    """NCCL looks for the processors of each GPU's node."""
    cpus = attached(machine(gpus=FOUR), 1, 3, cpu_cores=2).cpus or frozenset()
    assert cpus & {0, 1, 2, 3, 8, 9, 10, 11}
    assert cpus & {4, 5, 6, 7, 12, 13, 14, 15}
