"""Spares on the real Nomad: surplus count of the run's one job, and a worker that moves onto one by itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.eventually import eventually
from tests.nomad.gangs import NomadGangs, nomad_gangs
from tests.runs_over_http import check_nothing_started_twice

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def gangs(binary: Path) -> Iterator[NomadGangs]:
    with nomad_gangs(binary, policy={"stop_grace_s": 2.0}) as found:
        yield found


def test_a_worker_of_a_drained_machine_takes_the_spare_and_nomad_places_nothing(gangs: NomadGangs) -> None:
    diary = gangs.submit("spared", 3, spares=1)
    diary.let_go()
    gangs.running("spared", diary)
    job = gangs.job_of("spared")
    assert len(gangs.running_allocations(job)) == 4
    groups = gangs.cluster.asked(f"/v1/job/{job}")["TaskGroups"]
    assert [group["Count"] for group in groups] == [4]
    (spare,) = gangs.status("spared")["spares"]
    left = gangs.ranks("spared")["items"][1]["machine"]
    gangs.nomad_node("drain", "-enable", "-deadline", "1m", left)
    gangs.running("spared", diary, attempt=1)
    items = gangs.ranks("spared")["items"]
    assert items[1]["machine"] == spare["machine"]
    assert f"spared-1 takes the spare on {spare['machine']}" in gangs.sentences("spared")
    assert gangs.cluster.allocations(gangs.job_of("spared", 1)) == [], "no other job was placed for it"
    diary.finish()
    gangs.ended("spared", "Completed")
    check_nothing_started_twice(gangs, "spared", diary)


def test_a_spare_that_was_not_needed_completes_with_its_run(gangs: NomadGangs) -> None:
    for machine in gangs.machines():
        gangs.nomad_node("drain", "-disable", machine)
        gangs.nomad_node("eligibility", "-enable", machine)
    gangs.settled_again()
    diary = gangs.submit("unneeded", 3, spares=1)
    gangs.running("unneeded", diary)
    diary.finish()
    gangs.ended("unneeded", "Completed")
    job = gangs.job_of("unneeded")
    eventually(
        lambda: [one["ClientStatus"] for one in gangs.cluster.allocations(job)] == ["complete"] * 4,
        "Nomad calls all of it complete",
    )
