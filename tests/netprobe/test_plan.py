"""The plan of rounds, and what it finds in networks of up to 4,096 machines."""

from __future__ import annotations

import random
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astra_netprobe import localise
from astra_netprobe.plan import MATRIX_MAX, disjoint, matrix, second_ring, tournament
from astra_netprobe.verdict import Asked, judge
from tests.netprobe.simulated import LINE, Network, machines, probe, round_count

SIZES = (3, 4, 5, 6, 8, 9, 12, 16, 33, 64, 512, 4096)
LARGE = (9, 16, 64, 512, 4096)
ROUNDS_MAX = 24
"""Of a network with one thing wrong, however large it is; a matrix of 8 has 7 × 3 rounds and repeats."""


def edges(order: tuple[str, ...]) -> set[tuple[str, str]]:
    return set(zip(order, (*order[1:], order[0]), strict=True))


@given(count=st.integers(3, 5000))
@settings(max_examples=200, deadline=None)
def test_two_rings_have_no_directed_edge_in_common(count: int) -> None:
    names = machines(count)
    ring = second_ring(names)
    assert sorted(ring) == sorted(names)
    assert not edges(names) & edges(ring)


@given(count=st.integers(2, 60))
@settings(deadline=None)
def test_in_a_tournament_every_pair_meets_once_and_nobody_is_in_two_pairs_of_a_round(count: int) -> None:
    names = machines(count)
    rounds = tournament(names)
    met = [frozenset(pair) for pairs in rounds for pair in pairs]
    assert len(met) == len(set(met)) == count * (count - 1) // 2
    assert len(rounds) == (count - 1 if count % 2 == 0 else count)
    for pairs in rounds:
        assert len({name for pair in pairs for name in pair}) == 2 * len(pairs)


@given(pairs=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)).filter(lambda pair: pair[0] != pair[1])))
def test_pairs_are_shared_out_into_rounds_without_loss(pairs: list[tuple[int, int]]) -> None:
    named = [(f"m-{one}", f"m-{other}") for one, other in pairs]
    rounds = disjoint(named)
    assert sorted(pair for round_ in rounds for pair in round_) == sorted(set(named))
    for round_ in rounds:
        assert len({name for pair in round_ for name in pair}) == 2 * len(round_)


@pytest.mark.parametrize("count", SIZES)
@pytest.mark.parametrize("noise", [0.0, 0.15])
def test_a_sound_network_is_sound_and_a_large_one_costs_one_ring(count: int, noise: float) -> None:
    for seed in range(3 if count > 100 else 20):
        evidence = probe(Network(machines(count), noise=noise, seed=seed))
        assert localise.slow(evidence) == ()
        assert round_count(evidence) == (1 if count > MATRIX_MAX else 1 + len(matrix(machines(count))))


