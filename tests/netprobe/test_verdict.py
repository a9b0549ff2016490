"""What the verdict says, and whom it blames."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astra_netprobe.readings import Evidence, Flow, Hop, LargePacket, Port, RdmaFlow, Reach, Sized, Wrong
from astra_netprobe.verdict import Asked, judge
from tests.netprobe.simulated import LINE, Network, machines, probe

MIB = 1 << 20
FOUR = machines(4)
SIZES = (Sized(MIB, 4, "ring", (0.0132,)), Sized(64 * MIB, 4, "ring", (0.84,)))
SOUND = replace(probe(Network(FOUR)), sizes=SIZES)


def test_a_sound_network_is_told_with_its_plateau() -> None:
    verdict = judge(SOUND)
    assert (verdict.state, verdict.exit) == ("sound", 0)
    assert verdict.sentence.startswith("4 machines are sound: 0.96 Gbit/s bus bandwidth at 64 MiB")


def test_what_was_asked_is_the_ports_rate_and_tcp_never_carries_all_of_it() -> None:
    assert judge(SOUND, Asked(min_bps=LINE)).exit == 0
    below = judge(SOUND, Asked(min_bps=10 * LINE))
    assert below.exit == 1 and "0.96 Gbit/s of the 10.00 Gbit/s asked for" in below.sentence


def test_small_sizes_and_no_pairs_are_not_judged() -> None:
    verdict = judge(Evidence(FOUR, sizes=(Sized(4096, 4, "doubling", (4e-5,)),)))
    assert (verdict.state, verdict.exit) == ("unmeasured", 3)
    assert "sizes too small to judge" in verdict.sentence


def test_a_machine_that_never_answered_could_not_be_measured() -> None:
    verdict = judge(replace(SOUND, absent={"m-2": "m-2 does not answer: no agent of that machine is connected"}))
    assert verdict.exit == 3 and verdict.sentence.startswith("m-2 does not answer")


def test_a_machine_that_was_lost_on_the_way_is_named() -> None:
    hops = (Hop("m-1", "m-2", 1.0, 0.0, broken=True),)
    reaches = tuple(Reach(name, "m-2", "no_neighbour") for name in FOUR if name != "m-2")
    verdict = judge(Evidence(FOUR, rings=(hops,), reaches=reaches, absent={"m-2": "m-2 does not answer"}))
    assert verdict.exit == 1 and verdict.blamed == ("m-2",)
    assert verdict.sentence == "m-2 is lost: nobody reaches it any more and it does not answer"


@pytest.mark.parametrize(
    ("outcome", "words"),
    [
        ("refused", "is refused, though m-2 listens: a firewall on the way rejects it"),
        ("silent", "is dropped without a word, though m-2 is up: a firewall"),
        ("rejected", "is rejected on the way"),
        ("no_neighbour", "finds nobody at the address of m-2"),
        ("stranger", "is answered by somebody else"),
    ],
)
def test_a_connection_that_fails_says_how(outcome: str, words: str) -> None:
    reaches = tuple(Reach(name, "m-2", outcome) for name in FOUR if name != "m-2")  # type: ignore[arg-type]
    verdict = judge(replace(SOUND, reaches=reaches))
    assert verdict.sentence.startswith("a connection from 3 of 3 machines to m-2 ") and words in verdict.sentence
    assert verdict.blamed == ("m-2",) and verdict.exit == 1


def test_a_single_pair_that_fails_names_both_ends() -> None:
    verdict = judge(replace(SOUND, reaches=(Reach("m-1", "m-3", "silent"),)))
    assert verdict.sentence.startswith("a connection from m-1 to m-3 is dropped")


def test_of_a_pair_that_fails_in_both_directions_one_has_to_go() -> None:
    reaches = (Reach("m-1", "m-3", "silent"), Reach("m-3", "m-1", "silent"))
    verdict = judge(replace(SOUND, reaches=reaches))
    assert len(verdict.blamed) == 1 and len(verdict.more) == 1


def test_a_machine_that_neither_reaches_nor_is_reached_is_cut_off() -> None:
    pairs = [(one, other) for one in FOUR for other in FOUR if one != other]
    reaches = tuple(Reach(*pair, "silent" if "m-2" in pair else "reached") for pair in pairs)
    verdict = judge(replace(SOUND, reaches=reaches))
    assert verdict.sentence == "m-2 is cut off: nobody reaches it and it reaches nobody, though it is up"
    assert verdict.blamed == ("m-2",) and verdict.more == ()


def test_changed_elements_name_the_link_that_changed_them() -> None:
    verdict = judge(replace(SOUND, wrongs=(Wrong("m-1", "m-2", 3),)))
    assert verdict.sentence == "3 elements from m-1 to m-2 arrived changed; the link between them corrupts data"


@pytest.mark.parametrize("sick", FOUR)
def test_a_machine_whose_link_changes_data_both_ways_is_blamed_alone(sick: str) -> None:
    wrongs = tuple(Wrong(*pair, 1 + i) for i, pair in enumerate(ways_of(sick)))
    assert judge(replace(SOUND, wrongs=wrongs)).blamed == (sick,)
    assert judge(replace(SOUND, wrongs=wrongs[:3])).blamed == (sick,)


@pytest.mark.parametrize("sick", FOUR)
def test_a_machine_behind_a_black_hole_is_blamed_alone(sick: str) -> None:
    holes = tuple(LargePacket(*pair, 9000, small_arrived=True, large_arrived=False) for pair in ways_of(sick))
    assert judge(replace(SOUND, packets=holes)).blamed == (sick,)


@pytest.mark.parametrize("sick", FOUR)
def test_a_machine_that_was_measured_with_one_partner_is_blamed_and_its_partner_is_not(sick: str) -> None:
    """The time was over before it met the others."""
    partner, third = [name for name in FOUR if name != sick][:2]
    slow = tuple(Flow(*pair, 0.02 * LINE) for pair in ((sick, partner), (partner, sick)) for _ in range(3))
    fine = tuple(Flow(*pair, 0.95 * LINE) for pair in ((third, partner), (partner, third)))
    verdict = judge(replace(SOUND, rounds=(slow, fine)))
    assert verdict.blamed == (sick,)
    assert verdict.sentence == (
        f"{sick} sends at 0.02 and receives at 0.02 of the others' median; the link of {sick} is slow in both "
        "directions"
    )


def ways_of(name: str) -> list[tuple[str, str]]:
    """From and to all the others."""
    others = [other for other in FOUR if other != name]
    return [(name, other) for other in others] + [(other, name) for other in others]


def test_a_black_hole_names_its_way_and_a_dead_way_is_none() -> None:
    hole = LargePacket("m-0", "m-1", 9000, small_arrived=True, large_arrived=False)
    assert "packets of 9000 bytes from m-0 to m-1 vanish" in judge(replace(SOUND, packets=(hole,))).sentence
    assert judge(replace(SOUND, packets=(replace(hole, small_arrived=False),))).exit == 0


def test_ports_that_differ_are_told_and_half_duplex_is_sick() -> None:
    ports = tuple(Port(name, "10.0.0.1", "eth0", "ixgbe", 9000, 1e9, "full") for name in FOUR)
    odd = (*ports[:3], replace(ports[3], mtu=1500))
    assert judge(replace(SOUND, ports=odd)).notes == ("the MTU of ports differs: m-3 1500, the others 9000",)
    half = (*ports[:3], replace(ports[3], duplex="half"))
    assert judge(replace(SOUND, ports=half)).sentence.startswith("m-3's port eth0 is in half duplex")


def slow_port(*speeds: float, driver: str = "ixgbe") -> tuple[Port, ...]:
    return tuple(Port(f"m-{i}", "10.0.0.1", "eth0", driver, 1500, speed) for i, speed in enumerate(speeds))


@pytest.mark.parametrize(
    ("ports", "notes"),
    [
        (slow_port(1e9, 1e9, 1e9, 1e9), ()),
        (
            slow_port(1e9, 1e9, 1e9, 1e8),
            ("m-3's port eth0 runs at 0.1 Gbit/s, the others' at 1: check the cable and the switch",),
        ),
        (slow_port(1e9, 0.0, 0.0, 1e8), ("m-3's port eth0 runs at 0.1 Gbit/s, the other's at 1: check the cable and "
                                         "the switch",)),
        (slow_port(1e9, 1e9, 1e9, 1e10), ()),
        (slow_port(1e9, 1e9, 1e9, 1e8, driver="veth"), ()),
        (slow_port(1e9, 1e9, 1e9, 0.0), ()),
    ],
)  # fmt: skip
def test_a_port_that_negotiated_less_than_its_peers_is_a_note(ports: tuple[Port, ...], notes: tuple[str, ...]) -> None:
    assert judge(replace(SOUND, ports=ports, cpu_bound=())).notes == notes


def test_a_port_that_negotiated_less_and_is_slow_is_a_finding() -> None:
    slow = {"m-3": 0.1 * LINE}
    evidence = probe(Network(FOUR, sends=slow, receives=slow))
    verdict = judge(replace(evidence, ports=slow_port(1e9, 1e9, 1e9, 1e8)))
    assert verdict.sentence.startswith("m-3 sends at 0.10") and verdict.blamed == ("m-3",)
    assert verdict.more == ("m-3's port eth0 runs at 0.1 Gbit/s, the others' at 1: check the cable and the switch",)
    assert verdict.notes == ()


@pytest.mark.parametrize(
    ("fault", "note"),
    [
        ({"sends": {"m-3": 0.2 * LINE}}, "of what m-3 sent 12 packets had to be sent again"),
        ({"receives": {"m-3": 0.2 * LINE}}, "of what was sent to m-3 12 packets had to be sent again"),
        ({"ways": {("m-1", "m-2"): 0.2 * LINE}}, "of what m-1 sent to m-2 6 packets had to be sent again"),
    ],
)
def test_what_tcp_had_to_send_again_where_it_is_slow_is_told(fault: dict[str, object], note: str) -> None:
    """Two for each measurement of a pair; those that are sound have as many, which is nobody's business."""
    evidence = probe(Network(FOUR, **fault))  # type: ignore[arg-type]
    lossy = tuple(tuple(replace(flow, retransmits=2) for flow in flows) for flows in evidence.rounds)
    assert judge(replace(evidence, rounds=lossy)).notes == (note,)
    assert judge(evidence).notes == ()


