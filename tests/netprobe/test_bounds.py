"""A machine that sends no faster by its own setting is not blamed for it, and hides nothing that is wrong elsewhere."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astra_netprobe import bounds, localise
from astra_netprobe.plan import MATRIX_MAX
from astra_netprobe.readings import Port, Sized
from astra_netprobe.verdict import Asked, judge
from tests.netprobe.simulated import LINE, Network, machines, probe, round_count

MIB = 1 << 20
FOUR = machines(4)
SHARES = (0.02, 0.2, 0.5, 0.75, 0.9, 2.0)
"""Of the line."""


def sized(rate: float) -> tuple[Sized, ...]:
    """All-reduces of four machines with that bus bandwidth, bits per second."""
    return tuple(Sized(size, 4, "ring", (1.5 * 8 * size / rate,)) for size in (16 * MIB, 64 * MIB))


@pytest.mark.parametrize("count", [2, 3, 4, 8, 9, 16, 64])
@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("noise", [0.0, 0.15])
def test_a_machines_own_bound_is_no_fault_and_is_told(count: int, share: float, noise: float) -> None:
    names = machines(count)
    network = Network(names, bounds={names[1]: share * LINE}, noise=noise, seed=count)
    evidence = probe(network)
    verdict = judge(replace(evidence, sizes=sized(min(share, 0.95) * LINE)))
    assert (verdict.state, verdict.blamed, verdict.exit) == ("sound", (), 0)
    who = "all were" if count > MATRIX_MAX else "was"
    told = f"by its own setting, and {who} measured only up to that"
    assert verdict.sentence.endswith(told) == (share < 1)
    assert count <= MATRIX_MAX or round_count(evidence) == 1, "it costs no round more than without it"


@pytest.mark.parametrize(
    ("count", "share"),
    [(count, share) for count in (3, 4, 7, 9, 33) for share in SHARES if count <= MATRIX_MAX or share >= 0.2],
)
@pytest.mark.parametrize("kind", ["sends", "receives"])
@pytest.mark.parametrize("noise", [0.0, 0.05])
def test_what_is_wrong_elsewhere_is_named_as_without_it(count: int, share: float, kind: str, noise: float) -> None:
    names = machines(count)
    fault = {kind: {names[-1]: 0.4 * LINE}}
    evidence = probe(Network(names, bounds={names[0]: share * LINE}, noise=noise, seed=count, **fault))  # type: ignore[arg-type]
    found = [slow for slow in localise.slow(evidence) if slow.sick]
    assert [(slow.kind, slow.machines) for slow in found] == [(kind, (names[-1],))]
    assert judge(evidence).blamed == (names[-1],)


@pytest.mark.parametrize("share", [0.1, 0.3, 1.0])
def test_a_link_that_carries_less_than_its_machines_bound_is_named(share: float) -> None:
    sick = {"m-2": 0.4 * share * LINE}
    verdict = judge(probe(Network(FOUR, bounds={"m-2": share * LINE}, sends=sick)))
    assert verdict.blamed == ("m-2",) and verdict.sentence.startswith("m-2 sends at 0.40 of the others' median")
    way = judge(probe(Network(FOUR, bounds={"m-2": share * LINE}, ways={("m-2", "m-3"): 0.4 * share * LINE})))
    assert way.sentence.startswith("m-2 to m-3 is at 0.40 ")
    assert any("compared with that" in note for note in way.notes)


@pytest.mark.parametrize("kind", ["sends", "receives"])
def test_among_machines_that_all_have_a_bound_the_sick_one_is_named(kind: str) -> None:
    alike = dict.fromkeys(FOUR, 0.2 * LINE)
    verdict = judge(probe(Network(FOUR, bounds=alike, **{kind: {"m-3": 0.1 * LINE}})))  # type: ignore[arg-type]
    assert verdict.sentence.startswith(f"m-3 {kind} at 0.50 of the others' median")
    sound = judge(replace(probe(Network(FOUR, bounds=alike)), sizes=sized(0.19 * LINE)))
    assert sound.exit == 0 and "m-0, m-1, m-2, m-3 send no faster than 0.20 Gbit/s in a probe" in sound.sentence


def test_two_halves_with_a_thin_uplink_are_found_beside_a_bound() -> None:
    network = Network(FOUR, half=frozenset(FOUR[:2]), uplink=0.3 * LINE, bounds={"m-0": 0.1 * LINE})
    assert "the uplink between the halves is oversubscribed" in judge(probe(network)).sentence


def test_more_than_a_bound_lets_through_cannot_be_proved_and_is_not_denied() -> None:
    evidence = replace(probe(Network(FOUR, bounds={"m-1": 0.2 * LINE})), sizes=sized(0.19 * LINE))
    assert judge(evidence, Asked(min_bps=0.2 * LINE)).exit == 0
    beyond = judge(evidence, Asked(min_bps=LINE))
    assert (beyond.state, beyond.blamed) == ("unmeasured", ())
    assert beyond.sentence == (
        "m-1 sends no faster than 0.20 Gbit/s in a probe, by its own setting: whether the 1.00 Gbit/s asked for can be "
        "reached could not be measured; up to that bound nothing is wrong"
    )


def test_machines_that_are_all_too_slow_are_below_whatever_the_bound_of_one() -> None:
    evidence = replace(probe(Network(FOUR, line=0.3 * LINE, bounds={"m-1": 0.1 * LINE})), sizes=sized(0.095 * LINE))
    asked = judge(evidence, Asked(min_bps=LINE))
    assert asked.state == "below" and asked.sentence.startswith("0.30 Gbit/s of the 1.00 Gbit/s asked for")
    ports = tuple(Port(name, "10.0.0.1", "eth0", "ixgbe", 1500, LINE, "full") for name in FOUR)
    assert judge(replace(evidence, ports=ports)).state == "below"
    free = replace(probe(Network(FOUR, bounds={"m-1": 0.1 * LINE})), sizes=sized(0.095 * LINE), ports=ports)
    assert judge(free).exit == 0


@given(
    shares=st.dictionaries(st.sampled_from(machines(6)), st.floats(0.01, 3.0)),
    count=st.integers(2, 12),
    noise=st.floats(0, 0.18),
    seed=st.integers(0, 10_000),
)
@settings(max_examples=150, deadline=None)
def test_no_bounds_ever_make_a_network_sick(shares: dict[str, float], count: int, noise: float, seed: int) -> None:
    names = machines(count)
    own = {name: share * LINE for name, share in shares.items() if name in names}
    evidence = probe(Network(names, bounds=own, noise=noise, seed=seed))
    assert judge(evidence).blamed == ()
    assert bounds.levelled(bounds.levelled(evidence)) == bounds.levelled(evidence)
    assert bounds.levelled(replace(evidence, bounds={})) == replace(evidence, bounds={})
