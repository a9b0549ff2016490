"""Kill -9 of whatever is between Nomad and a program that runs; judged from what the program wrote."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.fakes.eventually import eventually
from tests.nomad.cluster import NomadCluster, events, made
from tests.nomad.jobs import job, while_cut_off
from tests.runs_over_http import held

pytestmark = pytest.mark.timeout(300)

LOG_BYTES = 8 << 20
_COUNT = "echo begun $$ >> /alloc/data/starts; i=0; while true; do i=$((i+1)); echo line $i; sleep 0.1; done"


@pytest.fixture(scope="module")
def cluster(binary: Path) -> Iterator[NomadCluster]:
    """Its agent keeps less of a log than some program here says."""
    with made(binary, agents={"log_max_bytes": LOG_BYTES}) as one:
        yield one


@pytest.fixture
def counter(cluster: NomadCluster, request: pytest.FixtureRequest) -> str:
    """The allocation of a task that counts, ten times a second, and says when it begins."""
    name = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower())[-40:].strip("-")
    group = while_cut_off(cluster.version())
    cluster.submit(job(name, _COUNT, kind="service", restart="attempts = 2", group=group))
    found: str = cluster.reaches(name, "running")["ID"]
    eventually(lambda: last(cluster, found) > 3, "it counts")
    request.addfinalizer(lambda: cluster.nomad("job", "stop", "-purge", "-detach", name))
    return found


def last(cluster: NomadCluster, allocation: str) -> int:
    """The last number that has arrived in Nomad's log."""
    found = re.findall(r"^line (\d+)$", cluster.logs(allocation), re.MULTILINE)
    return int(found[-1]) if found else 0


def counts_on(cluster: NomadCluster, allocation: str) -> None:
    """More of it arrives in Nomad's log, and the program was started once."""
    before = last(cluster, allocation)
    eventually(lambda: last(cluster, allocation) > before + 5, "its output goes on in Nomad's log")
    assert starts(cluster, allocation) == 1


def starts(cluster: NomadCluster, allocation: str) -> int:
    return cluster.nomad("alloc", "fs", allocation, "alloc/data/starts").count("begun")


def lines_are_whole(cluster: NomadCluster, allocation: str, allowed: int = 0) -> None:
    numbers = [int(found) for found in re.findall(r"^line (\d+)$", cluster.logs(allocation), re.MULTILINE)]
    missing = sorted(set(range(1, numbers[-1] + 1)) - set(numbers))
    assert len(missing) <= allowed, missing


def test_the_plugin_is_killed(cluster: NomadCluster, counter: str) -> None:
    cluster.clients[0].kill_plugins()
    eventually(lambda: exec_works(cluster, counter), "another plugin serves")
    counts_on(cluster, counter)
    lines_are_whole(cluster, counter)
    assert not any("restart" in event.lower() for event in events(cluster.nomad_allocation(counter), "w"))


def exec_works(cluster: NomadCluster, allocation: str) -> bool:
    return cluster.run("alloc", "exec", "-i=false", "-t=false", allocation, "true").code == 0


def test_the_agent_is_killed(cluster: NomadCluster, counter: str) -> None:
    agent = cluster.clients[0].agent
    agent.kill()
    eventually(lambda: "does not answer" in node_health(cluster), "the node says why")
    time.sleep(2)
    agent.start_agent()
    eventually(lambda: node_health(cluster) == "Healthy", "the node is healthy")
    counts_on(cluster, counter)
    lines_are_whole(cluster, counter)
    assert exec_works(cluster, counter)


def node_health(cluster: NomadCluster) -> str:
    text: str = cluster.node()["Drivers"]["astra"]["HealthDescription"]
    return text


def test_containerd_is_killed(cluster: NomadCluster, counter: str) -> None:
    containerd = cluster.clients[0].agent.containerd
    containerd.kill()
    counts_on(cluster, counter)
    eventually(lambda: "containerd" in node_health(cluster), "the node says why")
    asyncio.run(containerd.start())
    eventually(lambda: node_health(cluster) == "Healthy", "the node is healthy")
    assert exec_works(cluster, counter)
    counts_on(cluster, counter)


def test_nomads_client_is_killed(cluster: NomadCluster, counter: str) -> None:
    client = cluster.clients[0]
    client.kill_client()
    time.sleep(1)
    client.start_client()
    cluster.ready()
    counts_on(cluster, counter)
    lines_are_whole(cluster, counter)
    assert exec_works(cluster, counter)


def test_nomads_client_is_killed_with_its_log_readers(cluster: NomadCluster, counter: str) -> None:
    client = cluster.clients[0]
    client.kill_client()
    client.kill_log_readers()
    time.sleep(5)
    client.start_client()
    cluster.ready()
    counts_on(cluster, counter)
    # What the reader had read and not yet written has gone with it.
    lines_are_whole(cluster, counter, allowed=2)


_SPEAKS = """
import sys, time
slowest = 0.0
for number in range(50 * 1024):
    before = time.monotonic()
    sys.stdout.write(f"line {number:>1017}\\n")
    slowest = max(slowest, time.monotonic() - before)
print("said all of it", flush=True)
open("/alloc/data/slowest", "w").write(f"{slowest}\\n")
time.sleep(300)
"""
"""50 MiB of lines."""
AWAY_S = 20.0