def test_errors_that_a_port_counted_are_told() -> None:
    ports = (*slow_port(1e9, 1e9, 1e9), Port("m-3", "10.0.0.4", "eth0", "veth", errors=7))
    assert judge(replace(SOUND, ports=ports)).notes == ("m-3's port eth0 counted 7 errors and drops during the probe",)


def test_a_virtual_ports_speed_is_no_line_rate() -> None:
    ports = tuple(Port(name, "10.0.0.1", "eth0", "veth", 1500, 100e9) for name in FOUR)
    assert judge(replace(SOUND, ports=ports)).exit == 0
    real = tuple(replace(port, driver="mlx5_core") for port in ports)
    assert judge(replace(SOUND, ports=real)).exit == 1
    assert judge(replace(SOUND, ports=real, cpu_bound=FOUR)).exit == 0


def rdma(rate: float, reason: str = "") -> tuple[RdmaFlow, ...]:
    return tuple(RdmaFlow(one, other, "mlx5_0", "mlx5_0", rate, 100e9, reason) for one, other in ways_of("m-0"))


SLOW_RING = replace(SOUND, rounds=())
HALF = tuple(Flow(*pair, 0.4 * LINE) for pair in (("m-0", "m-1"), ("m-1", "m-0"), ("m-2", "m-3"), ("m-3", "m-2")))


