"""
A coordinator on a Nomad cluster of the tests, and gangs on it whose workers keep a diary: asked for over the
coordinator's HTTP, looked at in Nomad, and proved by what the workers wrote.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from astra_agent.containerd import proc
from tests.containers.gate import GatedRegistry, gated_registry
from tests.containers.images import File, Image
from tests.fakes.eventually import PATIENCE_S, eventually
from tests.nomad.cluster import LINK_PORT, Client, NomadCluster, events, link_address, made
from tests.runs_over_http import DRIVE, Diary, Json, RunsOverHttp

OPERATOR, AGENT = "operator-of-the-test", "agents-of-the-test"


class Coordinator:
    """A process in the cluster's network namespace, with its API in the test's own."""

    def __init__(
        self,
        cluster: NomadCluster,
        name: str = "coordinator",
        policy: dict[str, float] | None = None,
        engine: Mapping[str, str] | None = None,
        **settings: Any,
    ) -> None:
        self._policy = policy or {}
        self._engine = engine or {}
        self.cluster = cluster
        self.folder = cluster.folder / name
        self.log = self.folder / "coordinator.log"
        self.port = _free_port()
        self._settings = settings
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.folder.mkdir(exist_ok=True)
        for name, token in (("operator", OPERATOR), ("agent", AGENT)):
            (self.folder / f"{name}.token").write_text(token)
            (self.folder / f"{name}.token").chmod(0o600)
        (self.folder / "coordinator.toml").write_text(self._configuration())
        command = (
            "nsenter", f"--net={self.cluster.netns}", sys.executable, "-m", "astra_gang.main",
            "--config", str(self.folder / "coordinator.toml"),
        )  # fmt: skip
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(command, stderr=log, stdin=subprocess.DEVNULL)

    def kill(self) -> None:
        self.send(signal.SIGKILL)

    def stop(self) -> None:
        self.send(signal.SIGTERM)

    def send(self, number: signal.Signals) -> None:
        """Returns once it has ended."""
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(30)
            self._process = None

    def serves(self) -> bool:
        return self.health()[0] == 200

    def health(self) -> tuple[int, str]:
        """Status and sentence; 0 while nobody answers."""
        with suppress(OSError, ValueError):
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/v1/health", timeout=5) as answer:
                    return answer.status, json.loads(answer.read())["status"]
            except urllib.error.HTTPError as error:
                with error:
                    return error.code, json.loads(error.read())["status"]
        return 0, ""

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def _listen(self) -> list[str]:
        return [f"{link_address(client.folder.name)}:{LINK_PORT}" for client in self.cluster.clients]

    def _configuration(self) -> str:
        address = f"http://127.0.0.1:{self.cluster.http}"
        engine = {"kind": "nomad", "address": address, "prefix": "astra"} | dict(self._engine)
        lines = [
            f'operator_token_file = "{self.folder}/operator.token"',
            f'agent_token_file = "{self.folder}/agent.token"',
            f"listen = {json.dumps(self._listen())}",
            f'drives = ["{DRIVE}"]',
            *(f"{name} = {json.dumps(value)}" for name, value in self._settings.items()),
            "[[listen_netns]]",
            f'netns = "/proc/{os.getpid()}/ns/net"',
            f'address = "127.0.0.1:{self.port}"',
            "[engine]",
            *(f"{name} = {json.dumps(value)}" for name, value in engine.items()),
            "[policy]",
            *(f"{name} = {value}" for name, value in {"backoff_first_s": 0.2, **self._policy}.items()),
        ]
        return "\n".join(lines) + "\n"


class NomadGangs(RunsOverHttp):
    def __init__(self, cluster: NomadCluster, drive: Path, coordinator: Coordinator) -> None:
        super().__init__(drive)
        self.cluster = cluster
        self.coordinator = coordinator
        self.bring_worker()

    def api(self) -> tuple[str, str]:
        return f"http://127.0.0.1:{self.coordinator.port}", OPERATOR

    def log(self) -> str:
        return "\n".join(self.coordinator.log.read_text().splitlines()[-80:])

    def is_whole(self, machines: dict[str, Json]) -> bool:
        return len(machines) == len(self.cluster.clients)

    def astra(self, *words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """A command of a user."""
        url, token = self.api()
        environment = {**os.environ, "ASTRA_API": url, "ASTRA_TOKEN": token, "NO_COLOR": "1"}
        command = (str(Path(sys.executable).parent / "astra"), *words)
        return subprocess.run(
            command, input=stdin, capture_output=True, text=True, env=environment, timeout=PATIENCE_S, check=False
        )

    def link(self, machine: str, *, up: bool) -> None:
        self.cluster.cut(machine, off=not up)

    def agent_pid(self, machine: str) -> int:
        return self.client(machine).agent.pid

    def adopt(self, name: str, text: str) -> Diary:
        """A diary keepers' gang as a plain job: `nomad job run`."""
        diary = Diary(self.drive / name)
        self.run_job(text)
        return diary

    def run_job(self, text: str) -> None:
        ran = self.cluster.submit(text)
        assert ran.code == 0, ran

    def is_there(self, name: str) -> bool:
        """A run of this name, ended or not."""
        with suppress(OSError):
            return bool(self.ask(f"/workspaces/default/jobs/{name}")[0] == 200)
        return False

    def version(self) -> str:
        """Of Nomad."""
        return self.cluster.version()

    def told(self, allocation: str, task: str = "w") -> list[str]:
        """The task's events, oldest first."""
        return events(self.cluster.nomad_allocation(allocation), task)

    # In Nomad -----------------------------------------------------------------------------------------------------

    def job_of(self, name: str, reservation: int = 0) -> str:
        uid = self.known(f"/workspaces/default/jobs/{name}")["metadata"]["uid"]
        return f"{name}-{uid}-{reservation}"

    def running_allocations(self, job: str, count: int = 4) -> list[str]:
        """IDs, once Nomad calls this many running."""

        def found() -> list[str] | None:
            running = [a["ID"] for a in self.cluster.allocations(job) if a["ClientStatus"] == "running"]
            return sorted(running) if len(running) == count else None

        ids: list[str] = eventually(found, f"Nomad calls {count} allocations of {job} running")
        return ids

    def client_status(self, run: str, machine: str) -> str:
        """Of the run's allocation on this machine; empty when there is none."""
        found = [a["ClientStatus"] for a in self.cluster.allocations(self.job_of(run)) if a["NodeName"] == machine]
        return str(found[0]) if found else ""

    def nomad_node(self, action: str, *words: str) -> None:
        """*words*: flags, then the machine."""
        *flags, machine = words
        more = ("-detach", "-yes") if action == "drain" else ()
        self.cluster.nomad("node", action, *flags, *more, self.cluster.node_id(machine))

    def evaluations(self, job: str) -> int:
        """How many there have been for the job."""
        text = self.cluster.nomad("operator", "api", "-X", "GET", f"/v1/job/{job}/evaluations")
        return len(json.loads(text))

    # Processes ----------------------------------------------------------------------------------------------------

    def program(self, name: str, rank: int, attempt: int = 0) -> int:
        """Process ID of a worker's program."""
        machine = self.ranks(name)["items"][rank]["machine"]
        return next(pid for pid in self.client(machine).agent.attempt(attempt) if not proc.is_init(pid))

    def client(self, machine: str) -> Client:
        return next(client for client in self.cluster.clients if client.folder.name == machine)

    def kill(self, victim: str, machine: str) -> None:
        """`kill -9`, and started again where nobody else does it."""
        client = self.client(machine)
        if victim == "coordinator":
            self.coordinator.kill()
            self.coordinator.start()
        elif victim == "server":
            (server,) = self.cluster.servers
            server.kill()
            server.start()
        elif victim == "client":
            client.kill_client()
            client.start_client()
        elif victim == "driver":
            client.kill_plugins()
        elif victim == "containerd":
            client.agent.containerd.kill()
            asyncio.run(client.agent.containerd.start())
        else:
            client.agent.kill()
            client.agent.start_agent()

    def settled_again(self) -> None:
        """Every machine is connected and every node ready, whatever runs."""

        def back() -> bool:
            machines = self.machines().values()
            return len(machines) == len(self.cluster.clients) and all(
                machine["connected"] and machine["out_of_use"] is None for machine in machines
            )

        eventually(back, "every machine is back")
        self.cluster.ready()


