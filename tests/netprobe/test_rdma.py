"""
RDMA: perftest's output in the forms that its versions write, this machine's ports, the process with its bound, and
rounds among machines whose `ib_write_bw` is a stand-in that calls and is called as the real one.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astra_netprobe import perftest, rdma, rdma_lines, rdma_verdict, verdict
from astra_netprobe.channel import Endpoint
from astra_netprobe.company import Company
from astra_netprobe.conductor import Conductor
from astra_netprobe.member import Member
from astra_netprobe.messages import Answer, Question, RdmaDone, RdmaPort, RdmaWrites, RdmaWritesDone
from astra_netprobe.rdma_rounds import RdmaRounds
from astra_netprobe.readings import Evidence, RdmaFlow
from astra_netprobe.settings import MIB, Settings

HEAD = """\
---------------------------------------------------------------------------------------
                    RDMA_Write BW Test
 Dual-port       : OFF\t\tDevice         : mlx5_2
 Number of qps   : 2\t\tTransport type : IB
 Connection type : RC\t\tUsing SRQ      : OFF
 PCIe relax order: ON
 ibv_wr* API     : ON
 TX depth        : 128
 CQ Moderation   : 100
 Mtu             : 4096[B]
 Link type       : Ethernet
 GID index       : 3
 Max inline data : 0[B]
 rdma_cm QPs\t : OFF
 Data ex. method : Ethernet
---------------------------------------------------------------------------------------
 local address: LID 0000 QPN 0x0127 PSN 0x6b1e5a RKey 0x1ff2bd VAddr 0x007f2b6a2e0000
 GID: 00:00:00:00:00:00:00:00:00:00:255:255:10:00:00:01
 remote address: LID 0000 QPN 0x0129 PSN 0x4c1e5a RKey 0x1ff2be VAddr 0x007f2b6a2e0000
 GID: 00:00:00:00:00:00:00:00:00:00:255:255:10:00:00:02
---------------------------------------------------------------------------------------
"""
GBIT = """\
 #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]
 65536      1128672          0.00               197.24 \t\t     0.376205
---------------------------------------------------------------------------------------
"""
MEGABYTES = """\
 #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]
 65536      5000             11012.33            11000.00 \t\t   0.176000
"""
STARS = "************************************"
SERVER = f"\n{STARS}\n* Waiting for client to connect... *\n{STARS}\n"
QUICK = Settings(small_sizes=(8,), large_sizes=(MIB,), budget_s=8, pair_s=0.1, small_iterations=2, trips=2)

STAND_IN = """\
import os, socket, sys, time
words = sys.argv[1:]
device, listen = words[words.index("-d") + 1], int(words[words.index("-p") + 1])
busy = os.path.join(os.path.dirname(__file__), "sends-" + device)
if words[-2] == "-p":
    with socket.create_server(("", listen)) as server:
        server.settimeout(20)
        caller, _ = server.accept()
        with caller:
            caller.sendall(device.encode().ljust(32))
            caller.recv(1)
else:
    try:
        caller = socket.create_connection((words[-1], listen), 5)
    except OSError:
        sys.exit("Couldn't connect to " + words[-1] + ":" + str(listen))
    with caller:
        other = caller.recv(32).decode().strip()
    rate = 40.0 if device.startswith("slow_") else 197.0
    if device.startswith("half_"):
        open(busy, "w").close()
        time.sleep(1.0)
        if sum(name.startswith("sends-half_") for name in os.listdir(os.path.dirname(__file__))) > 1:
            rate = 100.0
        time.sleep(0.5)
        os.remove(busy)
    print(" Mtu             : 4096[B]\\n Link type       : IB\\n Device         : " + device)
    print(" #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]")
    print(" 65536      1000             0.00               %.2f             0.37" % rate)
