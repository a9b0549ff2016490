"""Whole or none, on the tightest tier there is room on."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astra_gang.core import SPARE
from astra_gang.engine import Machine
from astra_gang.fit import TIERS, Request, Tier, domain, fits, nearness, tiers, usable
from astra_gang.placement import NotPlaceable, Placement, Within, place, replace
from astra_gang.shape import Shape
from tests.gang.cluster import GIB, machine, port


def request(machines: int, gpus: int = 8, interconnect: str | None = None, **more: Any) -> Request:
    return Request((Shape(machines, gpus, 0, 0),), interconnect, **more)


def placed(request: Request, machines: Sequence[Machine], **how: Any) -> Placement:
    found = place(request, machines, **how)
    assert isinstance(found, Placement), found
    return found


def refused(request: Request, machines: Sequence[Machine], **how: Any) -> str:
    found = place(request, machines, **how)
    assert isinstance(found, NotPlaceable), found
    return found.reason


def where(placement: Placement) -> tuple[str, str, list[str]]:
    return placement.tier, placement.domain, [assignment.machine for assignment in placement.assignments]


TWO_FABRICS = [
    *(machine(f"m-{n}", infiniband="ib-a") for n in (1, 2, 3)),
    *(machine(f"m-{n}", infiniband="ib-b") for n in (4, 5)),
]


@pytest.mark.parametrize(
    ("asked", "cluster", "expected"),
    [
        pytest.param(
            request(2),
            [machine("m-1"), machine("m-2", infiniband="ib-a"), machine("m-3", infiniband="ib-a")],
            ("infiniband", "ib-a", ["m-2", "m-3"]),
            id="a fabric before Ethernet",
        ),
        pytest.param(
            request(2),
            [*TWO_FABRICS, machine("n-1", nvlink="nv-1"), machine("n-2", nvlink="nv-1")],
            ("nvlink", "nv-1", ["n-1", "n-2"]),
            id="an NVLink domain before a fabric",
        ),
        pytest.param(
            request(2), TWO_FABRICS, ("infiniband", "ib-b", ["m-4", "m-5"]), id="the smallest domain with room"
        ),
        pytest.param(
            request(4),
            TWO_FABRICS,
            ("ethernet", "cluster", ["m-1", "m-2", "m-3", "m-4"]),
            id="Ethernet when no fabric has room",
        ),
        pytest.param(
            request(2, 4),
            [machine("m-1"), machine("m-2", 4), machine("m-3", 5)],
            ("ethernet", "cluster", ["m-2", "m-3"]),
            id="the fullest machines first",
        ),
        pytest.param(
            request(1, 2),
            [machine("m-1"), machine("m-2", 3), machine("m-3", 1)],
            ("machine", "m-2", ["m-2"]),
            id="one worker goes to the fullest machine with room",
        ),
        pytest.param(
            request(1, 0),
            [machine("m-1", 1), machine("m-2", 0, gpus=0)],
            ("machine", "m-2", ["m-2"]),
            id="a worker without GPUs leaves them alone",
        ),
        pytest.param(
            request(2, interconnect="rdma"),
            [machine("m-1", rdma="pod"), machine("m-2", rdma="pod")],
            ("rdma", "pod", ["m-1", "m-2"]),
            id="rdma where rdma will do",
        ),
        pytest.param(
            request(2, interconnect="rdma"),
            TWO_FABRICS,
            ("infiniband", "ib-b", ["m-4", "m-5"]),
            id="rdma asks for RDMA or closer",
        ),
        pytest.param(
            request(1, interconnect="infiniband"),
            [machine("m-1")],
            ("machine", "m-1", ["m-1"]),
            id="one machine needs no fabric, whatever was asked for",
        ),
        pytest.param(
            request(2),
            [machine("m-10", ethernet="e-2"), machine("m-9", ethernet="e-2"), machine("m-1", ethernet="e-1")],
            ("ethernet", "e-2", ["m-9", "m-10"]),
            id="Ethernet networks that are told apart are not mixed",
        ),
    ],
)
def test_where_a_gang_goes(asked: Request, cluster: list[Machine], expected: tuple[str, str, list[str]]) -> None:
    assert where(placed(asked, cluster)) == expected
    assert where(placed(asked, cluster[::-1])) == expected


def test_the_tightest_tier_counts_more_than_the_number_of_machines() -> None:
    """16 GPUs may run as 2 x 8, or 4 x 4 inside one fabric when that is what is free."""
    asked = Request((Shape(1, 16, 0, 0), Shape(2, 8, 0, 0), Shape(4, 4, 0, 0)))
    apart = [machine("m-1", infiniband="ib-a"), machine("m-2", infiniband="ib-b")]
    halves = [machine(f"h-{n}", 4, infiniband="ib-b") for n in range(3)]
    assert where(placed(asked, apart))[0] == "ethernet"
    assert where(placed(asked, [*apart, *halves])) == ("infiniband", "ib-b", ["h-0", "h-1", "h-2", "m-2"])
    assert placed(asked, [*apart, *halves]).shape == Shape(4, 4, 0, 0)


def test_a_worker_gets_free_gpus_only_and_no_more_than_its_share() -> None:
    found = placed(request(2, 2), [machine("m-1", 3), machine("m-2", 2)])
    assert [assignment.gpus for assignment in found.assignments] == [(5, 6), (6, 7)]


@pytest.mark.parametrize(
    "unfit",
    [
        pytest.param(machine("m-2", connected=False), id="not connected"),
        pytest.param(machine("m-2", out_of_use="a process does not die"), id="out of use"),
        pytest.param(machine("m-2", 7), id="a GPU is taken"),
        pytest.param(machine("m-2", cpu=95.5), id="half a core is missing"),
        pytest.param(machine("m-2", memory=960 * GIB - 1), id="a byte is missing"),
    ],
)
def test_a_machine_that_does_not_fit_is_not_chosen(unfit: Machine) -> None:
    asked = Request((Shape(2, 8, 96, 960 * GIB),))
    assert refused(asked, [machine("m-1"), unfit]).startswith("Gang cannot be placed whole: needs 2 machines")
    assert where(placed(asked, [machine("m-1"), unfit, machine("m-3")]))[2] == ["m-1", "m-3"]


def test_a_machine_that_is_to_be_avoided_is_not_chosen() -> None:
    cluster = [machine("m-1"), machine("m-2"), machine("m-3")]
    assert where(placed(request(2), cluster, avoid=["m-2"]))[2] == ["m-1", "m-3"]


def test_every_machine_has_every_drive() -> None:
    cluster = [
        machine("m-1", drives=("data", "ckpt")),
        machine("m-2", drives=("data",)),
        machine("m-3", drives=("ckpt", "data")),
    ]
    assert where(placed(request(2, drives=("data", "ckpt")), cluster))[2] == ["m-1", "m-3"]


@pytest.mark.parametrize(
    ("ports", "min_gbps", "tier"),
    [
        pytest.param((), 0, "infiniband", id="no port is listed: the domain's word is taken"),
        pytest.param((), 100, None, id="no port is listed and a speed is asked for"),
        pytest.param((port("infiniband"),), 400, "infiniband", id="just fast enough"),
        pytest.param((port("infiniband", 200), port("infiniband", 200)), 400, None, id="two ports do not add up"),
        pytest.param((port("infiniband", up=False),), 0, "ethernet", id="every port is down"),
        pytest.param(
            (port("infiniband", up=False), port("infiniband", 200)), 100, "infiniband", id="one port is enough"
        ),
        pytest.param(
            (port("infiniband", up=False), port("ethernet", 100)), 100, "ethernet", id="an Ethernet port of that speed"
        ),
        pytest.param((port("ethernet", 400),), 0, "infiniband", id="ports of another kind say nothing"),
        pytest.param((port("rdma", 400),), 400, "ethernet", id="a RoCE port carries Ethernet"),
    ],
)
def test_min_gbps_is_for_one_port_of_the_tier(ports: tuple[Any, ...], min_gbps: float, tier: str | None) -> None:
    cluster = [machine(f"m-{n}", ports=ports, infiniband="ib-a") for n in (1, 2)]
    found = place(request(2, min_gbps=min_gbps), cluster)
    assert (found.tier if isinstance(found, Placement) else None) == tier


def test_min_gbps_does_not_bind_where_no_port_carries_the_traffic() -> None:
    assert where(placed(request(1, min_gbps=400), [machine("m-1")]))[0] == "machine"
    assert where(placed(request(2, min_gbps=400), [machine(f"m-{n}", nvlink="nv") for n in (1, 2)]))[0] == "nvlink"


# Replacements -----------------------------------------------------------------------------------------------------


def test_a_replacement_comes_from_the_domain_of_the_others() -> None:
    cluster = [*TWO_FABRICS, machine("m-6", 4, infiniband="ib-b")]
    found = replace(request(3, 4), cluster, ranks=[1], keep=["m-1", "m-2"], within=Within("infiniband", "ib-a"))
    assert isinstance(found, Placement)
    assert where(found) == ("infiniband", "ib-a", ["m-3"])
    assert [assignment.rank for assignment in found.assignments] == [1]


def test_several_replacements_have_their_ranks_in_the_order_of_the_fabric() -> None:
    cluster = [machine(f"m-{n}", infiniband="ib-a") for n in (10, 2, 1)]
    found = replace(request(3), cluster, ranks=[2, 1], keep=["m-1"], within=Within("infiniband", "ib-a"))
    assert isinstance(found, Placement)
    assert [(assignment.rank, assignment.machine) for assignment in found.assignments] == [(1, "m-2"), (2, "m-10")]


def test_no_replacement_says_how_many_are_missing_and_where() -> None:
    cluster = [*TWO_FABRICS, machine("m-6", 3, infiniband="ib-a")]
    found = replace(request(3), cluster, ranks=[1], keep=["m-1", "m-2", "m-3"], within=Within("infiniband", "ib-a"))
    assert found == NotPlaceable(
        "Gang cannot be placed whole: needs 1 more machine with 8 free GPUs in InfiniBand fabric ib-a; "
        "none there has that now; next would be m-6 (3 of its 8 GPUs free)"
    )


# Sentences --------------------------------------------------------------------------------------------------------

IB_A = [machine(f"m-{n}", infiniband="ib-a") for n in (1, 2, 3)]


@pytest.mark.parametrize(
    ("asked", "cluster", "sentence"),
    [
        pytest.param(
            request(4, interconnect="infiniband"),
            [*IB_A, machine("m-4", 3, infiniband="ib-a"), machine("m-5", infiniband="ib-b")],
            "Gang cannot be placed whole: needs 4 machines with 8 free GPUs each in one InfiniBand fabric; "
            "the best, ib-a, has 3 (m-1, m-2, m-3); 1 more would do; next would be m-4 (3 of its 8 GPUs free)",
            id="one is short",
        ),
        pytest.param(
            request(4, interconnect="infiniband"),
            IB_A,
            "Gang cannot be placed whole: needs 4 machines with 8 free GPUs each in one InfiniBand fabric; "
            "the best, ib-a, has 3 (m-1, m-2, m-3); 1 more would do; "
            "even if nothing else ran there would be 3, so waiting does not help",
            id="the fabric is too small",
        ),
        pytest.param(
            request(2),
            [machine("m-1", 0), machine("m-2", connected=False), machine("m-3", out_of_use="a process hangs.")],
            "Gang cannot be placed whole: needs 2 machines with 8 free GPUs each; no machine has that now; "
            "next would be m-1 (0 of its 8 GPUs free), m-2 (not connected), m-3 (out of use: a process hangs)",
            id="nothing is free",
        ),
        pytest.param(
            request(2, interconnect="nvlink"),
            [machine("m-1"), machine("m-2")],
            "Gang cannot be placed whole: needs 2 machines with 8 free GPUs each in one NVLink domain; "
            "no machine has that now; even if nothing else ran there would be none, so waiting does not help; "
            "next would be m-1, m-2 (in no NVLink domain)",
            id="no such network",
        ),
        pytest.param(
            request(2, interconnect="infiniband", min_gbps=400),
            [machine(f"m-{n}", infiniband="ib-a", ports=(port("infiniband", 200),) * 8) for n in (1, 2)],
            "Gang cannot be placed whole: needs 2 machines with 8 free GPUs and a port of 400 Gb/s each "
            "in one InfiniBand fabric; "
            "no machine has that now; even if nothing else ran there would be none, so waiting does not help; "
            "next would be m-1, m-2 (its fastest InfiniBand port has 200 Gb/s, and min_gbps is for one port)",
            id="ports are too slow one by one",
        ),
        pytest.param(
            Request((Shape(1, 0, 128, 2048 * GIB),)),
            [machine("m-1", cpu=10)],
            "Cannot be placed: needs 1 machine with 128 free CPU cores and 2Ti of free memory; "
            "no machine has that now; even if nothing else ran there would be none, so waiting does not help; "
            "next would be m-1 (10 of its 96 CPU cores free)",
            id="one worker is no gang",
        ),
        pytest.param(
            Request((Shape(1, 0, 1, 100 * GIB),)),
            [machine("m-1", memory=25_276_514_304)],
            "Cannot be placed: needs 1 machine with 1 free CPU core and 100Gi of free memory; "
            "no machine has that now; next would be m-1 (23.5Gi of its 1Ti of memory free)",
            id="memory, roughly",
        ),
        pytest.param(
            request(2),
            [],
            "Gang cannot be placed whole: needs 2 machines with 8 free GPUs each; no machine is known",
            id="an empty cluster",
        ),
        pytest.param(
            request(2, drives=("data",)),
            [machine("m-1", drives=("data",)), machine("m-2")],
            "Gang cannot be placed whole: needs 2 machines with 8 free GPUs each; 1 has that (m-1); 1 more would do; "
            "even if nothing else ran there would be 1, so waiting does not help; next would be m-2 (no drive data)",
            id="a drive is missing",
        ),
    ],
)
def test_a_refusal_says_what_is_missing_and_what_would_do(
    asked: Request, cluster: list[Machine], sentence: str
) -> None:
    assert refused(asked, cluster) == sentence


# A second version -------------------------------------------------------------------------------------------------

names = st.sampled_from(["a", "b"])
machines = st.lists(
    st.builds(
        lambda free, cpu, domains, ports, connected: {
            "free": free,
            "cpu": cpu,
            "ports": tuple(ports),
            "connected": connected,
            **domains,
        },
        free=st.sampled_from([0, 4, 8]),
        cpu=st.sampled_from([16.0, 96.0]),
        domains=st.fixed_dictionaries({}, optional=dict.fromkeys(TIERS[1:], names)),
        ports=st.lists(
            st.builds(
                lambda tier, gbps, up: port(tier, gbps, up=up),
                st.sampled_from(["infiniband", "rdma", "ethernet"]),
                st.sampled_from([100.0, 400.0]),
                st.booleans(),
            ),
            max_size=2,
        ),
        connected=st.sampled_from([True, True, True, False]),
    ),
    max_size=6,
).map(lambda rows: [machine(f"m-{n}", **row) for n, row in enumerate(rows)])
requests = st.builds(
    lambda counts, per, cpu, interconnect, gbps: Request(
        tuple(Shape(count, per, cpu, 0) for count in counts), interconnect, gbps
    ),
    counts=st.lists(st.integers(1, 3), min_size=1, max_size=2, unique=True).map(sorted),
    per=st.sampled_from([0, 4, 8]),
    cpu=st.sampled_from([0.0, 32.0]),
    interconnect=st.sampled_from([None, "rdma", "infiniband", "nvlink"]),
    gbps=st.sampled_from([0.0, 200.0]),
)


def brute_force(asked: Request, cluster: Sequence[Machine]) -> set[tuple[str, int, str, frozenset[str]]]:
    """Every choice of machines on the first tier and shape that have one, found by trying all."""
    for tier in tiers(asked):
        for shape in asked.shapes:
            found: set[tuple[str, int, str, frozenset[str]]] = {
                (tier, shape.machines, name, frozenset(m.facts.name for m in group))
                for group in combinations(cluster, shape.machines)
                if all(usable(m, asked.drives, ()) and fits(m, shape) for m in group)
                for name in [shared(group, tier, asked.min_gbps)]
                if name is not None and (tier == "machine") == (shape.machines == 1)
            }
            if found:
                return found
    return set()


def shared(group: Sequence[Machine], tier: Tier, min_gbps: float) -> str | None:
    found = {domain(m, tier, min_gbps) for m in group}
    return found.pop() if len(found) == 1 else None


@settings(max_examples=400)
@given(requests, machines)
def test_placement_agrees_with_trying_everything(asked: Request, cluster: list[Machine]) -> None:
    found, choices = place(asked, cluster), brute_force(asked, cluster)
    if isinstance(found, NotPlaceable):
        assert not choices
        assert "cannot be placed" in found.reason.lower()
        return
    chosen = frozenset(assignment.machine for assignment in found.assignments)
    assert (found.tier, found.shape.machines, found.domain, chosen) in choices
    free = {m.facts.name: set(m.free_gpus) for m in cluster}
    for rank, assignment in enumerate(found.assignments):
        assert assignment.rank == rank
        assert len(assignment.gpus) == found.shape.gpus
        assert free[assignment.machine].issuperset(assignment.gpus)


@given(requests, machines, st.randoms(use_true_random=False))
def test_placement_does_not_depend_on_the_order_of_machines(
    asked: Request, cluster: list[Machine], random: Any
) -> None:
    shuffled = list(cluster)
    random.shuffle(shuffled)
    assert place(asked, cluster) == place(asked, shuffled)


@given(requests, machines, st.integers(1, 3), st.sampled_from(TIERS[1:]), names)
def test_a_replacement_is_found_whenever_the_domain_has_enough_that_fit(
    asked: Request, cluster: list[Machine], count: int, tier: Tier, name: str
) -> None:
    kept = [m.facts.name for m in cluster[:1]]
    able = {
        m.facts.name
        for m in cluster[1:]
        if usable(m, asked.drives, ()) and fits(m, asked.shapes[0]) and domain(m, tier, asked.min_gbps) == name
    }
    found = replace(asked, cluster, ranks=range(1, count + 1), keep=kept, within=Within(tier, name))
    if isinstance(found, NotPlaceable):
        assert len(able) < count
        assert f"needs {count} more machine" in found.reason
    else:
        chosen = {assignment.machine for assignment in found.assignments}
        assert len(chosen) == count
        assert chosen <= able


@given(requests, machines)
def test_a_machine_that_fits_lacks_nothing(asked: Request, cluster: list[Machine]) -> None:
    for tier in tiers(asked):
        for m in cluster:
            fit = (
                usable(m, asked.drives, ()) and fits(m, asked.shapes[0]) and domain(m, tier, asked.min_gbps) is not None
            )
            assert (nearness(m, asked, asked.shapes[0], tier, ()) is None) == fit


# Spares ---------------------------------------------------------------------------------------------------------------


def test_spares_are_in_the_same_domain_as_the_workers_and_behind_them() -> None:
    found = placed(request(2, spares=1), TWO_FABRICS)
    assert where(found) == ("infiniband", "ib-a", ["m-1", "m-2", "m-3"])
    assert [assignment.rank for assignment in found.assignments] == [0, 1, SPARE]
    assert [len(assignment.gpus) for assignment in found.assignments] == [8, 8, 8]
    assert found.why.startswith("2 machines and 1 spare with 8 GPUs each in InfiniBand fabric ib-a")


def test_all_workers_and_spares_or_none() -> None:
    sentence = refused(request(3, interconnect="infiniband", spares=1), TWO_FABRICS)
    assert sentence == (
        "Gang cannot be placed whole: needs 4 machines (3 and 1 spare) with 8 free GPUs each in one InfiniBand fabric; "
        "the best, ib-a, has 3 (m-1, m-2, m-3); 1 more would do; "
        "even if nothing else ran there would be 3, so waiting does not help"
    )


def test_a_run_with_spares_is_on_several_machines_even_where_one_would_do() -> None:
    open_shape = Request((Shape(1, 8, 0, 0), Shape(2, 4, 0, 0)), spares=1)
    assert where(placed(open_shape, TWO_FABRICS)) == ("infiniband", "ib-a", ["m-1", "m-2", "m-3"])


def test_whoever_replaces_a_worker_brings_no_spares() -> None:
    found = replace(request(2, spares=1), TWO_FABRICS, ranks=(1,), keep=("m-1",), within=Within("infiniband", "ib-a"))
    assert isinstance(found, Placement)
    assert [assignment.rank for assignment in found.assignments] == [1]