@contextmanager
def registry_of_workers() -> Iterator[GatedRegistry]:
    with tempfile.TemporaryDirectory(prefix="astra-registry-", dir="/var/tmp") as folder:
        with gated_registry(Path(folder)) as found:
            yield found


def worker_image() -> Image:
    """What a keeper of a diary needs, and a megabyte that is in no other image."""
    programs = ("/bin/sh", "/usr/bin/flock", "/usr/bin/date", "/bin/sleep")
    return Image().with_programs(*programs).layer({"filler": File(os.urandom(1 << 20))}, compressed=False)


@contextmanager
def nomad_gangs(
    binary: Path,
    clients: int = 4,
    policy: dict[str, float] | None = None,
    *,
    cluster: Mapping[str, Any] | None = None,
    engine: Callable[[NomadCluster], Mapping[str, str]] = lambda _: {},
    **settings: Any,
) -> Iterator[NomadGangs]:
    """
    A cluster with a coordinator of these settings, of which nothing is left afterwards.

    Args:
        cluster: What is special about it.
        engine: `[engine]` of the coordinator beside what it always has.
    """
    with tempfile.TemporaryDirectory(prefix="astra-diary-", dir="/var/tmp") as drive:
        token = Path(drive) / "agent.token"
        token.write_text(AGENT)
        agents = {"coordinator": "each machine's own", "token_file": str(token), "drives": {DRIVE: drive}}
        with made(binary, clients=clients, agents=agents, mounts=(drive,), **(cluster or {})) as started:
            coordinator = Coordinator(started, policy=policy, engine=engine(started), **settings)
            coordinator.start()
            found = NomadGangs(started, Path(drive), coordinator)
            try:
                found.settled()
                yield found
            finally:
                found.coordinator.kill()


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port
