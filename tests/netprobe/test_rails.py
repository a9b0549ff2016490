"""The judgement on several ports of each machine, from evidence of each by itself and of all at once."""

from __future__ import annotations

from astra_netprobe import rails
from astra_netprobe.rails import Rails
from astra_netprobe.readings import Evidence
from tests.netprobe.simulated import LINE, Network, machines, probe


def evidence(line: float = LINE, slow: str = "") -> Evidence:
    return probe(Network(machines(4), line=line, sends={slow: 0.2 * line} if slow else {}))


def test_the_port_with_the_sick_machine_goes_first_and_the_others_are_told() -> None:
    found = rails.judge_all(Rails({"eth0": evidence(), "eth1": evidence(slow="m-2")}, {}))
    assert found.state == "sick" and found.blamed == ("m-2",)
    assert found.sentence.startswith("eth1: m-2 sends at 0.2")
    assert found.more[0].startswith("eth0: 4 machines are sound")


def test_ports_that_are_sound_say_what_they_reach_at_once() -> None:
    both = {"eth0": evidence(), "eth1": evidence()}
    found = rails.judge_all(Rails(both, both))
    assert found.exit == 0 and found.notes == ("all 2 ports at once reach 2.00 Gbit/s",)


def test_a_limit_that_ports_share_is_a_note_and_blames_nobody() -> None:
    together = {device: evidence(line=LINE / 2) for device in ("eth0", "eth1")}
    found = rails.judge_all(Rails({"eth0": evidence(), "eth1": evidence()}, together))
    assert found.exit == 0 and found.blamed == ()
    assert found.notes == (
        "all 2 ports at once reach 1.00 Gbit/s, 0.50 of what they reach by themselves: they share a limit",
    )


def test_a_port_that_is_slower_on_all_machines_alike_is_a_note() -> None:
    found = rails.judge_all(Rails({"a": evidence(), "b": evidence(), "c": evidence(line=LINE / 10)}, {}))
    assert found.exit == 0
    assert found.notes == ("c reaches 0.10 Gbit/s on all machines, the ports' median 1.00 Gbit/s",)
