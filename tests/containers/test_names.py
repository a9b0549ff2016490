"""
The machine's hosts file says `127.0.1.1 <its name>`, as Debian writes it, and even a worker's name. Workers find their
own address by name all the same, on the host network and on their own, with an image that brings that file along and
with one that does not; and the leader's address is one that its peers reach (H25).
"""

from __future__ import annotations

import socket
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.containers.dev_cluster import DevCluster
from tests.containers.gangs import Gangs
from tests.containers.images import Image
from tests.runs_over_http import DRIVE, Json

PYTHON = str(Path(sys.executable).resolve())
NAMES = 'echo "own $(getent ahostsv4 "$(hostname)" | cut -d" " -f1 | sort -u)"; echo "leader $MASTER_ADDR"'
MEET = """
import os, socket, sys, time
name = socket.gethostname()
print("own", socket.gethostbyname(name))
print("full", socket.gethostbyname(socket.getfqdn()))
print("leader", os.environ["MASTER_ADDR"])
place = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
if os.environ["RANK"] == "0":
    with socket.create_server((socket.gethostbyname(name), place[1])) as server:
        server.settimeout(60)
        peer, where = server.accept()
        print("met", where[0])
        peer.sendall(b"x")
else:
    for _ in range(600):
        try:
            with socket.create_connection(place, 5) as peer:
                peer.recv(1)
            break
        except OSError:
            time.sleep(0.1)
    else:
        sys.exit("the leader was not met")
    print("met", socket.gethostbyname(os.environ["ASTRAEUS_LEADER_TASK_NAME"].partition(".")[2]))
"""


@dataclass
class MisnamedCluster(DevCluster):
    """A dev cluster that sees another hosts file than the rest of this machine. *hosts* takes its place."""

    hosts: Path = field(default_factory=Path)

    def command(self, *words: str) -> list[str]:
        command = super().command(*words)
        if words[:2] != ("dev", "--detach"):
            return command
        script = f'mount --bind {self.hosts} /etc/hosts && exec "$@"'
        return ["unshare", "--mount", "sh", "-c", script, "sh", *command]


@pytest.fixture(scope="module", params=["host", "own"])
def gangs(request: pytest.FixtureRequest) -> Iterator[Gangs]:
    cluster = MisnamedCluster(Path(tempfile.mkdtemp(prefix="astra-names-", dir="/tmp")))
    with tempfile.TemporaryDirectory(prefix="astra-diary-", dir="/tmp") as folder:
        drive = Path(folder)
        cluster.hosts = drive / "hosts"
        cluster.hosts.write_text(f"127.0.0.1 localhost\n127.0.1.1 {socket.gethostname()} python-0 python-1 plain-0\n")
        (drive / "meet.py").write_text(MEET)
        Image().with_programs(
            "/bin/sh", "/bin/hostname", "/usr/bin/getent", "/usr/bin/cut", "/usr/bin/sort"
        ).write_oci_archive(drive / "image.tar")
        try:
            gangs = Gangs(cluster, drive)
            gangs.start("--machines", "2", "--network", request.param)
            yield gangs
        finally:
            cluster.remove()


def finished(gangs: Gangs, run: str, image: str, command: str, *args: str) -> list[tuple[str, Json]]:
    """Address and what it found, of each worker; the run is over."""
    gangs.submit(run, machines=2, image=image, command=command, args=list(args))
    gangs.ended(run, "Completed")
    ranks = gangs.ranks(run)["items"]
    logs = [gangs.cluster.astra("logs", run, str(item["rank"])) for item in ranks]
    return [
        (item["address"], dict(line.split(" ", 1) for line in log.splitlines()))
        for item, log in zip(ranks, logs, strict=True)
    ]


def test_image_host(gangs: Gangs) -> None:
    """The workers meet at the leader's address, which is the one that it finds by its own name."""
    (leader, zero), (other, one) = finished(gangs, "python", "host", PYTHON, f"/{DRIVE}/meet.py")
    assert not leader.startswith("127.")
    assert zero == {"own": leader, "full": leader, "leader": leader, "met": other}
    assert one == {"own": other, "full": other, "leader": leader, "met": leader}


def test_an_image_of_its_own(gangs: Gangs) -> None:
    archive = f"oci-archive:{gangs.drive / 'image.tar'}"
    (leader, zero), (other, one) = finished(gangs, "plain", archive, "sh", "-c", NAMES)
    assert zero == {"own": leader, "leader": leader}
    assert one == {"own": other, "leader": leader}


def test_a_workers_view_of_names_is_seen_from_outside(gangs: Gangs) -> None:
    """`astra dns query --as` asks the name server that the worker asks, on the worker's machine."""
    diary = gangs.submit("asked", machines=2)
    gangs.running("asked", diary)
    zero, one = (item["address"] for item in gangs.ranks("asked")["items"])
    cluster = gangs.cluster
    for asker, name, address in (("asked-0", "asked-1", one), ("asked-1", "asked", zero), ("asked-1", "asked-1", one)):
        found = cluster.json("dns", "query", name, "--as", asker)
        assert [record["data"] for record in found["records"]] == [address]
        assert found["as"] == asker
    assert "NXDOMAIN" in cluster.astra("dns", "query", "asked-2", "--as", "asked-0", code=1)
    (shown,) = cluster.json("dns", "show", "asked")["items"]
    assert shown["addresses"] == {"asked-0": [zero], "asked-1": [one]}
    refused = cluster.astra("run", "--name", "asked-1", "--image", "host", "--", "true", code=2)
    assert refused.startswith("astra: run asked-1 would have the name of worker asked-1 of run asked")
    gangs.stop("asked")
    gangs.ended("asked", "Stopped")
    assert "asked-0 has no slot now" in cluster.astra("dns", "query", "asked", "--as", "asked-0", code=2)
