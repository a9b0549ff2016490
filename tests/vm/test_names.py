"""Names beside systemd-resolved, which has port 53 on addresses of its own."""

from __future__ import annotations

import pytest

from tests.vm.cluster import Cluster

pytestmark = pytest.mark.timeout(3600)


def test_both_answer_on_port_53_and_workers_find_each_other(gang: Cluster) -> None:
    machine = gang.machine
    listening = machine.run("ss -lunH sport = :53")
    assert "169.254.53.53:53" in listening
    assert "127.0.0.53" in listening
    assert machine.run("systemctl is-active systemd-resolved").strip() == "active"
    assert "10.0.2.15" in machine.run("dig +short @169.254.53.53 g-1.default.astra.internal")
    gang.submit(
        "asks", "getent hosts g-1 >> /out/asked; getent hosts g-1.default.astra.internal >> /out/asked", machines=1
    )
    gang.until_phase("asks", "Completed")
    asked = machine.run("cat /written/asked")
    assert asked.count("10.0.2.15") == 2


def test_a_restart_of_resolved_harms_no_name(gang: Cluster) -> None:
    gang.machine.run("systemctl restart systemd-resolved")
    assert "10.0.2.15" in gang.machine.run("dig +short @169.254.53.53 g-2.default.astra.internal")
