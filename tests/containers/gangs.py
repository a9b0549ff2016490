"""
Gangs on a dev cluster whose workers keep a diary on a drive: asked for over HTTP, looked at in the machine's own
processes, and proved by what the workers wrote.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from astra_agent.containerd import proc
from astra_agent.errors import AstraError
from astra_cli.dev import control, lock, sweep
from astra_cli.dev.requests import LinkRequest, Status
from tests import cgroups
from tests.containers.dev_cluster import DevCluster, kill
from tests.fakes.eventually import eventually
from tests.runs_over_http import DRIVE, Json, RunsOverHttp, held

BESIDE_WORKERS = ("names", "holders")
"""Cgroups of a machine's agent: for its name server, and for what keeps the ends of workers' output."""


class Gangs(RunsOverHttp):
    """Runs on a dev cluster, which has the drive."""

    def __init__(self, cluster: DevCluster, drive: Path) -> None:
        super().__init__(drive)
        self.cluster = cluster
        self.target: Json = {}

    def start(self, *words: str) -> None:
        self.bring_worker()
        self.cluster.start("--drive", f"{DRIVE}={self.drive}", *words)
        self.find()

    def find(self) -> None:
        """Where the cluster's API is now."""
        self.target = json.loads(self.cluster.layout.client_file.read_text())

    def api(self) -> tuple[str, str]:
        return self.target["api"], self.target["token"]

    def log(self) -> str:
        return self.cluster.logs()

    def is_whole(self, machines: dict[str, Json]) -> bool:
        return self.daemons()["containerd"] != 0

    # The machine's own processes ----------------------------------------------------------------------------------

    def daemons(self) -> dict[str, int]:
        """Process IDs of the coordinator, containerd, and the agents by their machine's name; 0: it does not run."""
        found = asyncio.run(control.ask(self.cluster.layout, Status()))
        agents = {machine["name"]: machine["agent"]["pid"] for machine in found["machines"]}
        return {name: found[name]["pid"] for name in ("coordinator", "containerd")} | agents

    def back(self, daemon: str, killed: int) -> None:
        """The daemon that was *killed* has been started again."""

        def is_new() -> bool:
            with suppress(AstraError):
                return self.daemons()[daemon] not in (0, killed)
            return False

        eventually(is_new, f"{daemon} runs again")

    def link(self, machine: str, *, up: bool) -> None:
        asyncio.run(control.ask(self.cluster.layout, LinkRequest(machine=machine, up=up)))

    def agent_pid(self, machine: str) -> int:
        return self.daemons()[machine]

    def cgroup(self, name: str, rank: int, attempt: int) -> str:
        items = self.ranks(name)["items"]
        return f"{self.cluster.layout.machine_cgroup(items[rank]['machine'])}/{items[rank]['slot']}-a{attempt}"

    def program(self, name: str, rank: int, attempt: int) -> int:
        """Process ID of a worker's program; of an armed worker, of what will become its first process."""
        found = proc.Cgroups.of_this_machine().processes(self.cgroup(name, rank, attempt))
        pids = cgroups.oldest_first(found)
        assert pids, f"attempt {attempt} of rank {rank} of {name} has no process"
        return next((pid for pid in pids if not proc.is_init(pid)), pids[0])

    def shim(self, name: str, rank: int, attempt: int) -> int:
        item = self.ranks(name)["items"][rank]
        container = f"{item['slot']}-a{attempt}".encode()
        shims = sweep.shims(self.cluster.layout.containerd_namespace(item["machine"]))
        (found,) = (pid for pid in shims if container in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"))
        return found

    def workers_left(self, *machines: str) -> list[int]:
        """Processes of any worker there. A machine's name server runs on for a while after its last slot."""
        found: set[int] = set()
        for machine in machines or tuple(self.machines()):
            top = self.cluster.layout.machine_cgroup(machine)
            beside = (proc.Cgroups.of_this_machine().processes(f"{top}/{name}") for name in BESIDE_WORKERS)
            found |= set(sweep.cgroup_processes(top)).difference(*beside)
        return sorted(found)

    @contextmanager
    def away(self, *daemons: str) -> Iterator[None]:
        """Killed, and not started again before the end of the block, since the supervisor stands still meanwhile."""
        pids = self.daemons()
        with held(lock.holder(self.cluster.layout)):
            kill([pids[daemon] for daemon in daemons])
            yield
        for daemon in daemons:
            self.back(daemon, pids[daemon])


@contextmanager
def gangs_on_a_cluster(*words: str) -> Iterator[Gangs]:
    """A dev cluster of its own, started with *words*; nothing of it is left afterwards."""
    cluster = DevCluster(Path(tempfile.mkdtemp(prefix="astra-gangs-", dir="/tmp")))
    with tempfile.TemporaryDirectory(prefix="astra-diary-", dir="/tmp") as drive:
        try:
            gangs = Gangs(cluster, Path(drive))
            gangs.start(*words)
            yield gangs
        finally:
            cluster.remove()


def pause(seconds: float) -> None:
    """For what must *not* happen meanwhile."""
    time.sleep(seconds)