"""


# What it writes ------------------------------------------------------------------------------------------------------


def test_the_average_of_a_run_by_time_is_read_with_what_carried_it() -> None:
    found = perftest.read(HEAD + GBIT)
    assert found == perftest.Written(197.24e9, "mlx5_2", "Ethernet", 4096)


def test_megabytes_are_binary_as_the_tool_counts_them() -> None:
    assert perftest.read(SERVER + HEAD + MEGABYTES).rate_bps == 11000.0 * 8 * 1048576


@pytest.mark.parametrize(
    ("text", "reason", "too_early"),
    [
        ("Couldn't connect to 10.0.0.2:18515\n Unable to open a socket\n", "Couldn't connect to 10.0.0.2:18515", True),
        (" IB device mlx5_9 not found\n Unable to find the device\n", "IB device mlx5_9 not found", False),
        (SERVER + " Port number 1 state is Down\n Couldn't set the link layer\n", "Port number 1 state is Down", False),
        (HEAD + "Couldn't allocate MR\n", "Couldn't allocate MR", False),
        (HEAD + " Failed status 12: wr_id 0 syndrom 0x81\n", "Failed status 12: wr_id 0 syndrom 0x81", False),
        (HEAD, "it wrote no result", False),
        ("", "it wrote no result", False),
    ],
)
def test_what_went_wrong_is_told_in_the_tools_words(text: str, reason: str, too_early: bool) -> None:
    found = perftest.read(text)
    assert (found.rate_bps, found.reason, found.too_early) == (0.0, reason, too_early)


def test_a_row_that_is_no_number_is_no_result() -> None:
    assert perftest.read(HEAD + GBIT.replace("197.24", "-nan")).reason == "it wrote no result"


@given(st.text())
def test_any_text_is_read_without_an_error(text: str) -> None:
    perftest.read(text)
    perftest.read(HEAD + GBIT + text)


def test_the_side_that_is_called_and_the_side_that_sends() -> None:
    called = perftest.command("mlx5_0", 1, gid=3, listen=18515, seconds=1.0)
    assert " ".join(called) == "ib_write_bw -d mlx5_0 -i 1 -x 3 -F --report_gbits -q 2 -D 1 -p 18515"
    assert perftest.command("mlx5_0", 1, gid=None, listen=1, seconds=2.0, to="10.0.0.2")[-1] == "10.0.0.2"


# This machine --------------------------------------------------------------------------------------------------------


def machine(
    root: Path, device: str = "mlx5_0", *, link: str = "InfiniBand", state: str = "4: ACTIVE", netdev: str = ""
) -> Path:
    """A machine's folder with one port; called again, with one more."""
    (root / "dev/infiniband").mkdir(parents=True, exist_ok=True)
    port = root / f"sys/class/infiniband/{device}/ports/1"
    (port / "gids").mkdir(parents=True)
    (port / "gid_attrs/types").mkdir(parents=True)
    (port / "gid_attrs/ndevs").mkdir()
    if netdev:
        (port / "gid_attrs/ndevs/0").write_text(netdev + "\n")
    for name, text in (("state", state), ("rate", "200 Gb/sec (4X HDR)"), ("link_layer", link)):
        (port / name).write_text(text + "\n")
    gids = (
        ("fe80:0000:0000:0000:0e42:a1ff:fe00:0001", "IB/RoCE v1"),
        ("fe80:0000:0000:0000:0e42:a1ff:fe00:0001", "RoCE v2"),
        ("0000:0000:0000:0000:0000:ffff:0a00:0001", "IB/RoCE v1"),
        ("0000:0000:0000:0000:0000:ffff:0a00:0001", "RoCE v2"),
        ("0000:0000:0000:0000:0000:0000:0000:0000", "RoCE v2"),
    )
    for number, (gid, kind) in enumerate(gids):
        (port / "gids" / str(number)).write_text(gid + "\n")
        (port / "gid_attrs/types" / str(number)).write_text(kind + "\n")
    return root


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`ib_write_bw` on the PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "ib_write_bw.py").write_text(STAND_IN)
    program = folder / "ib_write_bw"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -S {folder}/ib_write_bw.py "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def test_ports_are_those_that_are_active_with_the_gid_that_is_routed(tmp_path: Path) -> None:
    assert rdma.ports(machine(tmp_path / "ib")) == (
        RdmaPort(device="mlx5_0", port=1, link_layer="InfiniBand", rate_bps=200e9),
    )
    assert rdma.ports(machine(tmp_path / "roce", link="Ethernet"))[0].gid == 3
    assert rdma.ports(machine(tmp_path / "down", state="1: DOWN")) == ()


def test_what_is_missing_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert rdma.missing(tmp_path) == "there is no /dev/infiniband"
    monkeypatch.setenv("PATH", str(tmp_path))
    assert rdma.missing(machine(tmp_path / "a")) == "ib_write_bw (perftest) is not installed"


