"""The machine's own containerd is never touched by a dev cluster, whatever that does."""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests import cgroups
from tests.containers.machines_own import NAMESPACE, BesideCluster, machines_own
from tests.fakes.eventually import eventually


def test_a_dev_cluster_leaves_the_machines_own_containerd_as_it_was(tmp_path: Path) -> None:
    with machines_own(tmp_path) as own:
        before = own.picture()
        assert before["namespaces"] == [NAMESPACE]
        assert "RUNNING" in str(before[f"tasks of {NAMESPACE}"])
        cluster = BesideCluster(Path(tempfile.mkdtemp(prefix="astra-dev-", dir="/tmp")), beside=own.folder)
        try:
            cluster.start("--machines", "1")
            cluster.astra("run", "--name", "one", "--image", "host", "--", "sleep", "1000")
            eventually(lambda: cluster.phase("one") == "Running", "one runs")
            assert own.picture() == before
        finally:
            cluster.remove()
        assert own.picture() == before
    cgroups.remove(f"/{NAMESPACE}")