@pytest.mark.parametrize("count", SIZES)
@pytest.mark.parametrize("noise", [0.0, 0.1])
@pytest.mark.parametrize("who", [0, 1, 2])
def test_a_port_that_is_bad_in_one_direction_is_named_with_its_direction(count: int, noise: float, who: int) -> None:
    name = machines(count)[who * (count - 1) // 2]
    sends = Network(machines(count), sends={name: 0.2 * LINE}, noise=noise, seed=who)
    receives = Network(machines(count), receives={name: 0.2 * LINE}, noise=noise, seed=who)
    for kind, network in (("sends", sends), ("receives", receives)):
        evidence = probe(network)
        assert [(found.kind, found.machines) for found in localise.slow(evidence) if found.sick] == [(kind, (name,))]
        assert round_count(evidence) <= ROUNDS_MAX
        verdict = judge(evidence)
        assert verdict.exit == 1 and verdict.blamed == (name,)
        assert re.match(rf"{name} {kind} at 0\.(19|20|21|22) ", verdict.sentence)
        assert verdict.sentence.endswith(f"of the others' median; the link of {name} is slow in one direction")


@pytest.mark.parametrize("count", [n for n in SIZES if n > 3])
def test_one_slow_machine_is_named(count: int) -> None:
    name = machines(count)[count // 2]
    slow = {name: 0.3 * LINE}
    evidence = probe(Network(machines(count), noise=0.05, sends=slow, receives=slow))
    assert [(found.kind, found.machines) for found in localise.slow(evidence)] == [("both_ways", (name,))]
    assert round_count(evidence) <= ROUNDS_MAX


@pytest.mark.parametrize("count", [n for n in SIZES if n > 3])
def test_a_way_that_is_bad_in_one_direction_is_named_and_its_machines_are_not(count: int) -> None:
    names = machines(count)
    way = (names[1], names[2])
    evidence = probe(Network(names, noise=0.05, ways={way: 0.2 * LINE}))
    assert [(found.kind, found.machines) for found in localise.slow(evidence)] == [("way", way)]
    assert round_count(evidence) <= ROUNDS_MAX


@pytest.mark.parametrize("count", [4, 6, 8, 12, 16, 64, 512, 4096])
@pytest.mark.parametrize("shuffled", [False, True])
def test_a_thin_uplink_between_two_halves_is_named_and_no_machine_is(count: int, shuffled: bool) -> None:
    names = machines(count)
    half = frozenset(random.Random(count).sample(names, count // 2) if shuffled else names[: count // 2])
    evidence = probe(Network(names, noise=0.05, half=half, uplink=0.2 * LINE))
    found = localise.slow(evidence)
    assert [finding.kind for finding in found] == ["halves"]
    assert set(found[0].machines) in (set(half), set(names) - half)
    assert judge(evidence).blamed == ()
    assert round_count(evidence) <= ROUNDS_MAX


@pytest.mark.parametrize("count", SIZES)
def test_everybody_equally_slow_is_nobodys_fault_and_below_what_was_asked(count: int) -> None:
    evidence = probe(Network(machines(count), line=0.2 * LINE, noise=0.05))
    assert localise.slow(evidence) == ()
    if count <= MATRIX_MAX:
        verdict = judge(evidence, Asked(min_bps=LINE))
        assert verdict.state == "below" and verdict.exit == 1 and verdict.blamed == ()
        assert f"all {count} machines are equally slow" in verdict.sentence


@pytest.mark.parametrize("count", LARGE)
def test_several_bad_ports_are_all_named(count: int) -> None:
    names = machines(count)
    bad = {names[1]: 0.2 * LINE, names[count // 2]: 0.4 * LINE}
    evidence = probe(Network(names, noise=0.05, sends=bad))
    assert {found.machines[0] for found in localise.slow(evidence) if found.kind == "sends"} == set(bad)
    assert round_count(evidence) <= ROUNDS_MAX


@pytest.mark.parametrize("count", [6, 8, *LARGE])
@pytest.mark.parametrize("bad", [2, 3])
def test_several_machines_that_are_slow_both_ways_are_no_half(count: int, bad: int) -> None:
    """Each hop of theirs is slow in both rings, as if they were behind an uplink: what they reach together tells."""
    if 2 * bad >= count:
        return
    names = machines(count)
    slow = {names[(1 + i * count // 3) % count]: 0.02 * LINE for i in range(bad)}
    evidence = probe(Network(names, noise=0.05, sends=slow, receives=slow))
    assert {found.kind for found in localise.slow(evidence)} <= {"both_ways", "sends", "receives"}
    assert set(judge(evidence).blamed) == set(slow)
    assert round_count(evidence) <= ROUNDS_MAX


def test_rounds_grow_with_what_is_wrong_and_not_with_the_machines() -> None:
    rounds = {count: round_count(probe(Network(machines(count), sends={"m-1": 0.2 * LINE}))) for count in LARGE[1:]}
    assert max(rounds.values()) <= min(rounds.values()) + 4
