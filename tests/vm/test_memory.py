"""Under cgroup v2: a worker that ran out of memory is told from one that was killed."""

from __future__ import annotations

import json

import pytest

from tests.vm.cluster import Cluster

pytestmark = pytest.mark.timeout(3600)


def end_of(cluster: Cluster, name: str) -> str:
    """All that is said of a run that has failed."""
    cluster.until_phase(name, "Failed")
    return json.dumps(cluster.status(name)) + cluster.astra("events", name)


def test_out_of_memory_is_told_and_a_kill_is_another_thing(cluster: Cluster) -> None:
    greedy = "exec python3 -c 'print(len(bytearray(300 * 2**20)))'"
    cluster.submit("greedy", greedy, machines=1, on_failure="FailJob")
    cluster.submit("killed", "kill -9 $$", machines=1, on_failure="FailJob")
    assert "out of memory" in end_of(cluster, "greedy").lower()
    killed = end_of(cluster, "killed")
    assert "memory" not in killed.lower()
    assert "Killed by signal 9" in killed
