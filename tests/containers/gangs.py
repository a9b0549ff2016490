"""
Gangs on a dev cluster whose workers keep a diary on a drive: asked for over HTTP, looked at in the machine's own
processes, and proved by what the workers wrote.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import tempfile
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from astra_agent.containerd import proc
from astra_agent.errors import AstraError
from astra_cli.dev import control, lock, sweep
from astra_cli.dev.requests import LinkRequest, Status
from tests.containers.dev_cluster import DevCluster, eventually, kill

Json = dict[str, Any]

WORKER = Path(__file__).with_name("diary.sh")
DRIVE = "diary"
ENDED = ("Completed", "Failed", "Stopped")


@dataclass(frozen=True, slots=True)
class Line:
    rank: int
    attempt: int
    pid: int
    word: str
    at: float
    """Seconds since 1970."""


@dataclass
class Diary:
    """What the workers of one run wrote, and the two files that they wait for."""

    folder: Path

    def __post_init__(self) -> None:
        self.folder.mkdir()

    def lines(self, word: str = "") -> list[Line]:
        with suppress(FileNotFoundError):
            rows = (line.split() for line in (self.folder / "lines").read_text().splitlines())
            found = [Line(int(rank), int(attempt), int(pid), said, float(at)) for rank, attempt, pid, said, at in rows]
            return [line for line in found if word in ("", line.word)]
        return []

    def ranks(self, word: str, attempt: int) -> list[int]:
        return sorted(line.rank for line in self.lines(word) if line.attempt == attempt)

    def finish(self) -> None:
        """Every worker ends by itself with code 0."""
        (self.folder / "finish").touch()

    def let_go(self) -> None:
        """Every worker that is asked to stop does so at once."""
        (self.folder / "let-go").touch()


@dataclass
class Gangs:
    """
    Args:
        drive: The folder that the cluster has as the drive `diary`.
    """

    cluster: DevCluster
    drive: Path
    target: Json = field(default_factory=dict)

    def start(self, *words: str) -> None:
        self.drive.mkdir(parents=True, exist_ok=True)
        (self.drive / WORKER.name).write_bytes(WORKER.read_bytes())
        (self.drive / WORKER.name).chmod(0o755)
        self.cluster.start("--drive", f"{DRIVE}={self.drive}", *words)
        self.find()

    def find(self) -> None:
        """Where the cluster's API is now."""
        self.target = json.loads(self.cluster.layout.client_file.read_text())

    # Over HTTP ----------------------------------------------------------------------------------------------------

    def ask(self, path: str, document: object = None, *, method: str = "", token: str | None = None) -> tuple[int, Any]:
        """Status and JSON of an answer. *path* is below /v1. Raises: OSError when nobody answers."""
        body = document if isinstance(document, bytes) else None if document is None else json.dumps(document).encode()
        headers = {"Authorization": f"Bearer {self.target['token'] if token is None else token}"}
        url = f"{self.target['api']}/v1{path}"
        request = urllib.request.Request(url, body, headers, method=method or ("POST" if body is not None else "GET"))
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.loads(error.read())

    def known(self, path: str) -> Json:
        """The document at *path*, asked for again while the coordinator is away."""
        found: Json = {}

        def answered() -> bool:
            with suppress(OSError, json.JSONDecodeError):
                status, document = self.ask(path)
                assert status == 200, document
                found.update(document)
                return True
            return False

        eventually(answered, f"the coordinator answers at {path}")
        return found

    def submit(self, name: str, machines: int = 4, *, image: str = "host", **template: Any) -> Diary:
        """Submit a gang of diary keepers."""
        diary = Diary(self.drive / name)
        status, answer = self.ask("/workspaces/default/jobs", self.document(name, machines, image=image, **template))
        assert status == 201, answer
        return diary

    def document(self, name: str, machines: int, *, image: str = "host", **template: Any) -> Json:
        values = {
            "image": image,
            "command": f"/{DRIVE}/{WORKER.name}",
            "env": {"DIARY": f"/{DRIVE}/{name}"},
            "datavolume_refs": [{"name": DRIVE, "mount_path": f"/{DRIVE}"}],
            "requested_resources": {"machines": machines},
        }
        return {"metadata": {"name": name}, "spec": {"start": "Gang", "task_template": values | template}}

    def stop(self, name: str) -> None:
        status, answer = self.ask(f"/workspaces/default/jobs/{name}/stop", method="POST")
        assert status == 202, answer

    def stop_all(self) -> None:
        """What a test that failed has left running."""
        for job in self.known("/workspaces/default/jobs")["items"]:
            if job["status"]["phase"] not in ENDED:
                with suppress(FileNotFoundError):
                    (self.drive / job["metadata"]["name"] / "let-go").touch()
                self.stop(job["metadata"]["name"])
        self.settled()

    def status(self, name: str) -> Json:
        found: Json = self.known(f"/workspaces/default/jobs/{name}")["status"]
        return found

    def ranks(self, name: str, attempt: int | None = None) -> Json:
        query = "" if attempt is None else f"?attempt={attempt}"
        return self.known(f"/workspaces/default/jobs/{name}/ranks{query}")

    def sentences(self, name: str) -> list[str]:
        return [item["sentence"] for item in self.known(f"/workspaces/default/jobs/{name}/events")["items"]]

    def machines(self) -> dict[str, Json]:
        return {item["name"]: item for item in self.known("/machines")["items"]}

    def until(self, name: str, met: Callable[[Json], object], what: str) -> Json:
        """The first status of the run that *met* holds for."""
        seen: list[Json] = []

        def now() -> object:
            seen[:] = [self.status(name)]
            return met(seen[0])

        try:
            eventually(now, what)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{json.dumps(seen, indent=1)}\n{self.story(name)}") from None
        return seen[0]

    def ended(self, name: str, phase: str) -> Json:
        status = self.until(name, lambda status: status["phase"] in ENDED, f"{name} ends")
        assert status["phase"] == phase, f"{json.dumps(status, indent=1)}\n{self.story(name)}"
        return status

    def running(self, name: str, diary: Diary, attempt: int = 0) -> Json:
        """The run once it runs, in this attempt or a later one, and every worker has said so itself."""
        status = self.until(
            name, lambda status: status["phase"] == "Running" and status["attempt"] >= attempt, f"{name} runs"
        )
        every = [worker["rank"] for worker in status["workers"]]
        eventually(lambda: diary.ranks("start", status["attempt"]) == every, f"every worker of {name} has begun")
        return status

    def story(self, name: str) -> str:
        """For the message of a test that failed."""
        events = "\n".join(self.sentences(name))
        return f"{events}\n{self.cluster.logs()}"

    def settled(self) -> None:
        """Every daemon is there and no machine has a slot: what came before does not show in what follows."""

        def empty() -> bool:
            machines = self.machines().values()
            return self.daemons()["containerd"] != 0 and all(
                machine["connected"] and not machine["slots"] and machine["out_of_use"] is None for machine in machines
            )

        eventually(empty, "every machine is connected and empty")

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

    def cgroup(self, name: str, rank: int, attempt: int) -> str:
        items = self.ranks(name)["items"]
        return f"{self.cluster.layout.machine_cgroup(items[rank]['machine'])}/{items[rank]['slot']}-a{attempt}"

    def program(self, name: str, rank: int, attempt: int) -> int:
        """Process ID of a worker's program; of an armed worker, of what will become its first process."""
        pids = proc.Cgroups.of_this_machine().processes(self.cgroup(name, rank, attempt))
        started = [pid for pid in pids if not proc.is_init(pid)]
        assert pids, f"attempt {attempt} of rank {rank} of {name} has no process"
        return min(started or pids)

    def shim(self, name: str, rank: int, attempt: int) -> int:
        item = self.ranks(name)["items"][rank]
        container = f"{item['slot']}-a{attempt}".encode()
        shims = sweep.shims(self.cluster.layout.containerd_namespace(item["machine"]))
        (found,) = (pid for pid in shims if container in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"))
        return found

    def workers_left(self) -> list[int]:
        """Processes of any worker on any machine."""
        return sweep.cgroup_processes(self.cluster.layout.cgroup)

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


@contextmanager
def held(pid: int) -> Iterator[Callable[[], None]]:
    """The process stands still until the end of the block, or until what this gives is called."""

    def go_on() -> None:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)

    os.kill(pid, signal.SIGSTOP)
    try:
        yield go_on
    finally:
        go_on()


