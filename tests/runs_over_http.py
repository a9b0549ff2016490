"""
Gangs on a real coordinator, asked for as users do, over its HTTP API; their workers keep a diary on a drive, which
proves what happened to them.
"""

from __future__ import annotations

import json
import os
import signal
import urllib.error
import urllib.request
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from tests.fakes.eventually import eventually

Json = dict[str, Any]

WORKER = Path(__file__).parent / "containers" / "diary.sh"
DRIVE = "diary"
ENDED = ("Completed", "Failed", "Stopped")
_JOBS = "/workspaces/default/jobs"


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
    """What the workers of one run wrote, and the files that they look for."""

    folder: Path
    calls: int = 0

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

    def work_on(self, *gone: int, attempt: int = 0) -> None:
        """Returns once every worker that began the attempt, but for those *gone*, has answered a call of now."""
        self.calls += 1
        (self.folder / "calling").write_text(f"{self.calls}\n")
        (self.folder / "calling").rename(self.folder / "call")
        wanted = [rank for rank in self.ranks("start", attempt) if rank not in gone]
        assert wanted
        assert self.ranks("end", attempt) == []
        eventually(lambda: self.ranks(f"here-{self.calls}", attempt) == wanted, f"all but {gone} answer")

    def let_go(self) -> None:
        """Every worker that is asked to stop does so at once."""
        (self.folder / "let-go").touch()


class RunsOverHttp(ABC):
    """
    Args:
        drive: The folder that every machine has as the drive `diary`.
    """

    def __init__(self, drive: Path) -> None:
        self.drive = drive

    @abstractmethod
    def api(self) -> tuple[str, str]:
        """Where the coordinator's API is now, and its operator's token."""

    @abstractmethod
    def log(self) -> str:
        """What its daemons have written, for the message of a test that failed."""

    @abstractmethod
    def is_whole(self, machines: dict[str, Json]) -> bool:
        """Whether all that there should be is there."""

    @abstractmethod
    def link(self, machine: str, *, up: bool) -> None:
        """Cut a machine's agent off from the coordinator, or end that."""

    @abstractmethod
    def agent_pid(self, machine: str) -> int: ...

    @abstractmethod
    def program(self, name: str, rank: int, attempt: int) -> int:
        """Process ID of a worker's program."""

    def bring_worker(self) -> None:
        """The program that keeps a diary is on the drive."""
        self.drive.mkdir(parents=True, exist_ok=True)
        (self.drive / WORKER.name).write_bytes(WORKER.read_bytes())
        (self.drive / WORKER.name).chmod(0o755)

    def ask(self, path: str, document: object = None, *, method: str = "", token: str | None = None) -> tuple[int, Any]:
        """Status and JSON of an answer. *path* is below /v1. Raises: OSError when nobody answers."""
        url, own = self.api()
        body = document if isinstance(document, bytes) else None if document is None else json.dumps(document).encode()
        headers = {"Authorization": f"Bearer {own if token is None else token}"}
        method = method or ("POST" if body is not None else "GET")
        request = urllib.request.Request(f"{url}/v1{path}", body, headers, method=method)
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

    # Runs ---------------------------------------------------------------------------------------------------------

    def submit(self, name: str, machines: int = 4, *, spares: int = 0, **template: Any) -> Diary:
        """Submit a gang of diary keepers."""
        diary = Diary(self.drive / name)
        document = self.document(name, machines, **template)
        if spares:
            document["spec"]["spares"] = spares
        status, answer = self.ask(_JOBS, document)
        assert status == 201, answer
        return diary

    def document(self, name: str, machines: int, **template: Any) -> Json:
        values = {
            "image": "host",
            "command": f"/{DRIVE}/{WORKER.name}",
            "env": {"DIARY": f"/{DRIVE}/{name}", "ODD": "${RANK} %{x}"},
            "datavolume_refs": [{"name": DRIVE, "mount_path": f"/{DRIVE}"}],
            "requested_resources": {"machines": machines},
        }
        return {"metadata": {"name": name}, "spec": {"start": "Gang", "task_template": values | template}}

    def stop(self, name: str) -> None:
        status, answer = self.ask(f"{_JOBS}/{name}/stop", method="POST")
        assert status == 202, answer

    def stop_all(self) -> None:
        """What a test that failed has left running."""
        for job in self.known(_JOBS)["items"]:
            if job["status"]["phase"] not in ENDED:
                with suppress(FileNotFoundError):
                    (self.drive / job["metadata"]["name"] / "let-go").touch()
                self.stop(job["metadata"]["name"])
        self.settled()

    def status(self, name: str) -> Json:
        found: Json = self.known(f"{_JOBS}/{name}")["status"]
        return found

    def ranks(self, name: str, attempt: int | None = None) -> Json:
        return self.known(f"{_JOBS}/{name}/ranks" + ("" if attempt is None else f"?attempt={attempt}"))

    def sentences(self, name: str) -> list[str]:
        return [item["sentence"] for item in self.known(f"{_JOBS}/{name}/events")["items"]]

    def machines(self) -> dict[str, Json]:
        return {item["name"]: item for item in self.known("/machines")["items"]}

    # What is waited for -------------------------------------------------------------------------------------------

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
        return "\n".join([*self.sentences(name), self.log()])

    def settled(self) -> None:
        """Everything is there and no machine has a slot: what came before does not show in what follows."""

        def empty() -> bool:
            machines = self.machines()
            return self.is_whole(machines) and all(
                machine["connected"] and not machine["slots"] and machine["out_of_use"] is None
                for machine in machines.values()
            )

        eventually(empty, "every machine is connected and empty")