@pytest.mark.parametrize("client_too", [False, True], ids=["alone", "with its client"])
def test_a_log_reader_stands_still_while_a_program_of_uid_1000_speaks(
    cluster: NomadCluster, counter: str, client_too: bool
) -> None:
    """H48: its program is not held up, what is kept no more is marked, and other tasks hear nothing of it."""
    client, name = cluster.clients[0], f"speaks-{client_too}".lower()
    script = f"id -u; until [ -e /alloc/data/go ]; do sleep 0.1; done; exec python3 -c '{_SPEAKS}'"
    group = while_cut_off(cluster.version())
    cluster.submit(job(name, script, kind="service", task='user = "1000"', group=group))
    allocation = cluster.reaches(name, "running")["ID"]
    eventually(lambda: cluster.logs(allocation) == "1000\n", "it runs as its user")
    folder = client.folder / "data" / "alloc" / allocation / "alloc"
    began_s = time.monotonic()
    (reader,) = client.log_readers(allocation)
    with ExitStack() as stack:
        if client_too:
            client.kill_client()
            stack.callback(cluster.ready)
            stack.callback(client.start_client)
        stack.enter_context(held(reader))
        (folder / "data" / "go").touch()
        eventually((folder / "data" / "slowest").exists, "it has said all of it though nobody reads")
        assert float((folder / "data" / "slowest").read_text()) < 1
        time.sleep(max(0.0, began_s + AWAY_S - time.monotonic()))
    eventually(lambda: _told(folder).endswith(b"said all of it\n"), "its last line arrives")
    marks = re.findall(rb"^\[(.*) of output were dropped here: nobody read it in time\]$", _told(folder), re.MULTILINE)
    assert len(marks) == 1, marks
    counts_on(cluster, counter)
    lines_are_whole(cluster, counter)
    cluster.nomad("job", "stop", "-purge", "-detach", name)


def _told(folder: Path) -> bytes:
    """All that Nomad's log of an allocation's task `w` has: it is cut into files."""
    files = sorted(folder.glob("logs/w.stdout.*"), key=lambda path: int(path.name.rpartition(".")[2]))
    return b"".join(path.read_bytes() for path in files)


def test_nomads_client_is_stopped_and_started(cluster: NomadCluster, counter: str) -> None:
    client = cluster.clients[0]
    client.end_client()
    eventually(lambda: not client.plugin_pids(), "its plugins have ended with it")
    client.start_client()
    cluster.ready()
    counts_on(cluster, counter)
    lines_are_whole(cluster, counter)
    cluster.nomad("alloc", "restart", counter)
    eventually(lambda: starts(cluster, counter) == 2, "it has begun a second time")


def test_all_of_it_is_killed_at_once(cluster: NomadCluster, counter: str) -> None:
    client = cluster.clients[0]
    client.agent.kill()
    client.agent.containerd.kill()
    client.kill_client()
    client.kill_plugins()
    time.sleep(1)
    client.start_client()
    time.sleep(3)
    asyncio.run(client.agent.containerd.start())
    client.agent.start_agent()
    cluster.ready()
    counts_on(cluster, counter)


def test_a_task_that_ends_while_the_client_is_away_has_its_exit_code(cluster: NomadCluster) -> None:
    cluster.submit(job("meanwhile", "echo begun; sleep 3; exit 7"))
    cluster.reaches("meanwhile", "running")
    client = cluster.clients[0]
    client.kill_client()
    time.sleep(5)
    client.start_client()
    allocation = cluster.reaches("meanwhile", "failed")
    assert any(event.startswith("Exit Code: 7") for event in events(allocation, "w")), events(allocation, "w")


def test_a_task_that_ends_while_the_agent_is_away_has_its_exit_code(cluster: NomadCluster) -> None:
    cluster.submit(job("away", "echo begun; sleep 3; exit 7"))
    cluster.reaches("away", "running")
    agent = cluster.clients[0].agent
    agent.kill()
    time.sleep(5)
    agent.start_agent()
    allocation = cluster.reaches("away", "failed")
    assert any(event.startswith("Exit Code: 7") for event in events(allocation, "w")), events(allocation, "w")


def test_a_slot_that_is_gone_is_an_exit_and_nothing_starts_beside_it(cluster: NomadCluster, counter: str) -> None:
    """The agent has lost all that it knew, as on a machine that was made anew."""
    client = cluster.clients[0]
    client.agent.kill()
    client.agent.forget()
    client.agent.start_agent()
    eventually(
        lambda: any("does not know it" in event for event in events(cluster.nomad_allocation(counter), "w")),
        "Nomad starts it again by the job's own policy",
    )
    eventually(lambda: starts(cluster, counter) == 2, "it has begun again")


def test_a_start_without_an_agent_is_tried_again_by_the_jobs_policy(cluster: NomadCluster) -> None:
    agent = cluster.clients[0].agent
    cluster.submit(job("early", "exit 0", restart='attempts = 10\n interval = "5m"'))
    agent.kill()
    cluster.submit(job("late", "exit 0", restart='attempts = 10\n interval = "5m"'))
    time.sleep(3)
    agent.start_agent()
    cluster.reaches("late", "complete")
