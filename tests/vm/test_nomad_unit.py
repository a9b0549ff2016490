"""
H45 with Nomad: a gang of two on a client and an agent each, all of them units of systemd. Whatever is done to them, the
workers' processes are the same, every number was written once, and the devices that a worker was given still open.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from tests.vm.cluster import PATH
from tests.vm.machine import Machine
from tests.vm.nomad import AGENTS, DEVICE, DEVICE_NUMBER, NOMADS, OTHER, NomadUnits, Program, run_gang

pytestmark = pytest.mark.timeout(3600)
COORDINATOR = "astra-coordinator"
ALL = (*AGENTS, *NOMADS, "containerd")
EACH: tuple[tuple[str, ...], ...] = (AGENTS, NOMADS, ("containerd",), ALL)
"""One kind by itself, one after the other; then all at once."""
OPENS = ["yes", "yes", "no"]
"""The device that a worker was given, the same by a node of its own, and one that it was not given."""
STOP_S = 10.0

Containers = dict[str, tuple[Program, ...]]


def show(machine: Machine, unit: str, name: str) -> str:
    return machine.run(f"systemctl show {unit} -p {name} --value").strip()


def group(machine: Machine, unit: str) -> list[str]:
    """Process IDs of what is in a unit's cgroup; none where it has no cgroup any more."""
    return machine.run(f"cat /sys/fs/cgroup/system.slice/{unit}.service/cgroup.procs 2>/dev/null || true").split()


def commands(machine: Machine, unit: str) -> str:
    """What is in a unit's cgroup, a line each."""
    said = [machine.run(f"tr '\\0' ' ' </proc/{pid}/cmdline 2>/dev/null || true") for pid in group(machine, unit)]
    return "\n".join(said)


def check_runs_on(gang: NomadUnits, before: Containers) -> None:
    """Whoever is away: the programs are the same, and write on."""
    gang.until_each_wrote(3)
    assert gang.containers() == before
    assert [len(programs) for programs in before.values()] == [2, 2], "a first process and a program in each of two"
    for rank, lines in gang.lines().items():
        assert [line[:2] for line in lines] == [["0", str(number)] for number in range(1, len(lines) + 1)], rank
        assert [line for line in lines if line[2:] != OPENS] == [], rank


def check_untouched(gang: NomadUnits, before: Containers, allocations: dict[str, str]) -> None:
    """The same with everything back."""
    gang.until_settled()
    check_runs_on(gang, before)
    for unit in AGENTS:
        assert group(gang.machine, unit) == [show(gang.machine, unit, "MainPID")]
    assert gang.allocations("g") == allocations
    assert gang.served("g")["attempt"] == 0


def test_the_devices_of_a_worker_and_its_limit_are_what_the_job_says(nomad_gang: NomadUnits) -> None:
    for rank in (0, 1):
        assert nomad_gang.machine.run(f"cat /written/limit-{rank}") == "unlimited\n"
    nomad_gang.machine.run(f": <>{DEVICE}; : <{OTHER}")
    check_runs_on(nomad_gang, nomad_gang.containers())


@pytest.mark.parametrize("units", EACH, ids=["agents", "nomad", "containerd", "all"])
def test_units_restarted(nomad_gang: NomadUnits, units: Sequence[str]) -> None:
    before, allocations = nomad_gang.containers(), nomad_gang.allocations("g")
    nomad_gang.machine.run(f"systemctl restart {' '.join(units)}", timeout_s=1800)
    check_untouched(nomad_gang, before, allocations)


@pytest.mark.parametrize("units", EACH, ids=["agents", "nomad", "containerd", "all"])
def test_units_stopped_for_a_while_and_the_manager_reloaded(nomad_gang: NomadUnits, units: Sequence[str]) -> None:
    machine = nomad_gang.machine
    before, allocations = nomad_gang.containers(), nomad_gang.allocations("g")
    machine.run(f"systemctl stop {' '.join(units)}", timeout_s=300)
    for unit in units:
        check_stopped(machine, unit)
    check_runs_on(nomad_gang, before)
    machine.run("systemctl daemon-reload", timeout_s=300)
    check_runs_on(nomad_gang, before)
    machine.run("systemctl daemon-reexec", timeout_s=300)
    check_runs_on(nomad_gang, before)
    machine.run(f"systemctl start {' '.join(units)}", timeout_s=1800)
    check_untouched(nomad_gang, before, allocations)


def check_stopped(machine: Machine, unit: str) -> None:
    """It has ended by itself in time, and nothing of ours is left where it was."""
    result = (show(machine, unit, "Result"), show(machine, unit, "ExecMainStatus"))
    # Nomad itself ends with 1 when a signal ends it, unless it is told to leave its cluster then.
    assert result == (("exit-code", "1") if unit in NOMADS else ("success", "0"))
    if unit != "containerd":
        assert stop_s(machine, unit) <= STOP_S
        assert "/opt/astraeus" not in commands(machine, unit)
    if unit in AGENTS:
        assert group(machine, unit) == []


def stop_s(machine: Machine, unit: str) -> float:
    """How long its last stop took, by the machine's own clock."""
    asked, ended = (int(show(machine, unit, f"{name}TimestampMonotonic")) for name in ("ActiveExit", "InactiveEnter"))
    took_s = (ended - asked) / 1e6
    print(f"{unit} stopped within {took_s:.1f} s")
    return took_s


def test_a_stop_beside_a_containerd_that_hangs(nomad_gang: NomadUnits) -> None:
    machine = nomad_gang.machine
    before, allocations = nomad_gang.containers(), nomad_gang.allocations("g")
    containerd = show(machine, "containerd", "MainPID")
    machine.run(f"kill -STOP {containerd}")
    try:
        machine.run(f"systemctl stop {' '.join(AGENTS)}", timeout_s=300)
        for unit in AGENTS:
            check_stopped(machine, unit)
    finally:
        machine.run(f"kill -CONT {containerd}")
    machine.run(f"systemctl start {' '.join(AGENTS)}", timeout_s=1800)
    check_untouched(nomad_gang, before, allocations)


