"""Watching a run goes on through a coordinator that is started again, and ends without touching the run."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from astra_cli.client import Client
from astra_cli.context import Target
from astra_cli.documents import Event, Job
from astra_cli.follow import Lines, follow_run, happened_before
from tests.fakes.api import TOKEN, FakeApi, event, job
from tests.fakes.eventually import until


class Notes:
    """Remembers what it is told."""

    def __init__(self) -> None:
        self.phases: list[str] = []
        self.events: list[str] = []
        self.lines: list[str] = []
        self.notes: list[str] = []

    def phase(self, job: Job, document: dict[str, Any]) -> None:
        if self.phases[-1:] != [job.status.phase]:
            self.phases.append(job.status.phase)

    def event(self, event: Event, document: dict[str, Any]) -> None:
        self.events.append(event.sentence)

    def log(self, line: str) -> None:
        self.lines.append(line)

    def note(self, sentence: str) -> None:
        self.notes.append(sentence)


def client(api: FakeApi) -> Client:
    return Client(Target(api.url, TOKEN, "default", "the test"))


async def test_a_restart_of_the_coordinator_is_said_and_nothing_is_told_twice(api: FakeApi) -> None:
    api.events = [event(1, "first")]
    notes = Notes()
    async with client(api) as talking:
        following = asyncio.create_task(follow_run(talking, "first-gang", notes))
        await until(lambda: notes.events, "the first event")
        await asyncio.to_thread(api.stop)
        await until(lambda: notes.notes, "the coordinator is missed")
        api.events = [event(1, "first"), event(2, "second")]
        api.job = job(phase="Completed")
        await asyncio.to_thread(api.start)
        ended = await asyncio.wait_for(following, 20)
    assert ended.status.phase == "Completed"
    assert notes.events == ["first", "second"]
    assert notes.notes == [
        "the coordinator does not answer; the run goes on without it, waiting for it to be back",
        "going on",
    ]


async def test_each_attempts_log_is_told_once(api: FakeApi) -> None:
    api.logs = {0: b"zero\n", 1: b"one\n"}
    notes = Notes()
    async with client(api) as talking:
        following = asyncio.create_task(follow_run(talking, "first-gang", notes))
        await until(lambda: notes.lines == ["zero"], "attempt 0's log")
        api.job = job(phase="Starting", attempt=1)
        await until(lambda: "Starting" in notes.phases, "the restart")
        api.job = job(phase="Completed", attempt=1)
        await asyncio.wait_for(following, 20)
    assert notes.lines == ["zero", "one"]


async def test_the_log_of_an_attempt_that_ended_between_two_polls_is_told(api: FakeApi) -> None:
    api.job = job(phase="Starting", attempt=0)
    api.logs = {0: b"ImportError: no module\n", 1: b"one\n"}
    notes = Notes()
    async with client(api) as talking:
        following = asyncio.create_task(follow_run(talking, "first-gang", notes))
        await until(lambda: "Starting" in notes.phases, "the start")
        api.job = job(phase="Starting", attempt=1)
        await until(lambda: notes.lines, "the log of the attempt that was never seen to run")
        api.job = job(phase="Completed", attempt=1)
        await asyncio.wait_for(following, 20)
    assert notes.lines == ["ImportError: no module", "one"]


@pytest.mark.parametrize(
    ("reason", "sentences", "before"),
    [
        ("Looking for machines", ["Submitted", "Placed: m-1"], 0),
        ("Starting together: 0 of 2 ready", ["Placed", "Starting together: 0 of 2 ready", "All 2 workers run"], 2),
        ("Gang restart: a-1 failed. Attempt 1 starts later", ["Worker a-1 failed", "Gang restart: a-1 failed."], 2),
        ("one machine: m-1", ["Submitted", "Placed: one machine: m-1", "a-0 is being prepared"], 2),
        ("All 2 workers run", [], 0),
    ],
)
def test_a_phase_stands_where_it_began(reason: str, sentences: list[str], before: int) -> None:
    events = [Event.model_validate(event(n, sentence)) for n, sentence in enumerate(sentences)]
    assert happened_before(Job.model_validate(job(reason=reason)), events) == before


async def test_the_end_of_a_run_is_told_after_its_log(api: FakeApi) -> None:
    api.job = job(phase="Completed", reason="All 2 workers completed")
    api.events = [
        event(n, sentence) for n, sentence in enumerate(("Submitted", "All 2 workers completed", "Completed"), 1)
    ]
    api.logs = {0: b"zero\n"}
    story: list[str] = []

    class Teller(Notes):
        def event(self, event: Event, document: dict[str, Any]) -> None:
            story.append(event.sentence)

        def log(self, line: str) -> None:
            story.append(line)

    async with client(api) as talking:
        await asyncio.wait_for(follow_run(talking, "first-gang", Teller()), 20)
    assert story == ["Submitted", "zero", "All 2 workers completed", "Completed"]


def test_lines_are_whole_whatever_pieces_they_come_in() -> None:
    lines = Lines()
    assert lines.feed(b"a\xc3") == []
    assert lines.feed(b"\xa9\r\nb\n\nc") == ["aé", "b", ""]
    assert lines.rest() == ["c"]
    assert lines.rest() == []


def test_ctrl_c_leaves_the_run_running_and_says_so(api: FakeApi, tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text('{"metadata": {"name": "first-gang"}, "spec": {}}')
    command = [sys.executable, "-m", "astra_cli.main", "run", str(tmp_path / "run.json"), "--follow"]
    with subprocess.Popen(
        command, env=os.environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stdout.readline().startswith("Running")
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert err == "first-gang goes on: `astra status first-gang` shows it, `astra stop first-gang` ends it\n"
