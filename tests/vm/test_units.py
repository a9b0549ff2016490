"""The units as they are shipped, on a machine with systemd."""

from __future__ import annotations

import pytest

from tests.vm.cluster import PATH
from tests.vm.machine import Machine, MachineError

pytestmark = pytest.mark.timeout(3600)
AGENT = "astra-agent"


def show(machine: Machine, unit: str, name: str) -> str:
    return machine.run(f"systemctl show {unit} -p {name} --value").strip()


@pytest.fixture
def agent(machine: Machine) -> Machine:
    """The agent's unit, with nothing changed but the time that an emulated machine may take to load it."""
    machine.run(f"{PATH} astra agent install --name m1")
    machine.write("/etc/systemd/system/astra-agent.service.d/slow.conf", "[Service]\nTimeoutStartSec=900\n")
    machine.run("systemctl daemon-reload; systemctl start astra-agent", timeout_s=900)
    return machine


def test_the_agent_is_ready_says_what_it_holds_and_is_alone_in_its_unit(agent: Machine) -> None:
    assert show(agent, AGENT, "StatusText") == "0 slots; no coordinator is configured"
    assert show(agent, AGENT, "WatchdogUSec") == "30s"
    pid = show(agent, AGENT, "MainPID")
    assert agent.run(f"cat /sys/fs/cgroup/system.slice/{AGENT}.service/cgroup.procs").split() == [pid]
    assert agent.run(f"grep -c ^NoNewPrivs:.1 /proc/{pid}/status").strip() == "1"
    assert agent.run(f"stat -L -c %i /proc/{pid}/ns/mnt /proc/1/ns/mnt | uniq | wc -l").strip() == "1"


def test_an_agent_that_is_stuck_is_ended_by_the_watchdog_and_started_again(agent: Machine) -> None:
    pid = show(agent, AGENT, "MainPID")
    agent.run(f"kill -STOP {pid}")
    agent.until(f"systemctl show {AGENT} -p NRestarts --value | grep -qx 1", timeout_s=600)
    agent.until(f"systemctl is-active --quiet {AGENT}", timeout_s=900)
    assert show(agent, AGENT, "MainPID") not in ("0", pid)
    assert "Watchdog timeout" in agent.run(f"journalctl -u {AGENT} --no-pager")


def test_an_agent_that_is_killed_is_started_again(agent: Machine) -> None:
    agent.run(f"kill -9 {show(agent, AGENT, 'MainPID')}")
    agent.until(f"systemctl show {AGENT} -p NRestarts --value | grep -qx 1", timeout_s=600)
    agent.until(f"systemctl is-active --quiet {AGENT}", timeout_s=900)


def test_a_wrong_configuration_is_one_sentence_and_no_loop(agent: Machine) -> None:
    agent.run("sed -i 's/^address = .*/address = \"here\"/' /etc/astraeus/agent.toml")
    with pytest.raises(MachineError):
        agent.run(f"systemctl restart {AGENT}", timeout_s=900)
    assert show(agent, AGENT, "ActiveState") == "failed"
    assert show(agent, AGENT, "ExecMainStatus") == "2"
    assert show(agent, AGENT, "NRestarts") == "0"
    said = agent.run(f"journalctl -u {AGENT} --no-pager -o cat")
    assert "astra-agent: /etc/astraeus/agent.toml: address is 'here'; expected an IP address\n" in said
    assert "Traceback" not in said


def test_the_coordinator_serves_as_a_user_of_its_own_that_can_do_nothing_else(machine: Machine) -> None:
    machine.run(f"{PATH} astra coordinator install")
    machine.run(
        "sed -i '/^\\[engine\\]/,$d' /etc/astraeus/coordinator.toml; "
        "sed -i '1i state_dir = \"/var/lib/astraeus-coordinator\"' /etc/astraeus/coordinator.toml"
    )
    machine.write("/etc/systemd/system/astra-coordinator.service.d/slow.conf", "[Service]\nTimeoutStartSec=900\n")
    machine.run("systemctl daemon-reload; systemctl start astra-coordinator", timeout_s=900)
    assert show(machine, "astra-coordinator", "StatusText") == "term 1, 0 live runs, 0 machines linked"
    pid = show(machine, "astra-coordinator", "MainPID")
    status = machine.run(f"cat /proc/{pid}/status")
    assert "CapEff:\t0000000000000000" in status
    assert "Uid:\t0\t" not in status
    assert machine.run("ls /var/lib/private/astraeus-coordinator").split() != []
    assert machine.run("stat -c %a /etc/astraeus/operator.token").strip() == "600"


def test_nothing_in_the_units_is_unknown_to_systemd(agent: Machine) -> None:
    agent.run(f"{PATH} astra coordinator install")
    assert agent.run("systemd-analyze verify astra-agent.service astra-coordinator.service 2>&1").strip() == ""
