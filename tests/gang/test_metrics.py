"""What Prometheus reads of a coordinator."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from astra_agent.wire import FindingFacts
from astra_gang import metrics
from astra_gang.core import Outcome, Phase, RunState
from astra_gang.engine import Machine
from tests.fakes.cluster import FakeCluster
from tests.fakes.runs import document, record
from tests.gang.cluster import machine

LINE = re.compile(r'(astra_[a-z_]+)(?:\{([a-z]+="[^"]*"(?:,[a-z]+="[^"]*")*)\})? (-?[0-9]+)')


def read(text: str) -> dict[str, int]:
    """By series; what is no line of the format fails."""
    found: dict[str, int] = {}
    for line in text.splitlines():
        if not line.startswith("# "):
            match = LINE.fullmatch(line)
            assert match is not None, line
            found[f"{match[1]}{{{match[2] or ''}}}"] = int(match[3])
    return found


def series(runs: list[RunState], machines: list[Machine]) -> dict[str, int]:
    return read(metrics.text(runs, machines, workspaces=("default", "nlp"), term=3, ok=True))


def ended(name: str) -> RunState:
    state = record(name, uid=name).state
    return replace(state, phase=Phase.ENDED, outcome=Outcome.FAILED, ended_at=1.0)


def test_runs_are_counted_by_phase_and_outcome_in_each_workspace() -> None:
    running = replace(record("one").state, phase=Phase.RUNNING, attempt=2)
    found = series([running, record("two", uid="u2", workspace="nlp").state, ended("three"), ended("four")], [])
    assert found['astra_runs{workspace="default",phase="Running"}'] == 1
    assert found['astra_runs{workspace="nlp",phase="Pending"}'] == 1
    assert found['astra_runs{workspace="nlp",phase="Running"}'] == 0
    assert found['astra_runs_ended{workspace="default",outcome="Failed"}'] == 2
    assert found['astra_run_attempts{workspace="default",run="one"}'] == 3
    assert not [name for name in found if "three" in name], "a run that has ended has no series of its own"


def test_machines_are_counted_by_whether_work_may_go_there() -> None:
    there = [
        machine("m1", free=3),
        machine("m2", out_of_use="it is being drained"),
        replace(machine("m3"), silent=True),
        machine("m4", connected=False),
    ]
    found = series([], there)
    for state in ("usable", "out_of_use", "silent", "not_connected"):
        assert found[f'astra_machines{{state="{state}"}}'] == 1
    assert (found['astra_machine_gpus{machine="m1"}'], found['astra_machine_gpus_held{machine="m1"}']) == (8, 5)


def test_findings_are_counted_by_level() -> None:
    one = machine("m1")
    said = [FindingFacts(level=level, subject="x", sentence="y") for level in ("fault", "fault", "warning", "note")]
    found = series([], [replace(one, facts=one.facts.model_copy(update={"findings": tuple(said)}))])
    assert found['astra_machine_findings{machine="m1",level="fault"}'] == 2
    assert found['astra_machine_findings{machine="m1",level="warning"}'] == 1


def test_every_series_has_its_type_and_a_line_about_it() -> None:
    text = metrics.text([record().state], [machine("m1")], workspaces=("default",), term=1, ok=False)
    named = {name.partition("{")[0] for name in read(text)}
    assert {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")} == named
    assert {line.split()[2] for line in text.splitlines() if line.startswith("# HELP")} == named
    assert read(text)["astra_coordinator_up{}"] == 0


def test_without_word_of_the_engine_nothing_is_said_of_machines_and_the_rest_is() -> None:
    found = read(metrics.text([record().state], None, workspaces=("default",), term=3, ok=False))
    assert found["astra_engine_up{}"] == 0
    assert found["astra_coordinator_term{}"] == 3
    assert not [name for name in found if name.startswith("astra_machine")]


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[FakeCluster]:
    async with FakeCluster(tmp_path, machines=2) as made:
        await made.connected()
        yield made


async def test_prometheus_asks_with_the_operators_token(cluster: FakeCluster) -> None:
    await cluster.request("POST", "jobs", json=document(machines=2, gpus=16))
    await cluster.until_phase("running")
    async with cluster.session.get(f"{cluster.url}/v1/metrics") as answer:
        assert answer.headers["Content-Type"] == metrics.CONTENT_TYPE
        found = read(await answer.text())
    assert found['astra_runs{workspace="default",phase="Running"}'] == 1
    assert found['astra_machine_gpus_held{machine="m1"}'] == 8
    assert found["astra_coordinator_up{}"] == 1
    assert found["astra_engine_up{}"] == 1
    async with cluster.session.get(f"{cluster.url}/v1/metrics", headers={"Authorization": "Bearer wrong"}) as answer:
        assert answer.status == 401
