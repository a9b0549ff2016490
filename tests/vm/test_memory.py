"""
Under cgroup v2, with the cgroups of runc and with those of systemd: limits hold, and a worker that ran out of memory is
told from one that was killed.
"""

from __future__ import annotations

import json

import pytest

from tests.vm.cluster import MACHINES, WRITES, Cluster, unit

pytestmark = pytest.mark.timeout(3600)
MEMORY = 64 * 2**20


def end_of(cluster: Cluster, name: str) -> str:
    """All that is said of a run that has failed."""
    cluster.until_phase(name, "Failed")
    return json.dumps(cluster.status(name)) + cluster.astra("events", name)


@pytest.fixture
def by_systemd(cluster: Cluster) -> Cluster:
    """The one machine that is left has its cgroups made by systemd."""
    others = " ".join(unit(name) for name in MACHINES if name != "m1")
    cluster.machine.run(f"systemctl stop {others}", timeout_s=300)
    cluster.machine.run("sed -i '1i cgroup_driver = \"systemd\"' /etc/astraeus/agent.toml")
    cluster.machine.run("systemctl restart astra-agent", timeout_s=1800)
    cluster.machine.until("systemctl status --no-pager astra-coordinator | grep '1 machine linked'", timeout_s=900)
    return cluster


def show(cluster: Cluster, unit_name: str, name: str) -> str:
    return cluster.machine.run(f"systemctl show {unit_name} -p {name} --value").strip()


def scopes(cluster: Cluster) -> list[str]:
    said = cluster.machine.run("systemctl list-units --all --plain --no-legend 'astraeus-*.scope'")
    return [line.split()[0] for line in said.splitlines()]


def test_out_of_memory_is_told_of_a_scope_that_is_gone_and_a_kill_is_another_thing(by_systemd: Cluster) -> None:
    check_ends(by_systemd)
    assert scopes(by_systemd) == []
    assert by_systemd.machine.run("find /sys/fs/cgroup/astraeus.slice -name '*.scope'") == ""


def test_a_worker_is_a_unit_whose_limits_outlive_what_is_done_to_the_manager(by_systemd: Cluster) -> None:
    by_systemd.submit("kept", WRITES, machines=1)
    by_systemd.until_phase("kept", "Running")
    machine = by_systemd.machine
    (scope,) = scopes(by_systemd)
    cgroup = f"/astraeus.slice/{scope}"
    assert scope.startswith("astraeus-kept-")
    assert "Active: active (running)" in machine.run(f"systemctl status --no-pager {scope}")
    programs = (
        f"for p in $(cat /sys/fs/cgroup{cgroup}/cgroup.procs); "
        "do grep -lE '^(sh|[.]?astra-init)$' /proc/$p/comm; done 2>/dev/null || true"
    )
    before = machine.run(programs)
    assert before != ""

    def check() -> None:
        count = int(machine.run("wc -l </written/0"))
        machine.until(f"test $(wc -l </written/0) -gt {count}")
        assert machine.run(programs) == before
        assert machine.run(f"cat /sys/fs/cgroup{cgroup}/memory.max").strip() == str(MEMORY)
        assert (show(by_systemd, scope, "MemoryMax"), show(by_systemd, scope, "ControlGroup")) == (str(MEMORY), cgroup)
        assert by_systemd.status("kept")["attempt"] == 0

    check()
    machine.run("systemctl daemon-reload; systemctl daemon-reexec", timeout_s=300)
    check()
    machine.run("systemctl restart astra-agent containerd", timeout_s=1800)
    check()
    by_systemd.astra("stop", "kept")
    machine.until(f"! systemctl is-active {scope} && ! test -e /sys/fs/cgroup{cgroup}", timeout_s=900)


def test_out_of_memory_is_told_and_a_kill_is_another_thing(cluster: Cluster) -> None:
    check_ends(cluster)


def check_ends(cluster: Cluster) -> None:
    greedy = "exec python3 -c 'print(len(bytearray(300 * 2**20)))'"
    cluster.submit("greedy", greedy, machines=1, on_failure="FailJob")
    cluster.submit("killed", "kill -9 $$", machines=1, on_failure="FailJob")
    assert "out of memory" in end_of(cluster, "greedy").lower()
    killed = end_of(cluster, "killed")
    assert "memory" not in killed.lower()
    assert "Killed by signal 9" in killed