def test_a_stop_of_agents_that_do_not_listen(nomad_gang: NomadUnits) -> None:
    """
    The units' own bound: they are killed, as they may be at any moment. Stopped again and again, since systemd lets one
    go on that it stops.
    """
    machine = nomad_gang.machine
    before, allocations = nomad_gang.containers(), nomad_gang.allocations("g")
    deaf = "".join(
        f"( while kill -STOP {show(machine, unit, 'MainPID')}; do :; done ) >/dev/null 2>&1 & " for unit in AGENTS
    )
    machine.run(f"{deaf} systemctl stop {' '.join(AGENTS)}", timeout_s=300)
    for unit in AGENTS:
        assert show(machine, unit, "Result") == "timeout"
        assert stop_s(machine, unit) <= STOP_S
    machine.run(f"systemctl start {' '.join(AGENTS)}", timeout_s=1800)
    check_untouched(nomad_gang, before, allocations)


def test_an_upgrade_that_stops_replaces_and_starts(nomad_gang: NomadUnits) -> None:
    machine = nomad_gang.machine
    before, allocations = nomad_gang.containers(), nomad_gang.allocations("g")
    assert versions(nomad_gang) == {"0.1.0"}
    units = " ".join((*AGENTS, *NOMADS, COORDINATOR))
    machine.run(f"systemctl stop {units}", timeout_s=300)
    check_runs_on(nomad_gang, before)
    machine.run(
        "cp -a /opt/astraeus /opt/new && sed -i 's/^Version: .*/Version: 0.1.1/' "
        "/opt/new/lib/python3.11/site-packages/astraeus-*.dist-info/METADATA && "
        "mv /opt/astraeus /opt/old && mv /opt/new /opt/astraeus && rm -r /opt/old && "
        "cp /usr/bin/nomad /usr/bin/nomad.new && mv /usr/bin/nomad.new /usr/bin/nomad"
    )
    machine.run(f"{PATH} astra agent install && astra coordinator install && astra nomad install")
    machine.run("systemctl daemon-reload", timeout_s=300)
    machine.run(f"systemctl start {units}", timeout_s=1800)
    check_untouched(nomad_gang, before, allocations)
    assert versions(nomad_gang) == {"0.1.1"}


def versions(gang: NomadUnits) -> set[str]:
    """Of the agents, as Nomad knows them."""
    nodes = json.loads(gang.nomad("node", "status", "-json"))
    attributes = [json.loads(gang.nomad("node", "status", "-json", node["ID"]))["Attributes"] for node in nodes]
    return {found["driver.astra.agent.version"] for found in attributes}


def test_agents_killed_for_want_of_memory(nomad_gang: NomadUnits) -> None:
    """By the kernel, which is all that their unit has to do with it: it starts them again."""
    machine = nomad_gang.machine
    before, allocations = nomad_gang.containers(), nomad_gang.allocations("g")
    for unit in AGENTS:
        pid = show(machine, unit, "MainPID")
        machine.run(f"systemctl set-property --runtime {unit} MemoryMax=4M", timeout_s=300)
        machine.until(f"journalctl -u {unit} --no-pager -o cat | grep -q \"Failed with result 'oom-kill'\"")
        assert f"Killed process {pid} (" in machine.run("dmesg | grep 'out of memory'")
        machine.run(f"systemctl set-property --runtime {unit} MemoryMax=infinity", timeout_s=300)
    for unit in AGENTS:
        machine.until(f"systemctl is-active --quiet {unit}", timeout_s=900)
        assert int(show(machine, unit, "NRestarts")) >= 1
    check_untouched(nomad_gang, before, allocations)


# With cgroups that systemd makes --------------------------------------------------------------------------------------


@pytest.fixture
def by_systemd(two_nomads: NomadUnits) -> NomadUnits:
    machine = two_nomads.machine
    machine.run(
        "sed -i '1i cgroup_driver = \"systemd\"' /etc/astraeus/agent.toml /etc/astraeus/m2.toml; "
        "sed -i 's|^cgroup_parent = .*|cgroup_parent = \"astraeus-m2.slice\"|' /etc/astraeus/m2.toml"
    )
    machine.run(f"systemctl restart {' '.join(AGENTS)}", timeout_s=1800)
    two_nomads.until_settled()
    return two_nomads


@pytest.mark.parametrize("link", [True, False], ids=["as it is", "without its link in /dev/char"])
def test_devices_of_scopes_open_after_what_is_done_to_the_manager(by_systemd: NomadUnits, link: bool) -> None:
    machine = by_systemd.machine
    if not link:
        machine.run(f"rm /dev/char/{DEVICE_NUMBER.replace(' ', ':')}")
    run_gang(by_systemd)
    before, allocations = by_systemd.containers(), by_systemd.allocations("g")
    assert all(".scope/" in name for name in before)
    for what in ("systemctl daemon-reload", "systemctl daemon-reexec", f"systemctl restart {' '.join(ALL)}"):
        machine.run(what, timeout_s=1800)
        check_runs_on(by_systemd, before)
    check_untouched(by_systemd, before, allocations)
    # What would have been seen, had a rule been lost.
    for name in before:
        machine.run(f"systemctl set-property --runtime {name.split('/')[-2]} DeviceAllow=")
    by_systemd.until_each_wrote(3)
    assert [lines[-1][2:] for lines in by_systemd.lines().values()] == [["no", "no", "no"]] * 2
