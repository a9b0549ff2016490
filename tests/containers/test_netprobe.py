"""
The probe between machines that are network namespaces with shaped links: what is wrong is named, and what is sound is
never called sick. `ASTRA_NETPROBE_REPEAT=20` repeats every case; a few are enough to see that it works.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from astra_netprobe import tables, verdict
from astra_netprobe.conductor import Conductor
from astra_netprobe.readings import Evidence
from astra_netprobe.settings import MIB, Settings
from tests.containers import flipping
from tests.containers.shaped import Lab, members
from tests.levels import SBIN

REPEAT = int(os.environ.get("ASTRA_NETPROBE_REPEAT", "1"))
LONG_S = 60 + 40 * REPEAT
QUICK = Settings(large_sizes=(MIB, 4 * MIB, 16 * MIB), pair_s=0.3, budget_s=12, small_iterations=20, trips=50)
LOSS_S = 10
RELAY_PORT, FLIP_AT = 9000, 100_000

pytestmark = [
    pytest.mark.timeout(LONG_S),
    pytest.mark.skipif(shutil.which("nft", path=SBIN) is None, reason="needs nftables: run scripts/setup test"),
]


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    built = Lab(tmp_path, 4)
    try:
        built.build()
        yield built
    finally:
        built.remove()


async def probe(lab: Lab, settings: Settings = QUICK) -> verdict.Verdict:
    async with members(lab) as endpoints:
        return verdict.judge(await Conductor(endpoints, settings).run())


async def repeated(
    lab: Lab,
    fits: Callable[[verdict.Verdict, Evidence], bool],
    *,
    times: int = REPEAT,
    watch: Callable[[Evidence], None] | None = None,
    mend: Callable[[], None] = lambda: None,
) -> None:
    """In the same processes; all misses are told, each with its evidence, since one alone says little of noise."""
    misses = []
    async with members(lab) as endpoints:
        for i in range(times):
            evidence = await Conductor(endpoints, QUICK, watch).run()
            found = verdict.judge(evidence)
            if not fits(found, evidence):
                misses.append(f"number {i + 1}, load {os.getloadavg()[0]:.0f}: {found}\n{evidence}")
            mend()
    assert not misses, f"{len(misses)} of {times} missed\n" + "\n".join(misses)


def named(sentence: str) -> Callable[[verdict.Verdict, Evidence], bool]:
    """Sick, in a sentence that begins and ends as *sentence* does before and after its `@`."""
    begin, _, end = sentence.partition("@")

    def fits(found: verdict.Verdict, evidence: Evidence) -> bool:
        return found.state == "sick" and found.sentence.startswith(begin) and found.sentence.endswith(end)

    return fits


async def test_a_healthy_network_is_sound_and_every_element_is_right(lab: Lab) -> None:
    def fits(found: verdict.Verdict, evidence: Evidence) -> bool:
        is_right = {sized.wrong for sized in evidence.sizes} == {0} and "OK" in tables.render(evidence.sizes)
        return is_right and (found.state, found.exit, found.blamed) == ("sound", 0, ())

    await repeated(lab, fits, times=max(1, REPEAT * 5 // 2))


def slow_m_1(lab: Lab) -> None:
    lab.slow_sender("m-1", "200mbit")
    lab.slow_receiver("m-1", "200mbit")


FAULTS: dict[str, tuple[Callable[[Lab], None], str]] = {
    "sends slowly": (
        lambda lab: lab.slow_sender("m-3", "200mbit"),
        "m-3 sends at 0.@of the others' median; the link of m-3 is slow in one direction",
    ),
    "receives slowly": (
        lambda lab: lab.slow_receiver("m-3", "200mbit"),
        "m-3 receives at 0.@of the others' median; the link of m-3 is slow in one direction",
    ),
    "one slow machine": (
        slow_m_1,
        "m-1 sends at 0.@of the others' median; the link of m-1 is slow in both directions",
    ),
    "a slow way": (
        lambda lab: lab.slow_way("m-1", "m-2", "200mbit"),
        "m-1 to m-2 is at 0.@the way from m-1 to m-2 is slow",
    ),
    "a firewall that refuses": (
        lambda lab: lab.firewall("m-2", "tcp flags syn / syn,ack reject with tcp reset"),
        "a connection from 3 of 3 machines to m-2 is refused, though m-2 listens@a firewall on the way rejects it",
    ),
    "a firewall that says no": (
        lambda lab: lab.firewall("m-2", "tcp flags syn / syn,ack reject with icmp type admin-prohibited"),
        "a connection from 3 of 3 machines to m-2 is rejected on the way@",
    ),
    "a firewall that is silent": (
        lambda lab: lab.firewall("m-2", "tcp flags syn / syn,ack drop"),
        "a connection from 3 of 3 machines to m-2 is dropped without a word, though m-2 is up: a firewall@",
    ),
    "a black hole for large packets": (
        lambda lab: lab.firewall("m-2", "meta length > 1400 drop"),
        "packets of 1500 bytes from m-0 to m-2 vanish while small ones arrive: an MTU black hole@",
    ),
    "a cable that is out": (
        lambda lab: lab.cut("m-2"),
        "m-2 is cut off: nobody reaches it and it reaches nobody@",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_what_is_wrong_is_named(lab: Lab, fault: str) -> None:
    break_it, sentence = FAULTS[fault]
    break_it(lab)
    await repeated(lab, named(sentence))


async def test_a_machine_that_is_bounded_by_its_own_setting_is_not_blamed_and_hides_nobody(lab: Lab) -> None:
    async with members(lab, bounds={"m-1": 200e6}) as endpoints:
        sound = verdict.judge(await Conductor(endpoints, QUICK).run())
        assert (sound.state, sound.blamed) == ("sound", ()), sound
        assert sound.sentence.endswith(
            "m-1 sends no faster than 0.20 Gbit/s in a probe, by its own setting, and was measured only up to that"
        )
        lab.slow_sender("m-3", "300mbit")
        sick = verdict.judge(await Conductor(endpoints, QUICK).run())
        assert (sick.state, sick.blamed) == ("sick", ("m-3",)), sick
        assert sick.sentence.startswith("m-3 sends at 0.")


async def test_a_thin_uplink_between_two_halves_is_named(tmp_path: Path) -> None:
    lab = Lab(tmp_path, 4, halves=True, uplink="200mbit")
    try:
        lab.build()
        await repeated(
            lab, named("between m-0, m-1 and m-2, m-3 pairs reach@the uplink between the halves is oversubscribed")
        )
    finally:
        lab.remove()


async def test_a_flipped_bit_names_the_link_that_flipped_it(lab: Lab) -> None:
    relay = subprocess.Popen(  # noqa: ASYNC220 -- it starts at once
        ["nsenter", f"--net={lab.netns('m-1')}", sys.executable, "-m", "tests.containers.flipping", str(RELAY_PORT),
         str(FLIP_AT)],
        stdout=subprocess.PIPE, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    try:
        assert relay.stdout is not None and relay.stdout.readline() == b"ready\n"
        lab.redirect("m-1", "m-2", RELAY_PORT, mark=flipping.MARK)

        def fits(found: verdict.Verdict, evidence: Evidence) -> bool:
            ways = {(wrong.sender, wrong.receiver) for wrong in evidence.wrongs}
            return ways == {("m-1", "m-2")} and found.exit == 1 and "from m-1 to m-2 arrived changed" in found.sentence

        await repeated(lab, fits)
    finally:
        relay.kill()
        relay.communicate()


@pytest.mark.parametrize("after", ["sizes", "rings"])
async def test_a_machine_that_is_lost_in_the_middle_ends_the_probe_with_what_it_has(lab: Lab, after: str) -> None:
    lost_at: list[float] = []

    def watch(evidence: Evidence) -> None:
        if not lost_at and len(getattr(evidence, after)) >= 1:
            lab.cut("m-2")
            lost_at.append(time.monotonic())

    def fits(found: verdict.Verdict, evidence: Evidence) -> bool:
        in_time = bool(lost_at) and time.monotonic() - lost_at[0] < LOSS_S
        names_it = found.exit == 1 and found.blamed == ("m-2",) and found.sentence.startswith("m-2 is cut off")
        return in_time and bool(evidence.sizes) and names_it

    def mend() -> None:
        lab.mend("m-2")
        lost_at.clear()

    await repeated(lab, fits, watch=watch, mend=mend)
    assert sockets(lab, lab.names) == []


@pytest.mark.parametrize("after", ["sizes", "rings"])
async def test_a_machine_that_loses_its_power_in_the_middle_is_named_and_the_others_are_left_clean(
    lab: Lab, after: str
) -> None:
    """Neither its network nor its part of the probe answers any more; nothing of it says that it ended."""
    lost_at: list[float] = []
    async with members(lab) as endpoints:
        processes = [endpoint.channel._process for endpoint in endpoints]  # type: ignore[attr-defined]

        def watch(evidence: Evidence) -> None:
            if not lost_at and len(getattr(evidence, after)) >= 1:
                lab.cut("m-2")
                processes[2].send_signal(signal.SIGSTOP)
                lost_at.append(time.monotonic())

        found = verdict.judge(await Conductor(endpoints, QUICK, watch).run())
    assert lost_at and time.monotonic() - lost_at[0] < LOSS_S
    assert found.exit in (1, 3) and found.blamed == ("m-2",) and found.sentence.startswith("m-2 "), found
    assert [process.returncode for process in processes] == [0, 0, -signal.SIGKILL, 0]
    assert sockets(lab, [name for name in lab.names if name != "m-2"]) == []


async def test_a_machine_whose_probe_is_killed_in_the_middle_is_named(lab: Lab) -> None:
    async with members(lab) as endpoints:
        killed: list[bool] = []

        def watch(evidence: Evidence) -> None:
            if evidence.rings and not killed:
                endpoints[2].channel._process.kill()  # type: ignore[attr-defined]
                killed.append(True)

        found = verdict.judge(await Conductor(endpoints, QUICK, watch).run())
        assert killed and found.blamed == ("m-2",) and found.exit in (1, 3)


async def test_all_machines_equally_slow_are_below_what_was_asked(tmp_path: Path) -> None:
    lab = Lab(tmp_path, 3, rate="100mbit")
    try:
        lab.build()
        async with members(lab) as endpoints:
            evidence = await Conductor(endpoints, replace(QUICK, large_sizes=(MIB, 4 * MIB))).run()
        assert verdict.judge(evidence).exit == 0
        below = verdict.judge(evidence, verdict.Asked(min_bps=1e9))
        assert below.state == "below" and "all 3 machines are equally slow" in below.sentence
    finally:
        lab.remove()


async def test_a_probe_leaves_no_process_and_no_socket(lab: Lab) -> None:
    await probe(lab, replace(QUICK, large_sizes=(MIB, 2 * MIB), budget_s=3))
    assert sockets(lab, lab.names) == []


def sockets(lab: Lab, names: Sequence[str]) -> list[str]:
    """What is open on these machines, but for the kernel's memory of what was closed."""
    lines: list[str] = []
    for name in names:
        listing = subprocess.run(
            ["nsenter", f"--net={lab.netns(name)}", "ss", "-Htuan", "state", "connected", "state", "listening"],
            capture_output=True, text=True, timeout=20, check=True,
        ).stdout  # fmt: skip
        lines += [f"{name} {line}" for line in listing.splitlines() if "TIME-WAIT" not in line]
    return lines
