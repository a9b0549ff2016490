"""
A coordinator on a Nomad cluster of the tests, and gangs on it whose workers keep a diary: asked for over the
coordinator's HTTP, looked at in Nomad, and proved by what the workers wrote.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from astra_agent.containerd import proc
from tests.containers.gangs import DRIVE, ENDED, WORKER, Diary
from tests.nomad.cluster import Client, NomadCluster, eventually

Json = dict[str, Any]
OPERATOR, AGENT = "operator-of-the-test", "agents-of-the-test"
LINK = "http://127.0.0.1:7411"
"""Where agents find a coordinator, inside the cluster's network namespace."""


class Coordinator:
    """A process in the cluster's network namespace, with its API in the test's own."""

    def __init__(self, cluster: NomadCluster, name: str = "coordinator", **settings: Any) -> None:
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
        with suppress(OSError, ValueError):
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/v1/health", timeout=5) as answer:
                return bool(answer.status == 200)
        return False

    def _configuration(self) -> str:
        engine = {"kind": "nomad", "address": f"http://127.0.0.1:{self.cluster.http}", "prefix": "astra"}
        lines = [
            f'operator_token_file = "{self.folder}/operator.token"',
            f'agent_token_file = "{self.folder}/agent.token"',
            'listen = ["127.0.0.1:7411"]',
            f'drives = ["{DRIVE}"]',
            *(f"{name} = {json.dumps(value)}" for name, value in self._settings.items()),
            "[[listen_netns]]",
            f'netns = "/proc/{os.getpid()}/ns/net"',
            f'address = "127.0.0.1:{self.port}"',
            "[engine]",
            *(f"{name} = {json.dumps(value)}" for name, value in engine.items()),
            "[policy]",
            "backoff_first_s = 0.2",
        ]
        return "\n".join(lines) + "\n"


class NomadGangs:
    """
    Args:
        drive: The folder that every machine has as the drive `diary`.
    """

    def __init__(self, cluster: NomadCluster, drive: Path, coordinator: Coordinator) -> None:
        self.cluster = cluster
        self.drive = drive
        self.coordinator = coordinator
        (drive / WORKER.name).write_bytes(WORKER.read_bytes())
        (drive / WORKER.name).chmod(0o755)

    # Over HTTP ----------------------------------------------------------------------------------------------------

    def ask(self, path: str, document: object = None, *, method: str = "") -> tuple[int, Any]:
        """Status and JSON of an answer. Raises: OSError when nobody answers."""
        body = None if document is None else json.dumps(document).encode()
        headers = {"Authorization": f"Bearer {OPERATOR}"}
        url = f"http://127.0.0.1:{self.coordinator.port}/v1{path}"
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

        eventually(f"the coordinator answers at {path}", answered)
        return found

    def submit(self, name: str, machines: int = 4, **template: Any) -> Diary:
        diary = Diary(self.drive / name)
        values = {
            "image": "host",
            "command": f"/{DRIVE}/{WORKER.name}",
            "env": {"DIARY": f"/{DRIVE}/{name}", "ODD": "${RANK} %{x}"},
            "datavolume_refs": [{"name": DRIVE, "mount_path": f"/{DRIVE}"}],
            "requested_resources": {"machines": machines},
        }
        document = {"metadata": {"name": name}, "spec": {"start": "Gang", "task_template": values | template}}
        status, answer = self.ask("/workspaces/default/jobs", document)
        assert status == 201, answer
        return diary

    def stop(self, name: str) -> None:
        status, answer = self.ask(f"/workspaces/default/jobs/{name}/stop", method="POST")
        assert status == 202, answer

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
            eventually(what, now)
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
        eventually(f"every worker of {name} has begun", lambda: diary.ranks("start", status["attempt"]) == every)
        return status

    def story(self, name: str) -> str:
        """For the message of a test that failed."""
        log = self.coordinator.log.read_text().splitlines()[-80:]
        return "\n".join([*self.sentences(name), *log])

    def settled(self) -> None:
        """Every machine is connected and has no slot."""

        def empty() -> bool:
            machines = self.machines().values()
            return len(machines) == len(self.cluster.clients) and all(
                machine["connected"] and not machine["slots"] and machine["out_of_use"] is None for machine in machines
            )

        eventually("every machine is connected and empty", empty)

    def stop_all(self) -> None:
        """What a test that failed has left running."""
        for job in self.known("/workspaces/default/jobs")["items"]:
            if job["status"]["phase"] not in ENDED:
                with suppress(FileNotFoundError):
                    (self.drive / job["metadata"]["name"] / "let-go").touch()
                self.stop(job["metadata"]["name"])
        self.settled()

    # In Nomad -----------------------------------------------------------------------------------------------------

    def job_of(self, name: str, reservation: int = 0) -> str:
        uid = self.known(f"/workspaces/default/jobs/{name}")["metadata"]["uid"]
        return f"{name}-{uid}-{reservation}"

    def running_allocations(self, job: str, count: int = 4) -> list[str]:
        """IDs, once Nomad calls this many running."""

        def found() -> list[str] | None:
            running = [a["ID"] for a in self.cluster.allocations(job) if a["ClientStatus"] == "running"]
            return sorted(running) if len(running) == count else None

        ids: list[str] = eventually(f"Nomad calls {count} allocations of {job} running", found)
        return ids

    def nomad_node(self, action: str, *words: str) -> None:
        """*words*: flags, then the machine."""
        *flags, machine = words
        nodes = {node["Name"]: node["ID"] for node in json.loads(self.cluster.nomad("node", "status", "-json"))}
        self.cluster.nomad("node", action, *flags, "-detach", "-yes", nodes[machine])

    def evaluations(self, job: str) -> int:
        """How many there have been for the job."""
        text = self.cluster.nomad("operator", "api", "-X", "GET", f"/v1/job/{job}/evaluations")
        return len(json.loads(text))

    # Processes ----------------------------------------------------------------------------------------------------

    def program(self, name: str, rank: int, attempt: int = 0) -> int:
        """Process ID of a worker's program."""
        machine = self.ranks(name)["items"][rank]["machine"]
        pids = self.client(machine).agent.pids(f"-a{attempt}")
        return min(pid for pid in pids if not proc.is_init(pid))

    def client(self, machine: str) -> Client:
        return next(client for client in self.cluster.clients if client.folder.name == machine)

    def kill(self, victim: str, machine: str) -> None:
        """`kill -9`, and started again where nobody else does it."""
        client = self.client(machine)
        if victim == "coordinator":
            self.coordinator.kill()
            self.coordinator.start()
        elif victim == "server":
            self.cluster.kill_server()
            self.cluster.start_server()
        elif victim == "client":
            client.kill_client()
            client.start_client()
        elif victim == "driver":
            for pid in client.plugin_pids():
                os.kill(pid, signal.SIGKILL)
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

        eventually("every machine is back", back)
        self.cluster.ready()


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port
