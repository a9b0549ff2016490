"""`preflight: true` on a dev cluster: the network is proved in the barrier, and no program of the user runs before."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from astra_agent.network import link_name
from astra_cli.dev.network import BRIDGE
from tests.containers.dev_cluster import DevCluster
from tests.containers.gate import gated_registry
from tests.containers.images import File, Image
from tests.containers.test_netcheck import members
from tests.fakes.eventually import eventually

SICK = "the link of m-2 is slow in both directions"
ENOUGH_S = 120.0


@pytest.fixture
def cluster() -> Iterator[DevCluster]:
    """Four machines with links of 1 Gbit/s, but for that of m-2; nothing of it is left."""
    made = DevCluster(Path(tempfile.mkdtemp(prefix="astra-dev-", dir="/tmp")))
    made.start("--machines", "4", "--disconnect-limit", "5")
    for machine in range(1, 5):
        made.astra("dev", "link", "--machine", f"m-{machine}", "--rate", "20mbit" if machine == 2 else "1gbit")
    yield made
    made.remove()


@pytest.fixture
def own() -> Iterator[DevCluster]:
    """Four machines that are sound, whose workers have addresses of their own; nothing of it is left."""
    made = DevCluster(Path(tempfile.mkdtemp(prefix="astra-dev-", dir="/tmp")))
    made.start("--machines", "4", "--disconnect-limit", "5", "--network", "own")
    for machine in range(1, 5):
        made.astra("dev", "link", "--machine", f"m-{machine}", "--rate", "1gbit")
    yield made
    made.remove()


def inside(cluster: DevCluster, machine: str, *command: str) -> None:
    """A command in the machine's network."""
    netns = cluster.layout.netns(machine)
    subprocess.run(["nsenter", f"--net={netns}", *command], check=True, timeout=20)


def sentences(cluster: DevCluster, run: str) -> list[str]:
    return [event["sentence"] for event in cluster.json("events", run)["items"]]


@pytest.mark.timeout(300)
def test_the_machine_with_the_sick_link_is_swapped_and_the_run_completes(cluster: DevCluster) -> None:
    cluster.astra("run", "--name", "proved", "--image", "host", "--machines", "3", "--preflight", "--",
                  "sh", "-c", "echo rank $RANK attempt $ASTRAEUS_ATTEMPT")  # fmt: skip
    eventually(lambda: "Proving the network of 3 machines" in cluster.astra("status", "proved"), "it is told")
    eventually(lambda: cluster.phase("proved") == "Completed", "it completes", ENOUGH_S)
    said = sentences(cluster, "proved")
    blame = next(i for i, sentence in enumerate(said) if sentence.endswith(SICK))
    assert said[blame].startswith("m-2 sends at 0.0")
    assert said[blame + 1] == "proved-1 leaves m-2: another machine is tried"
    sound = next(i for i, s in enumerate(said) if s.startswith("The network is proved: 3 machines are sound: "))
    assert blame < sound < said.index("The gang barrier opens for attempt 0")
    ranks = cluster.json("ranks", "proved")
    assert {item["machine"] for item in ranks["items"]} == {"m-1", "m-3", "m-4"}
    assert ranks["attempts"] == [0], "no program of the user ran before"
    assert cluster.astra("logs", "proved", "1") == "rank 1 attempt 0\n"
    assert members(cluster) == ""


@pytest.mark.timeout(300)
def test_without_another_machine_the_run_says_why(cluster: DevCluster) -> None:
    cluster.astra("run", "--name", "four", "--image", "host", "--machines", "4", "--preflight", "--", "true")
    eventually(lambda: SICK in cluster.json("status", "four")["status"]["reason"], "it says why", ENOUGH_S)
    status = cluster.json("status", "four")["status"]
    assert status["reason"].startswith("Gang cannot be placed whole: ")
    eventually(lambda: cluster.phase("four") == "Pending", "its machines are given back")
    assert cluster.json("ranks", "four")["attempts"] == [], "no program of the user ran"
    cluster.astra("stop", "four")
    eventually(lambda: cluster.phase("four") == "Stopped", "it is stopped")


@pytest.mark.timeout(300)
def test_the_user_may_look_while_the_run_waits_at_the_barrier(cluster: DevCluster, tmp_path: Path) -> None:
    with gated_registry(tmp_path) as registry:
        image = Image().layer({"filler": File(os.urandom(1 << 20))}, compressed=False)
        reference = registry.push(image, "waits")
        with registry.closed_after(64 << 10):
            cluster.astra("run", "--name", "waits", "--image", reference, "--machines", "3", "--", "/filler")
            eventually(lambda: cluster.phase("waits") == "Starting", "it holds its machines")
            found = cluster.astra("netcheck", "run", "waits", "--time", "15", code=1)
            assert found.startswith("m-2 sends at 0.0") and SICK in found
            assert cluster.phase("waits") == "Starting"
            assert members(cluster) == ""
            cluster.astra("stop", "waits")


@pytest.mark.timeout(300)
def test_the_network_of_the_slots_is_proved_where_they_have_addresses_of_their_own(own: DevCluster) -> None:
    """First a smaller MTU on the way to one machine's slots, then a slow cable of one slot: machines see neither."""
    inside(own, "m-2", "ip", "link", "set", "dev", BRIDGE, "mtu", "1400")
    assert "4 machines are sound" in own.astra("netcheck", "preflight", "--machines", "4", "--time", "15")
    own.astra("run", "--name", "proved", "--image", "host", "--machines", "3", "--preflight", "--", "sleep", "600")
    eventually(lambda: own.phase("proved") == "Running", "it runs", ENOUGH_S)
    said = sentences(own, "proved")
    assert any("packets of 1500 bytes from" in s and "to m-2 vanish" in s for s in said), said
    assert "proved-1 leaves m-2: another machine is tried" in said
    assert any(s.startswith("The network is proved: 3 machines are sound: ") for s in said)
    assert "3 machines are sound" in own.astra("netcheck", "run", "proved", "--time", "10")

    (worker,) = [w for w in own.json("status", "proved")["status"]["workers"] if w["machine"] == "m-3"]
    shaped = ("tbf", "rate", "50mbit", "burst", "128kb", "latency", "50ms")
    inside(own, "m-3", "tc", "qdisc", "replace", "dev", link_name(worker["slot"]), "root", *shaped)
    found = own.astra("netcheck", "run", "proved", "--time", "10", code=1)
    assert found.startswith("m-3 receives at 0.") and "the link of m-3 is slow in one direction" in found
    assert "2 machines are sound" in own.astra("netcheck", "pair", "m-1", "m-3", "--time", "4")
    assert members(own) == ""
    own.astra("stop", "proved")
    eventually(lambda: own.phase("proved") == "Stopped", "it is stopped")
