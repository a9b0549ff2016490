"""Ranks follow the fabric."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astra_agent.wire import MachineFacts
from astra_gang.ranks import block, natural, order


def machine(name: str, **domains: Any) -> MachineFacts:
    return MachineFacts(name=name, address="10.0.0.1", cpu_cores=1, memory_bytes=1, domains=domains)


def names(machines: list[MachineFacts]) -> list[str]:
    return [facts.name for facts in order(machines)]


def test_numbers_in_names_count_as_numbers() -> None:
    assert names([machine("m-10"), machine("m-2"), machine("m-1")]) == ["m-1", "m-2", "m-10"]


def test_a_domain_s_machines_have_ranks_in_a_row_whatever_their_names() -> None:
    mixed = [machine("m-1", nvlink="nv-10"), machine("m-2", nvlink="nv-2"), machine("m-3", nvlink="nv-10")]
    assert names(mixed) == ["m-2", "m-1", "m-3"]


def test_the_wider_domain_comes_first() -> None:
    mixed = [
        machine("m-1", infiniband="ib-b", nvlink="nv-1"),
        machine("m-2", infiniband="ib-a", nvlink="nv-2"),
        machine("m-3", infiniband="ib-a", nvlink="nv-1"),
    ]
    assert names(mixed) == ["m-3", "m-2", "m-1"]


@pytest.mark.parametrize(
    ("domains", "closest"),
    [
        ({"nvlink": "nv-1", "infiniband": "ib-a"}, "nv-1"),
        ({"infiniband": "ib-a", "ethernet": "e"}, "ib-a"),
        ({"rdma": "pod-1"}, "pod-1"),
        ({"ethernet": "e"}, ""),
        ({}, ""),
    ],
)
def test_a_block_is_the_closest_domain(domains: dict[str, str], closest: str) -> None:
    assert block(machine("m-1", **domains)) == closest


@given(
    st.lists(st.text("ab-01289", min_size=1, max_size=6), unique=True).flatmap(
        lambda n: st.tuples(st.just(n), st.permutations(n))
    )
)
def test_ranks_do_not_depend_on_the_order_machines_come_in(given_names: tuple[list[str], list[str]]) -> None:
    first, second = given_names
    assert names([machine(name) for name in first]) == names([machine(name) for name in second])


@given(st.text(max_size=8), st.text(max_size=8))
def test_different_names_have_different_places(one: str, other: str) -> None:
    assert (natural(one) == natural(other)) == (one == other)
    assert (natural(one) < natural(other)) != (natural(other) <= natural(one))