@pytest.mark.parametrize(
    ("evidence", "asked", "state", "words"),
    [
        (SOUND, Asked(100 * LINE), "below", "0.96 Gbit/s of the 100.00 Gbit/s asked for; all 4 machines are equally"),
        (replace(SOUND, rdma=rdma(97e9)), Asked(100 * LINE), "sound", "RDMA 97.00 Gbit/s from port to port"),
        (replace(SOUND, rdma=rdma(97e9), cpu_bound=FOUR), Asked(100 * LINE), "sound", "RDMA 97.00 Gbit/s"),
        (replace(SOUND, rdma=rdma(97e9)), Asked(200 * LINE), "below", "RDMA reaches 97.00 Gbit/s of the 200.00 Gbit/s"),
        (replace(SOUND, rdma=rdma(97e9)), Asked(LINE), "sound", "4 machines are sound"),
        (replace(SOUND, rdma=rdma(89e9)), Asked(), "below", "RDMA reaches 89.0 of the ports' 100 Gbit/s"),
        (replace(SOUND, cpu_bound=FOUR), Asked(100 * LINE), "unmeasured", "the processors are the limit, not the net"),
        (replace(SOUND, cpu_bound=FOUR), Asked(LINE), "sound", "4 machines are sound"),
        (replace(SOUND, cpu_bound=FOUR[:3]), Asked(10 * LINE), "unmeasured", "could not be measured"),
        (replace(SOUND, cpu_bound=FOUR[:1]), Asked(10 * LINE), "below", "1.00 Gbit/s of the 10.00 Gbit/s asked for"),
        (replace(SLOW_RING, cpu_bound=FOUR[:1]), Asked(10 * LINE), "unmeasured", "the processors are the limit"),
        (replace(SLOW_RING, sizes=(), rounds=(HALF,), cpu_bound=FOUR[:2]), Asked(LINE), "below", "0.40 Gbit/s of the"),
        (SOUND, Asked.of(400, "infiniband"), "unmeasured", "of the 400.00 Gbit/s asked for, which is of RDMA ports"),
        (SOUND, Asked.of(1, "rdma"), "sound", "4 machines are sound"),
        (SOUND, Asked.of(400, "ethernet"), "below", "0.96 Gbit/s of the 400.00 Gbit/s asked for"),
        (replace(SOUND, rdma=rdma(390e9)), Asked.of(400, "infiniband"), "sound", "RDMA 390.00 Gbit/s"),
    ],
)  # fmt: skip
def test_what_was_asked_is_judged_by_what_could_show_it(
    evidence: Evidence, asked: Asked, state: str, words: str
) -> None:
    verdict = judge(evidence, asked)
    assert (verdict.state, verdict.exit) == (state, {"sound": 0, "below": 1, "unmeasured": 3}[state])
    assert words in verdict.sentence and verdict.blamed == ()