@pytest.mark.usefixtures("stand_in")
def test_a_machine_without_an_active_port_says_so(tmp_path: Path) -> None:
    assert rdma.missing(machine(tmp_path / "a", state="1: DOWN")) == "no RDMA port is active"
    assert rdma.missing(machine(tmp_path / "b")) == ""


def test_what_does_not_end_is_killed_with_all_that_it_started(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    written = rdma.run(("sh", "-c", f"sleep 600 & echo $! > {pid}; wait"), 1.0)
    assert written == "sh did not end within 1 s\n"
    until = time.monotonic() + 20
    while Path(f"/proc/{pid.read_text().strip()}/cmdline").exists() and time.monotonic() < until:
        if not Path(f"/proc/{pid.read_text().strip()}/cmdline").read_bytes():
            break  # dead, and not reaped yet
        time.sleep(0.05)
    assert time.monotonic() < until


def test_a_program_that_is_not_there_is_a_sentence() -> None:
    assert rdma.run(("no-such-program",), 1.0) == "no-such-program can't be started: No such file or directory\n"


# Among machines ------------------------------------------------------------------------------------------------------


@dataclass
class Inside:
    """A member in this process: it has another machine's devices."""

    member: Member

    async def ask(self, question: Question, limit_s: float) -> Answer:
        return await asyncio.to_thread(self.member.answer, question)

    async def close(self) -> None:
        self.member.close()


async def probe(roots: Sequence[Path]) -> Evidence:
    endpoints = [Endpoint(f"m-{i}", f"127.0.0.{i + 1}", Inside(Member(root))) for i, root in enumerate(roots)]
    try:
        return await Conductor(endpoints, QUICK).run()
    finally:
        for endpoint in endpoints:
            await endpoint.channel.close()


@pytest.mark.usefixtures("stand_in")
async def test_neighbours_write_to_one_another_and_a_slow_port_is_named(tmp_path: Path) -> None:
    roots = [machine(tmp_path / str(i), "slow_0" if i == 1 else "mlx5_0") for i in range(3)]
    evidence = await probe(roots)
    assert {(flow.sender, flow.receiver) for flow in evidence.rdma} == {
        (f"m-{i}", f"m-{j}") for i in range(3) for j in range(3) if i != j
    }
    assert not any(flow.reason for flow in evidence.rdma), evidence.rdma
    assert {flow.rate for flow in evidence.rdma if flow.sender == "m-1"} == {40e9}
    found = verdict.judge(evidence)
    sentences = (found.sentence, *found.more)
    assert "m-1's RDMA port slow_0 sends at 0.20 of the others' median" in sentences
    assert "m-1" in found.blamed and found.exit == 1


@pytest.mark.usefixtures("stand_in")
async def test_where_one_machine_has_none_it_is_tcp_only_and_says_why(tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    bare.mkdir()
    evidence = await probe([machine(tmp_path / "0"), bare])
    assert evidence.rdma == ()
    told = rdma_verdict.told(evidence.rdma, evidence.no_rdma)
    assert told == "measured over TCP only: there is no /dev/infiniband on m-1"


def machines(root: Path, *devices: Sequence[str]) -> list[Path]:
    """One for each list of the names of its ports."""
    for number, names in enumerate(devices):
        for name in names:
            machine(root / str(number), name)
    return [root / str(number) for number in range(len(devices))]


@pytest.mark.usefixtures("stand_in")
async def test_every_port_of_a_machine_is_measured_and_the_slow_one_is_named(tmp_path: Path) -> None:
    evidence = await probe(machines(tmp_path, ("a_0", "a_1", "a_2"), ("b_0", "b_1", "slow_2"), ("c_0", "c_1", "c_2")))
    assert not any(flow.reason for flow in evidence.rdma), evidence.rdma
    assert {(flow.sending_device, flow.receiving_device) for flow in evidence.rdma} == {
        (one, other)
        for place in (("a_0", "b_0", "c_0"), ("a_1", "b_1", "c_1"), ("a_2", "slow_2", "c_2"))
        for one in place
        for other in place
        if one != other
    }
    found = verdict.judge(evidence)
    sentences = (found.sentence, *found.more)
    assert "m-1's RDMA port slow_2 sends at 0.20 of the others' median" in sentences
    assert sum("RDMA" in sentence for sentence in sentences) == 1 and found.blamed == ("m-1",)


@pytest.mark.usefixtures("stand_in")
async def test_ports_that_share_a_limit_are_measured_by_themselves_and_blame_nobody(tmp_path: Path) -> None:
    evidence = await probe(machines(tmp_path, ("half_0", "half_1"), ("half_0", "half_1")))
    assert {(flow.line, flow.together, flow.rate) for flow in evidence.rdma} == {
        (0, True, 100e9), (1, True, 100e9), (0, False, 197e9), (1, False, 197e9)
    }  # fmt: skip
    assert rdma_verdict.findings(evidence.rdma) == [] and rdma_verdict.below(evidence.rdma) is None
    assert rdma_verdict.told(evidence.rdma, {}) == (
        "measured over TCP, and over RDMA by ib_write_bw; 2 ports of each machine at once; half_0, half_1 reach "
        "0.51 of what they reach by themselves: they share a limit"
    )


@dataclass
class Asked:
    """Answers at once, and keeps what it was asked."""

    writes: list[RdmaWrites]

    async def ask(self, question: Question, limit_s: float) -> Answer:
        assert isinstance(question, RdmaWrites)
        self.writes.append(question)
        return RdmaWritesDone(done=tuple(RdmaDone(rate_bps=195e9) for _ in question.writes))

    async def close(self) -> None:
        pass


async def listens(count: int, rail: int) -> list[int]:
    """Of all that is called in one probe of three machines with so many ports."""
    channels = [Asked([]) for _ in range(3)]
    endpoints = [Endpoint(f"m-{i}", f"10.0.0.{i}", channel) for i, channel in enumerate(channels)]
    company = Company(endpoints, lambda evidence: None)
    ports = tuple(RdmaPort(device=f"mlx5_{i}", rate_bps=200e9) for i in range(count))
    await RdmaRounds(company, dict.fromkeys(company.machines, ports), rail).all_ports()
    assert len(company.evidence.rdma) == 6 * count
    written = [write for channel in channels for asked in channel.writes for write in asked.writes]
    called = [write.listen for write in written if write.to is None]
    assert sorted(called) == sorted(write.listen for write in written if write.to is not None)
    return called


async def test_no_two_measurements_of_ports_or_rails_have_a_listening_port_in_common() -> None:
    eight, one, other = await listens(8, rail=0), await listens(8, rail=1), await listens(1, rail=2)
    assert len({*eight, *one, *other}) == len(eight) + len(one) + len(other) == 6 * 17


def test_ports_of_one_name_belong_together_and_the_one_that_is_out_is_told() -> None:
    all_three = [RdmaPort(device=f"mlx5_{i}") for i in range(3)]
    found, left = rdma_lines.lines({"m-0": all_three, "m-1": [all_three[0], all_three[2]]})
    assert [{name: port.device for name, port in line.ports.items()} for line in found] == [
        {"m-0": "mlx5_0", "m-1": "mlx5_0"}, {"m-0": "mlx5_2", "m-1": "mlx5_2"}
    ]  # fmt: skip
    assert left == {"m-0": "RDMA of m-0's mlx5_1 is not measured: not all machines have such a port"}
    assert rdma_verdict.told(flows(ring(3)), {}, left).endswith("ib_write_bw; " + left["m-0"])


def test_where_names_differ_ports_of_one_place_belong_together() -> None:
    found, left = rdma_lines.lines(
        {"m-0": [RdmaPort(device="a"), RdmaPort(device="a", port=2)], "m-1": [RdmaPort(device="b")]}
    )
    assert [line.ports["m-1"].device for line in found] == ["b"]
    assert left == {"m-0": "RDMA of m-0's a/2 is not measured: not all machines have such a port"}


def test_a_rail_that_is_a_vlan_has_the_gid_of_its_own(tmp_path: Path) -> None:
    root = machine(tmp_path, link="Ethernet", netdev="eth0")
    attributes = root / "sys/class/infiniband/mlx5_0/ports/1"
    (attributes / "gids/5").write_text("0000:0000:0000:0000:0000:ffff:0a01:0001\n")
    (attributes / "gid_attrs/types/5").write_text("RoCE v2\n")
    for number, netdev in ((3, "eth0"), (5, "eth0.100")):
        (attributes / f"gid_attrs/ndevs/{number}").write_text(netdev + "\n")
    assert [rdma.ports(root, netdev)[0].gid for netdev in ("", "eth0", "eth0.100")] == [3, 3, 5]


@pytest.mark.usefixtures("stand_in")
def test_a_rail_has_the_rdma_ports_of_its_network_port(tmp_path: Path) -> None:
    root = machine(machine(tmp_path, "mlx5_0", netdev="eth0"), "mlx5_1", netdev="eth1")
    assert [port.device for port in rdma.ports(root, "eth1")] == ["mlx5_1"]
    assert rdma.missing(root, "eth1") == "" and rdma.missing(root, "eth2") == "no active RDMA port belongs to eth2"


# The judgement -------------------------------------------------------------------------------------------------------


def flows(rates: dict[tuple[str, str], float | str], line_bps: float = 200e9) -> tuple[RdmaFlow, ...]:
    return tuple(
        RdmaFlow(one, other, "mlx5_0", "mlx5_0", 0.0, line_bps, rate)
        if isinstance(rate, str)
        else RdmaFlow(one, other, "mlx5_0", "mlx5_0", rate, line_bps)
        for (one, other), rate in rates.items()
    )


def ring(count: int, rate: float = 195e9) -> dict[tuple[str, str], float | str]:
    ways = [(f"m-{i}", f"m-{(i + 1) % count}") for i in range(count)]
    return dict.fromkeys([*ways, *((other, one) for one, other in ways)], rate)


def test_healthy_ports_are_blamed_for_nothing() -> None:
    assert rdma_verdict.findings(flows(ring(5))) == [] and rdma_verdict.below(flows(ring(5))) is None


def test_a_machine_that_receives_slowly_is_told_from_a_way() -> None:
    rates = ring(5)
    rates["m-1", "m-2"] = rates["m-3", "m-2"] = 60e9
    assert rdma_verdict.findings(flows(rates)) == [
        ("m-2's RDMA port mlx5_0 receives at 0.31 of the others' median", ("m-2",))
    ]
    rates["m-3", "m-2"] = 195e9
    ((sentence, blamed),) = rdma_verdict.findings(flows(rates))
    assert sentence == "RDMA from m-1 (mlx5_0) to m-2 (mlx5_0) is at 0.31 of the others' median"
    assert blamed == ("m-2",)


def test_what_does_not_work_at_all_names_the_machine_that_it_has_in_common() -> None:
    rates = ring(4)
    rates |= dict.fromkeys([way for way in rates if "m-2" in way], "Couldn't allocate MR")
    found = rdma_verdict.findings(flows(rates))
    assert len(found) == 4 and {blamed for _, blamed in found} == {("m-2",)}
    assert found[0][0].endswith("does not work: Couldn't allocate MR")
    everywhere: dict[tuple[str, str], float | str] = dict.fromkeys(ring(4), "no")
    assert {blamed for _, blamed in rdma_verdict.findings(flows(everywhere))} == {()}


def several(*rates: float, together: bool = False) -> list[RdmaFlow]:
    """Of four machines with as many ports as rates."""
    return [
        replace(flow, line=line, together=together, sending_device=f"mlx5_{line}", receiving_device=f"mlx5_{line}")
        for line, rate in enumerate(rates)
        for flow in flows(ring(4, rate))
    ]


def test_a_port_that_is_slow_on_all_machines_is_found_by_their_other_ports() -> None:
    ((sentence, blamed),) = rdma_verdict.findings(several(195e9, 195e9, 60e9))
    assert sentence.startswith("RDMA over mlx5_2 is at 0.31 of the other ports' median, alike between m-0, m-1")
    assert blamed == ()
    sentence = rdma_verdict.below(several(195e9, 190e9, 170e9)) or ""
    assert sentence.startswith("RDMA over mlx5_2 reaches 170.0 of the ports' 200 Gbit/s")


def test_what_the_load_of_other_ports_may_have_slowed_is_measured_again_before_it_is_judged() -> None:
    loaded = several(195e9, 60e9, 150e9, together=True)
    assert rdma_verdict.doubts(loaded) == [1, 2]
    assert rdma_verdict.findings(loaded) == [] and rdma_verdict.below(loaded) is None
    assert rdma_verdict.doubts(several(195e9, 195e9, together=True)) == []


def test_all_equally_below_the_line_blames_nobody() -> None:
    assert rdma_verdict.findings(flows(ring(4, 90e9))) == []
    sentence = rdma_verdict.below(flows(ring(4, 90e9)))
    assert sentence is not None and sentence.startswith("RDMA reaches 90.0 of the ports' 200 Gbit/s on all machines")