def workers(status: Json) -> list[str]:
    """Their states, in order of rank."""
    return [worker["state"] for worker in status["workers"]]


def armed_but_one(runs: RunsOverHttp, name: str, stack: ExitStack) -> Diary:
    """
    A gang of four whose workers are all armed, but for rank 3, whose agent stands still until *stack* is left. Rank 0
    is cut off until that agent does, so that nothing is armed before.
    """
    runs.link("m-1", up=False)
    stack.callback(runs.link, "m-1", up=True)
    diary = runs.submit(name)
    diary.let_go()
    runs.until(name, lambda status: workers(status)[1:] == ["ReadyToStart"] * 3, "all others are ready")
    stack.enter_context(held(runs.agent_pid("m-4")))
    runs.link("m-1", up=True)
    runs.until(name, lambda status: workers(status) == [*["Armed"] * 3, "ReadyToStart"], "all others are armed")
    return diary


def restarting_but_one(runs: RunsOverHttp, name: str, stack: ExitStack) -> None:
    """
    A gang of four that runs, and lets go, restarts, since rank 0 is killed: all are armed again, but for rank 3, whose
    agent stands still until *stack* is left, so that the next attempt can't be armed whole.
    """
    stack.enter_context(held(runs.agent_pid("m-4")))
    os.kill(runs.program(name, 0, 0), signal.SIGKILL)
    runs.until(
        name,
        lambda status: status["attempt"] == 1 and workers(status) == [*["Armed"] * 3, "Stopping"],
        "the others are armed again",
    )


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


def check_nothing_started_twice(runs: RunsOverHttp, name: str, diary: Diary) -> None:
    """
    By what the workers themselves wrote: nobody started twice in an attempt, nobody ran beside an older self, no
    attempt began after a later one, and none before its barrier opened for all.
    """
    lines = diary.lines()
    starts = [line for line in lines if line.word == "start"]
    twice = {who: n for who, n in Counter((line.rank, line.attempt) for line in starts).items() if n > 1}
    assert not twice, f"(rank, attempt) started more than once: {twice}\n{runs.story(name)}"
    assert [line for line in lines if line.word == "overlap"] == []
    for rank in {line.rank for line in starts}:
        attempts = [line.attempt for line in starts if line.rank == rank]
        assert attempts == sorted(attempts)
    for number in sorted({line.attempt for line in starts}):
        found = runs.ranks(name, number)
        assert found["opened_at"] is not None, f"attempt {number} ran and its barrier never opened"
        assert all(line.at >= wall(found["opened_at"]) for line in starts if line.attempt == number)
