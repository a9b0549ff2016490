"""A full disk, of containerd or of the agent: a task's events say which, and it runs once there is room."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.containers.images import File, Image
from tests.containers.small_disk import enlarge, fill, small_disk
from tests.fakes.eventually import eventually
from tests.nomad.cluster import Client, NomadCluster, events
from tests.nomad.jobs import job

pytestmark = pytest.mark.timeout(300)
TRIES = 'attempts = 50\n interval = "10m"'


@contextmanager
def on_a_small_disk(client: Client, folder: Path, megabytes: int) -> Iterator[None]:
    """A folder of the agent or of its containerd, which then has nothing in it, as on a machine that is new."""
    _down(client)
    with small_disk(folder, megabytes):
        try:
            _up(client)
            yield
        finally:
            _down(client)
    _up(client)


def _down(client: Client) -> None:
    client.agent.kill()
    client.agent.containerd.kill()


def _up(client: Client) -> None:
    asyncio.run(client.agent.containerd.start())
    client.agent.start_agent()


def says(cluster: NomadCluster, name: str, part: str) -> None:
    eventually(lambda: any(part in event for event in told(cluster, name)), f"{name} is told of {part}")


def told(cluster: NomadCluster, name: str) -> list[str]:
    found = cluster.allocation(name)
    return events(found, "w") if found else []


def test_the_disk_of_containerd(cluster: NomadCluster, tmp_path: Path) -> None:
    large = Image().with_programs("/bin/echo").layer({"data": File(os.urandom(24 << 20))}, compressed=False)
    large.config(Cmd=["/bin/echo", "hello of large"]).write_oci_archive(tmp_path / "large.tar")
    store = cluster.clients[0].agent.containerd.root / "root"
    with on_a_small_disk(cluster.clients[0], store, 16):
        cluster.ready()
        cluster.submit(job("large", "", image=f"oci-archive:{tmp_path}/large.tar", restart=TRIES))
        says(cluster, "large", "the disk with containerd's folder is full: free space on it")
        enlarge(store, 200)
        assert cluster.logs(cluster.reaches("large", "complete")["ID"]) == "hello of large\n"


_COUNTS = """
i=0; until [ -e /alloc/data/end ]; do i=$((i+1)); echo $i > /alloc/data/count; sleep 0.1; done; echo done; exit 7
"""


def test_the_disk_of_the_agent(cluster: NomadCluster) -> None:
    client = cluster.clients[0]
    filler = client.agent.folder / "state" / "filler"
    with on_a_small_disk(client, filler.parent, 4):
        cluster.ready()
        cluster.submit(job("early", _COUNTS))
        early = cluster.reaches("early", "running")["ID"]
        data = client.folder / "data" / "alloc" / early / "alloc" / "data"
        fill(filler)
        cluster.submit(job("refused", "echo hello"))
        says(cluster, "refused", "No space left on device")
        before = int((data / "count").read_text())
        eventually(lambda: int((data / "count").read_text() or 0) > before + 5, "what runs goes on")
        filler.unlink()
        cluster.ready()
        cluster.submit(job("late", "echo hello of late"))
        assert cluster.logs(cluster.reaches("late", "complete")["ID"]) == "hello of late\n"
        (data / "end").touch()
        ended = events(cluster.reaches("early", "failed"), "w")
        assert any(event.startswith("Exit Code: 7") for event in ended), ended
        assert cluster.logs(early) == "done\n"
