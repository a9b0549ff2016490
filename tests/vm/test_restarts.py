"""H45: no restart of a service, whichever and however, ends or repeats anything; told from what the workers wrote."""

from __future__ import annotations

import pytest

from tests.vm.cluster import MACHINES, Cluster, unit

pytestmark = pytest.mark.timeout(3600)
UNITS = " ".join(map(unit, MACHINES))


def is_one_attempt(gang: Cluster) -> bool:
    """Every worker has written every number, once, in attempt 0."""
    return all(lines == [(0, number) for number in range(1, len(lines) + 1)] for lines in gang.written().values())


def check_untouched(gang: Cluster, before: dict[str, str]) -> None:
    gang.until_each_wrote(3)
    assert gang.programs() == before
    assert len(before) == len(MACHINES)
    assert is_one_attempt(gang)
    assert gang.status("g")["attempt"] == 0


def test_agents_and_containerd_restarted_by_systemd_one_by_one_and_together(gang: Cluster) -> None:
    before = gang.programs()
    names = gang.machine.run("cat /sys/fs/cgroup/astraeus/names/cgroup.procs")
    for units in (UNITS, "containerd", f"{UNITS} containerd"):
        gang.machine.run(f"systemctl restart {units}", timeout_s=1800)
        check_untouched(gang, before)
    assert gang.machine.run("cat /sys/fs/cgroup/astraeus/names/cgroup.procs") == names != ""


def test_agents_and_containerd_killed_at_once(gang: Cluster) -> None:
    before = gang.programs()
    gang.machine.run("kill -9 $(cat /sys/fs/cgroup/system.slice/astra-agent*.service/cgroup.procs) $(pidof containerd)")
    gang.machine.until(f"systemctl is-active --quiet containerd {UNITS}", timeout_s=1800)
    check_untouched(gang, before)


def test_agents_stopped_for_a_while_and_the_manager_reloaded(gang: Cluster) -> None:
    before = gang.programs()
    gang.machine.run(f"systemctl stop {UNITS}", timeout_s=300)
    for name in MACHINES:
        assert gang.machine.run(f"systemctl show {unit(name)} -p Result --value").strip() == "success"
    gang.machine.run("systemctl daemon-reload; systemctl daemon-reexec", timeout_s=300)
    limits = gang.machine.run("cat /sys/fs/cgroup/astraeus*/g-*/memory.max").split()
    assert limits == [str(64 * 2**20)] * len(MACHINES)
    gang.machine.run(f"systemctl start {UNITS}", timeout_s=1800)
    check_untouched(gang, before)


def test_an_agent_and_its_name_server_killed_at_once_refuse_no_question(gang: Cluster) -> None:
    """The manager has the sockets: what is asked meanwhile is answered late."""
    sockets = gang.machine.run("ss -lunH src 169.254.53.53:53").split()[3]
    gang.machine.run(
        "kill -9 $(cat /sys/fs/cgroup/astraeus/names/cgroup.procs "
        "/sys/fs/cgroup/system.slice/astra-agent.service/cgroup.procs)"
    )
    asked = gang.machine.run("dig +tries=60 +timeout=10 @169.254.53.53 g-1.default.astra.internal", timeout_s=900)
    assert "status: NOERROR" in asked
    assert "connection refused" not in asked
    assert gang.machine.run("ss -lunH src 169.254.53.53:53").split()[3] == sockets
    assert gang.machine.run("systemctl show astra-agent -p NFileDescriptorStore --value").strip() == "2"
