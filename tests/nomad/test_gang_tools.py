"""What a user does with a run on the real Nomad, by the same commands as anywhere."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.fakes.eventually import eventually
from tests.nomad.gangs import NomadGangs, nomad_gangs

pytestmark = pytest.mark.timeout(300)
SCRIPT = "echo rank $RANK of $WORLD_SIZE; getent hosts told-0 told-1; while :; do sleep 0.2; done"


@pytest.fixture(scope="module")
def gangs(binary: Path) -> Iterator[NomadGangs]:
    with nomad_gangs(binary, clients=2, policy={"stop_grace_s": 2.0}) as found:
        yield found


def written(gangs: NomadGangs, run: str, rank: int) -> list[str] | None:
    lines = gangs.astra("logs", run, str(rank)).stdout.splitlines()
    return lines if len(lines) == 3 else None


@pytest.fixture
def run(gangs: NomadGangs) -> Iterator[str]:
    """A gang of two that was submitted by flags and runs."""
    submitted = gangs.astra("run", "--name", "told", "--image", "host", "--machines", "2", "--", "sh", "-c", SCRIPT)
    assert submitted.returncode == 0, submitted
    eventually(lambda: gangs.status("told")["phase"] == "Running", "told runs")
    yield "told"
    gangs.stop_all()


def test_its_commands_say_on_nomad_what_they_say_anywhere(gangs: NomadGangs, run: str) -> None:
    machines = [item["machine"] for item in gangs.ranks(run)["items"]]
    assert gangs.astra("status", run).stdout.splitlines()[:2] == ["told: Running", "All 2 workers run"]
    for rank, machine in enumerate(machines):
        assert machine in gangs.astra("ranks", run).stdout
        lines = eventually(partial(written, gangs, run, rank), f"rank {rank} has written")
        assert lines[0] == f"rank {rank} of 2"
        assert ["told-0" in lines[1], "told-1" in lines[2]] == [True, True], lines
    assert "Starting together: 2 of 2 ready" in gangs.astra("events", run).stdout
    assert {node["name"] for node in json.loads(gangs.astra("nodes", "--json").stdout)["items"]} == set(machines)


def test_exec_is_in_the_workers_container_with_its_input_and_its_code(gangs: NomadGangs, run: str) -> None:
    done = gangs.astra("exec", "-i", run, "1", "--", "sh", "-c", "hostname; cat; exit 7", stdin="handed on\n")
    assert (done.returncode, done.stdout) == (7, "told-1\nhanded on\n")


def test_stop_ends_the_run_and_nomads_job(gangs: NomadGangs, run: str) -> None:
    job = gangs.job_of(run)
    assert gangs.astra("stop", run).returncode == 0
    gangs.ended(run, "Stopped")
    eventually(
        lambda: all(one["ClientStatus"] in ("complete", "failed") for one in gangs.cluster.allocations(job)),
        "nothing of it runs in Nomad",
    )
    assert gangs.astra("status", run).stdout.splitlines()[0] == "told: Stopped"
