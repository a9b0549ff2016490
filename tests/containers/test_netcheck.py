"""`astra netcheck` on a dev cluster: machines that a run would get, pairs, what is printed and the exit status."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.containers.dev_cluster import DevCluster
from tests.fakes.eventually import eventually

QUICK = ("--time", "8")


@pytest.fixture
def cluster() -> Iterator[DevCluster]:
    """Four machines with links of 1 Gbit/s; nothing of it is left, the probes' processes least of all."""
    made = DevCluster(Path(tempfile.mkdtemp(prefix="astra-dev-", dir="/tmp")))
    made.start("--machines", "4", "--disconnect-limit", "5")
    for machine in range(1, 5):
        made.astra("dev", "link", "--machine", f"m-{machine}", "--rate", "1gbit")
    yield made
    made.remove()


def members(cluster: DevCluster) -> str:
    """Processes of probes in the cluster's networks."""
    listing = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    folder = str(cluster.layout.run)
    return "\n".join(line for line in listing.splitlines() if "astra_netprobe.member" in line and folder in line)


def test_a_preflight_says_what_the_machines_of_a_run_reach(cluster: DevCluster, tmp_path: Path) -> None:
    save = tmp_path / "last.json"
    sound = cluster.astra("netcheck", "preflight", "--machines", "4", *QUICK, "--save", str(save))
    assert sound.startswith("4 machines are sound: ")
    assert "#       size         count      type   redop    root     time   algbw   busbw #wrong" in sound
    assert "Gbit/s, from row to column" in sound and "measured over TCP only" in sound
    assert members(cluster) == ""

    cluster.astra("dev", "link", "--machine", "m-3", "--rate", "150mbit")
    sick = json.loads(
        subprocess.run(
            cluster.command("netcheck", "preflight", "--machines", "4", *QUICK, "--save", str(save), "--json"),
            env=cluster.environ, capture_output=True, text=True, timeout=60, check=False,
        ).stdout
    )  # fmt: skip
    assert (sick["state"], sick["exit"], sick["blamed"]) == ("sick", 1, ["m-3"])
    assert sick["sentence"].startswith("m-3 sends at 0.") and sick["sentence"].endswith("slow in both directions")
    assert "of the last good result of these machines" in sick["comparison"]
    assert json.loads(save.read_text())["exit"] == 0
    assert members(cluster) == ""


def test_pairs_runs_and_what_cannot_be_measured(cluster: DevCluster) -> None:
    assert "2 machines are sound" in cluster.astra("netcheck", "pair", "m-1", "m-2", "--time", "4")
    assert "there is no machine m-9" in cluster.astra("netcheck", "pair", "m-1", "m-9", code=2)
    assert "give one of FILE and --machines" in cluster.astra("netcheck", "preflight", code=2)
    assert "12 machines" in cluster.astra("netcheck", "preflight", "--machines", "12", code=3)

    cluster.astra("run", "--name", "one", "--image", "host", "--machines", "2", "--", "sleep", "60")
    eventually(lambda: cluster.phase("one") == "Running", "one runs")
    assert "2 machines are sound" in cluster.astra("netcheck", "run", "one", "--time", "4")

    cluster.astra("dev", "link", "--machine", "m-4", "--down")
    eventually(
        lambda: not next(node for node in cluster.json("nodes")["items"] if node["name"] == "m-4")["connected"],
        "m-4 is cut off",
    )
    assert "m-4 takes no part: machine m-4 is not connected" in cluster.astra("netcheck", "pair", "m-1", "m-4", code=3)
