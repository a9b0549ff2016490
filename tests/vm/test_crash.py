"""The power fails in the middle of a run: files that were not synced are empty or gone, and the run goes on."""

from __future__ import annotations

import pytest

from tests.vm.cluster import MACHINES, Cluster, unit

pytestmark = pytest.mark.timeout(7200)


def test_a_machine_that_lost_its_power_runs_the_next_attempt(gang: Cluster) -> None:
    gang.machine.crash()
    units = " ".join(map(unit, MACHINES))
    gang.machine.until(f"systemctl is-active --quiet {units} astra-coordinator", timeout_s=1800)
    again = Cluster(gang.machine)
    gang.machine.run("ip route add default via 10.0.2.2 2>/dev/null || true")
    found = again.until_phase("g", "Running", timeout_s=1800)
    again.until_each_wrote(3)
    assert again.status("g")["attempt"] == 1, found
    for lines in again.written().values():
        newest = [number for attempt, number in lines if attempt == 1]
        assert newest == list(range(1, len(newest) + 1))
    for name in MACHINES:
        said = gang.machine.run(f"journalctl -b -u {unit(name)} --no-pager -o cat")
        assert "Traceback" not in said
        assert "The machine was booted" in said
