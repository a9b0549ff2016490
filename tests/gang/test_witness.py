"""The third machine that makes a run of two comparable: which one, and what its own faults do to the verdict."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from astra_agent.wire import MachineFacts
from astra_gang import witness
from astra_netprobe.readings import LargePacket, Reach
from astra_netprobe.verdict import Asked
from tests.gang.cluster import machine
from tests.netprobe.simulated import LINE, Network, machines, probe

THREE = machines(3)
ONE, OTHER, THIRD = THREE


def facts(name: str, **domains: Any) -> MachineFacts:
    return machine(name, **domains).facts


def test_the_witness_is_an_idle_machine_as_near_as_there_is() -> None:
    run = [facts("a", infiniband="ib-1", ethernet="lan"), facts("b", infiniband="ib-1", ethernet="lan")]
    idle = [facts("c"), facts("d", ethernet="lan"), facts("e", infiniband="ib-1", ethernet="lan"), facts("f")]
    chosen = witness.choose(run, idle)
    assert chosen is not None and chosen.name == "e"


def test_without_an_idle_machine_or_with_three_of_its_own_a_run_has_none() -> None:
    two, out = [facts("a"), facts("b")], facts("c").model_copy(update={"out_of_use": "its disk is full"})
    assert witness.choose(two, [*two, out]) is None
    assert witness.choose([*two, facts("c")], [facts("d")]) is None


@pytest.mark.parametrize("sick", [ONE, OTHER])
def test_a_machine_of_the_run_that_is_slow_both_ways_is_blamed(sick: str) -> None:
    slow = {sick: 0.02 * LINE}
    found = witness.verdict(probe(Network(THREE, noise=0.05, sends=slow, receives=slow)), THIRD)
    assert (found.state, found.blamed) == ("sick", (sick,))


def test_what_is_wrong_with_the_witness_is_not_told() -> None:
    slow = {THIRD: 0.02 * LINE}
    found = witness.verdict(probe(Network(THREE, noise=0.05, sends=slow, receives=slow)), THIRD)
    assert (found.state, found.blamed) == ("sound", ())
    assert found.sentence.startswith("2 machines are sound: ")


def test_a_sound_network_is_told_of_the_run_s_own_machines() -> None:
    found = witness.verdict(probe(Network(THREE, noise=0.05)), THIRD)
    assert found.sentence.startswith("2 machines are sound: ")


@pytest.mark.parametrize("third", [THIRD, None])
def test_what_the_run_asks_for_is_asked_of_its_machines(third: str | None) -> None:
    evidence = probe(Network(THREE))
    assert witness.verdict(evidence, third, Asked(min_bps=LINE)).state == "sound"
    found = witness.verdict(evidence, third, Asked(min_bps=10 * LINE))
    assert (found.state, found.blamed) == ("below", ())


def test_a_witness_that_takes_no_part_leaves_the_two_alone_and_a_machine_of_the_run_does_not() -> None:
    evidence = replace(probe(Network(THREE)), absent={THIRD: f"{THIRD} does not answer"})
    assert witness.verdict(evidence, THIRD).state == "sound"
    evidence = replace(probe(Network(THREE)), absent={ONE: f"{ONE} does not answer"})
    assert witness.verdict(evidence, THIRD).state == "unmeasured"


def test_a_way_to_the_witness_that_is_closed_is_not_the_run_s_business() -> None:
    closed = (Reach(THIRD, ONE, "silent"), Reach(ONE, THIRD, "silent"))
    holes = (LargePacket(ONE, THIRD, 9000, small_arrived=True, large_arrived=False),)
    found = witness.verdict(replace(probe(Network(THREE)), reaches=closed, packets=holes), THIRD)
    assert (found.state, found.blamed) == ("sound", ())


def test_evidence_of_the_others_alone_names_nobody_else() -> None:
    evidence = probe(Network(THREE)).without(THIRD)
    assert evidence.machines == (ONE, OTHER)
    assert {end for flow in evidence.flows for end in (flow.sender, flow.receiver)} == {ONE, OTHER}
    assert THIRD not in repr(evidence)
