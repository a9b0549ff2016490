"""Between the spec, the core and the engine."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from astra_agent.wire import DriveMount, RunRef, SlotRequest
from astra_gang.core import Policy, begin, step
from astra_gang.core.decisions import Place
from astra_gang.core.events import NotPlaced, Placed
from astra_gang.core.state import Assignment
from astra_gang.engine import Machine, SlotOffer
from astra_gang.plan import answer, choose_machines, offer, workers
from astra_gang.spec import Spec, parse
from tests.gang.cluster import GIB, machine, placed_run


def spec(*, start: str = "Gang", resources: dict[str, Any], **template: Any) -> Spec:
    template = {"image": "host", "requested_resources": resources, **template}
    return parse({"metadata": {"name": "x"}, "spec": {"start": start, "task_template": template}})


SIXTEEN = spec(resources={"gpu_requests": {"count": 16}})
FOUR_BY_FOUR = [machine(f"h-{n}", 4, infiniband="ib-a") for n in range(4)]


@pytest.mark.parametrize(
    ("asked", "cluster", "count"),
    [
        pytest.param(spec(resources={"machines": 3}), [], 3, id="the spec says"),
        pytest.param(SIXTEEN, [machine("m-1"), machine("m-2")], 2, id="what is free"),
        pytest.param(SIXTEEN, [machine("m-1"), machine("m-2"), *FOUR_BY_FOUR], 4, id="what is free inside one fabric"),
        pytest.param(
            SIXTEEN, [machine("m-1", 0), machine("m-2", 0, connected=False)], 2, id="what would be free if empty"
        ),
        pytest.param(SIXTEEN, [], 1, id="the fewest when nothing is known"),
        pytest.param(
            spec(start="Independent", resources={"gpu_requests": {"count": 16}}), FOUR_BY_FOUR, 1, id="no gang"
        ),
    ],
)
def test_how_many_workers_a_run_has(asked: Spec, cluster: list[Machine], count: int) -> None:
    assert choose_machines(asked, cluster) == count


def test_a_pending_run_is_placed_in_the_shape_that_is_free_now() -> None:
    state = begin(workspace="default", name="x", uid="u", policy=Policy(), workers=workers(SIXTEEN, 2), now=0.0)
    asked = Place(reservation=0, ranks=(0, 1), keep=(), avoid=())
    found = answer(asked, state, SIXTEEN, FOUR_BY_FOUR)
    assert isinstance(found, Placed)
    state, _ = step(state, found, 1.0)
    assert [(w.name, w.slot.machine, len(w.slot.gpus)) for w in state.workers if w.slot is not None] == [
        (f"x-{n}", f"h-{n}", 4) for n in range(4)
    ]
    assert state.members == (0, 1, 2, 3)


def test_workers_are_named_by_rank() -> None:
    assert [(worker.rank, worker.name) for worker in workers(SIXTEEN, 2)] == [(0, "x-0"), (1, "x-1")]


def test_a_whole_gang_is_answered_with_its_tier_and_why() -> None:
    run = placed_run("x", ["", ""])
    cluster = [machine(f"m-{n}", infiniband="ib-a") for n in (1, 2)]
    asked = Place(reservation=7, ranks=(0, 1), keep=(), avoid=())
    assert answer(asked, run, SIXTEEN, cluster) == Placed(
        reservation=7,
        assignments=(Assignment(0, "m-1", tuple(range(8))), Assignment(1, "m-2", tuple(range(8)))),
        tier="infiniband",
        domain="ib-a",
        why="2 machines with 8 GPUs each in InfiniBand fabric ib-a, the tightest network with room",
    )


def test_a_replacement_is_answered_within_the_run_s_domain() -> None:
    run = placed_run("x", ["m-1", "m-2"], tier="infiniband", domain="ib-a")
    asked = Place(reservation=8, ranks=(1,), keep=("m-1",), avoid=("m-2",))
    cluster = [machine(f"m-{n}", infiniband="ib-a") for n in (1, 2)] + [machine("m-3", infiniband="ib-b")]
    refused = answer(asked, run, SIXTEEN, cluster)
    assert isinstance(refused, NotPlaced)
    assert refused.reason.startswith("Gang cannot be placed whole: needs 1 more machine with 8 free GPUs")
    placed = answer(asked, run, SIXTEEN, [*cluster, machine("m-4", infiniband="ib-a")])
    assert isinstance(placed, Placed)
    assert placed.assignments == (Assignment(1, "m-4", tuple(range(8))),)


def test_one_worker_that_fits_no_machine_is_told_how_to_become_several() -> None:
    alone = spec(start="Independent", resources={"gpu_requests": {"count": 16}})
    asked = Place(reservation=0, ranks=(0,), keep=(), avoid=())
    refused = answer(asked, placed_run("x", [""]), alone, [machine("m-1"), machine("m-2")])
    assert isinstance(refused, NotPlaced)
    assert refused.reason.endswith("; set start: Gang to spread it over several machines")


def test_an_offer_holds_one_worker_s_share_and_the_user_s_own_variables() -> None:
    asked = spec(
        resources={"gpu_requests": {"count": 16}, "per_gpu": {"cpu_cores": 12, "memory_bytes": GIB}},
        command="bash",
        args=["-c", "true"],
        env={"WORLD_SIZE": "mine"},
        datavolume_refs=[{"name": "data", "mount_path": "/data", "mode": "ReadOnly"}],
    )
    run = placed_run("x", ["m-1", "m-2"])
    run = replace(run, policy=replace(run.policy, stop_grace_s=12))
    assert offer(run, asked, Assignment(1, "m-2", (4, 5, 6, 7, 0, 1, 2, 3), slot="s-1")) == SlotOffer(
        machine="m-2",
        request=SlotRequest(
            slot="s-1",
            run=RunRef(workspace="default", name="x", uid=run.uid),
            worker="x-1",
            image="host",
            command=("bash", "-c", "true"),
            env={"WORLD_SIZE": "mine"},
            drives=(DriveMount(name="data", mount_path="/data", read_only=True),),
            cpu_cores=96,
            memory_bytes=8 * GIB,
            gpus=(4, 5, 6, 7, 0, 1, 2, 3),
            stop_grace_s=12,
        ),
    )
