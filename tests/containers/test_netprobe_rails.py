"""Machines with two ports on two switches: each port by itself and both at once; the port that is bad is named."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from astra_netprobe import channel, rail_rounds, rails
from astra_netprobe.channel import Endpoint, ProcessChannel
from astra_netprobe.settings import MIB, Settings
from tests.containers.shaped import Lab
from tests.levels import SBIN

QUICK = Settings(
    small_sizes=(8,), large_sizes=(MIB, 4 * MIB, 8 * MIB), pair_s=0.3, budget_s=30, small_iterations=10, trips=10
)
DEVICES = ("eth0", "eth1")

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(shutil.which("tc", path=SBIN) is None, reason="needs tc: run scripts/setup test"),
]


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    """The second port of each machine is on the second switch."""
    built = Lab(tmp_path, 3, rate="500mbit")
    try:
        built.build()
        for i, name in enumerate(built.names):
            built.ip("switch", f"link add q{i} type veth peer name w{i}")
            built.ip("switch", f"link set w{i} netns {built.netns(name)} name eth1", f"link set q{i} master br1 up")
            built.ip(name, f"address add 10.94.0.{i + 1}/24 dev eth1", "link set eth1 up")
            built.shape(name, "eth1", "500mbit")
            built.shape("switch", f"q{i}", "500mbit")
        yield built
    finally:
        built.remove()


@asynccontextmanager
async def both(lab: Lab) -> AsyncIterator[dict[str, list[Endpoint]]]:
    """A member on each machine for each port."""
    opened: list[ProcessChannel] = []
    try:
        found: dict[str, list[Endpoint]] = {device: [] for device in DEVICES}
        for device in DEVICES:
            for name in lab.names:
                opened.append(await channel.start(lab.netns(name)))
                found[device].append(Endpoint(name, lab.address(name), opened[-1]))
        yield found
    finally:
        await asyncio.gather(*(way.close() for way in opened))


async def test_sound_ports_are_measured_each_by_itself_and_both_at_once(lab: Lab) -> None:
    async with both(lab) as endpoints:
        found = await rail_rounds.probe(endpoints, QUICK)
    assert {port.device for port in found.alone["eth0"].ports} == {"eth0"}
    assert {port.address for port in found.alone["eth1"].ports} == {f"10.94.0.{i}" for i in (1, 2, 3)}
    verdict = rails.judge_all(found)
    assert verdict.exit == 0, verdict
    assert verdict.sentence.startswith("eth0: 3 machines are sound") and verdict.more[0].startswith("eth1: 3 machines")
    assert list(found.together) == list(DEVICES)
    assert any("2 ports at once reach" in note for note in verdict.notes)


async def test_the_bad_port_of_a_machine_is_named_and_the_others_are_sound(lab: Lab) -> None:
    lab.shape("m-1", "eth1", "100mbit")
    async with both(lab) as endpoints:
        verdict = rails.judge_all(await rail_rounds.probe(endpoints, QUICK))
    assert verdict.state == "sick" and verdict.blamed == ("m-1",), verdict
    assert verdict.sentence.startswith("eth1: m-1 sends at 0.")
    assert any(sentence.startswith("eth0: 3 machines are sound") for sentence in verdict.more)


async def test_a_port_that_a_machine_does_not_have_is_said(lab: Lab) -> None:
    async with both(lab) as endpoints:
        found = await rail_rounds.probe({"ib7": endpoints["eth0"]}, QUICK)
    verdict = rails.judge_all(found)
    assert verdict.exit == 3
    assert verdict.sentence.startswith("ib7: m-")
    assert verdict.sentence.endswith(": there is no port ib7 with an IPv4 address here: there are lo, eth0, eth1")