def wall(time_text: str) -> float:
    """RFC 3339 to seconds since 1970."""
    return datetime.fromisoformat(time_text).timestamp()


def check_nothing_started_twice(gangs: Gangs, name: str, diary: Diary) -> None:
    """
    By what the workers themselves wrote: nobody started twice in an attempt, nobody ran beside an older self, no
    attempt began after a later one, and none before its barrier opened for all.
    """
    lines = diary.lines()
    starts = [line for line in lines if line.word == "start"]
    twice = {who: n for who, n in Counter((line.rank, line.attempt) for line in starts).items() if n > 1}
    assert not twice, f"(rank, attempt) started more than once: {twice}\n{gangs.story(name)}"
    assert [line for line in lines if line.word == "overlap"] == []
    for rank in {line.rank for line in starts}:
        attempts = [line.attempt for line in starts if line.rank == rank]
        assert attempts == sorted(attempts)
    for number in sorted({line.attempt for line in starts}):
        found = gangs.ranks(name, number)
        assert found["opened_at"] is not None, f"attempt {number} ran and its barrier never opened"
        assert all(line.at >= wall(found["opened_at"]) for line in starts if line.attempt == number)


def pause(seconds: float) -> None:
    """For what must *not* happen meanwhile."""
    time.sleep(seconds)
