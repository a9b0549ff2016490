"""Install, upgrade and removal on a machine, with a worker that runs through the upgrade."""

from __future__ import annotations

import pytest

from tests.vm.cluster import MACHINES, PATH, Cluster, unit
from tests.vm.machine import Machine

pytestmark = pytest.mark.timeout(3600)


def test_an_upgrade_changes_what_is_ours_and_no_worker(gang: Cluster) -> None:
    """The upgrade page's order: files, units, coordinator, agents."""
    machine = gang.machine
    before = gang.programs()
    machine.run(
        "cp -a /opt/astraeus /opt/astraeus-2 && sed -i 's|/opt/astraeus/|/opt/astraeus-2/|' /opt/astraeus-2/bin/astra*"
    )
    said = machine.run(f"{PATH} astra agent install --bin /opt/astraeus-2/bin")
    assert "updated    /etc/systemd/system/astra-agent.service" in said
    assert "kept       /etc/astraeus/agent.toml (the settings of this machine" in said
    said = machine.run(f"{PATH} astra coordinator install --bin /opt/astraeus-2/bin")
    assert "updated    /etc/systemd/system/astra-coordinator.service" in said
    machine.run("systemctl daemon-reload; systemctl restart astra-coordinator astra-agent", timeout_s=1800)
    assert "/opt/astraeus-2/bin/astra-agent" in machine.run(
        "tr '\\0' ' ' </proc/$(systemctl show astra-agent -p MainPID --value)/cmdline"
    )
    gang = Cluster(machine)
    machine.until("systemctl status --no-pager astra-coordinator | grep '4 machines linked'", timeout_s=900)
    gang.until_each_wrote(3)
    assert gang.programs() == before
    assert gang.status("g")["attempt"] == 0


def test_a_removal_refuses_while_it_runs_and_leaves_what_the_page_says(gang: Cluster) -> None:
    machine = gang.machine
    refused = machine.attempt(f"{PATH} astra agent uninstall")
    assert refused.returncode == 2
    assert refused.stderr.decode() == (
        "astra: astra-agent is running: stop it first, with systemctl disable --now astra-agent\n"
    )
    before = gang.programs()
    machine.run(f"systemctl disable --now {' '.join(map(unit, MACHINES))} astra-coordinator", timeout_s=300)
    assert gang.programs() == before
    said = machine.run(f"{PATH} astra agent uninstall; astra coordinator uninstall")
    assert "removed    /etc/systemd/system/astra-agent.service" in said
    assert "kept       /etc/astraeus/agent.toml (it was changed since it was installed)" in said
    assert machine.attempt("test -e /etc/systemd/system/astra-agent.service").returncode == 1
    assert machine.attempt("test -e /etc/astraeus/operator.token").returncode == 1


def test_nothing_is_left_in_etc_when_nothing_was_changed(machine: Machine) -> None:
    before = machine.run("find /etc | sort")
    machine.run(f"{PATH} astra agent install --name m1; astra coordinator install; astra nomad install")
    machine.run(f"{PATH} astra nomad uninstall; astra coordinator uninstall; astra agent uninstall")
    left = set(machine.run("find /etc | sort").splitlines()) - set(before.splitlines())
    assert left <= {"/etc/nomad.d"}