def test_a_machine_without_processor_time_is_not_blamed_on_its_network() -> None:
    evidence = probe(Network(FOUR, sends={"m-3": 0.2 * LINE}))
    assert judge(evidence).blamed == ("m-3",)
    verdict = judge(replace(evidence, cpu_bound=("m-3",)))
    assert verdict.exit == 0 and "CPU-bound" in verdict.notes[0]


def test_two_machines_are_judged_by_each_other() -> None:
    evidence = probe(Network(machines(2), ways={("m-0", "m-1"): 0.25 * LINE}))
    assert judge(evidence).sentence == (
        "m-0 to m-1 is at 0.25 of the other direction; the link of m-0 or m-1 is slow in one direction"
    )


@given(seed=st.integers(0, 10_000), count=st.integers(2, 12), noise=st.floats(0, 0.35))
@settings(max_examples=150, deadline=None)
def test_noise_alone_never_makes_a_network_sick(seed: int, count: int, noise: float) -> None:
    assert judge(probe(Network(machines(count), noise=noise, seed=seed))).state in ("sound", "unmeasured")


@given(
    rates=st.lists(st.floats(0, 1e12), min_size=12, max_size=12),
    broken=st.integers(0, 12),
)
def test_any_rates_get_a_verdict(rates: list[float], broken: int) -> None:
    pairs = [(one, other) for one in FOUR for other in FOUR if one != other]
    flows = tuple(
        Flow(*pair, rate, broken=i == broken) for i, (pair, rate) in enumerate(zip(pairs, rates, strict=True))
    )
    assert judge(Evidence(FOUR, rounds=(flows,))).sentence
