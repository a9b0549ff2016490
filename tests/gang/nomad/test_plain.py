"""What a plain job must be to start as a gang: one sentence for each mistake."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest

from astra_agent.errors import InvalidRequest
from astra_gang.engines.nomad.answers import Job
from astra_gang.engines.nomad.plain import asks, document, plain, promise
from astra_gang.spec import parse
from tests.house.tree import ROOT

JOB: dict[str, Any] = {
    "ID": "hello",
    "Type": "batch",
    "Meta": {"astra_start": "Gang"},
    "TaskGroups": [
        {
            "Name": "g",
            "Count": 4,
            "Constraints": [{"Operand": "distinct_hosts", "RTarget": "true"}],
            "RestartPolicy": {"Attempts": 0},
            "ReschedulePolicy": {"Attempts": 0, "Unlimited": False},
            "Tasks": [
                {
                    "Name": "w",
                    "Driver": "astra",
                    "Config": {"image": "app:1", "command": "train", "args": ["--fast", 3]},
                    "Resources": {"CPU": 5000, "MemoryMB": 64, "Devices": [{"Name": "nvidia/gpu", "Count": 8}]},
                    "KillTimeout": 7_000_000_000,
                },
                {"Name": "shipper", "Driver": "raw_exec"},
            ],
        }
    ],
}


def job(change: Any = None) -> Job:
    found = copy.deepcopy(JOB)
    if change is not None:
        change(found, found["TaskGroups"][0])
    return Job.of(found)


def test_a_job_is_a_run_of_its_name_with_what_a_worker_asks_for() -> None:
    found = plain(job())
    spec = parse(document(job(), found, 4, shares_per_core=2000.0))
    assert (spec.name, spec.start, spec.image, spec.command) == ("hello", "Gang", "app:1", ("train", "--fast", "3"))
    assert (spec.resources.gpus, spec.resources.machines) == (32, (4, 4))
    assert (spec.resources.cpu_cores, spec.resources.memory_bytes) == (2.5, 64 * 2**20)
    assert (found.task, found.count, found.stop_grace_s) == ("w", 4, 7.0)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda j, g: j.update(Type="service"), "its type is service"),
        (lambda j, g: j["TaskGroups"].append(g), "it has 2 groups"),
        (lambda j, g: g.update(Count=1), "count of group g is 1: a gang has 2 workers or more"),
        (lambda j, g: g["Tasks"][0].update(Driver="docker"), "must have driver astra, and none has"),
        (lambda j, g: g["Tasks"][1].update(Driver="astra"), "and w, shipper has"),
        (lambda j, g: g.update(Constraints=None), "operator distinct_hosts"),
        (lambda j, g: g["Constraints"][0].update(RTarget="false"), "operator distinct_hosts"),
        (lambda j, g: g.update(Networks=[{"Mode": "bridge"}]), "network mode of group g is bridge"),
        (lambda j, g: g["RestartPolicy"].update(Attempts=3), "restart a worker 3 times by itself"),
        (lambda j, g: g["Tasks"][0].update(RestartPolicy={"Attempts": 2}), "restart a worker 2 times by itself"),
        (lambda j, g: g["ReschedulePolicy"].update(Unlimited=True), "reschedule a worker by itself"),
    ],
)
def test_what_it_can_not_be_is_one_sentence_with_what_is_right(change: Any, sentence: str) -> None:
    with pytest.raises(InvalidRequest) as error:
        plain(job(change))
    assert str(error.value).startswith("Job hello can't start as a gang: ")
    assert sentence in str(error.value)


def test_hosts_may_be_told_apart_by_the_job_as_a_whole() -> None:
    def change(found: Any, group: Any) -> None:
        found["Constraints"] = group.pop("Constraints")

    assert plain(job(change)).count == 4


def test_ports_of_its_machines_are_no_hindrance() -> None:
    assert plain(job(lambda j, g: g.update(Networks=[{"Mode": ""}]))).count == 4
    assert plain(job(lambda j, g: g.update(Networks=[{"Mode": "host", "DynamicPorts": [{"Label": "a"}]}]))).count == 4


def test_who_asks_to_be_adopted() -> None:
    assert asks(job())
    assert not asks(job(lambda j, g: j.update(Meta={})))
    assert not asks(job(lambda j, g: j["Meta"].update(astra_run="hello"))), "the coordinator's own"


def test_without_a_disconnect_limit_it_is_told_what_that_means() -> None:
    assert "cut off" in promise(plain(job()))
    kept = plain(job(lambda j, g: g.update(Disconnect={"LostAfter": 300_000_000_000})))
    older = plain(job(lambda j, g: g.update(MaxClientDisconnect=300_000_000_000)))
    assert "cut off" not in promise(kept) + promise(older)


def test_the_examples_are_one_job_with_either_form_of_the_disconnect_limit() -> None:
    newer, older = (
        [line for line in (ROOT / "examples/nomad" / name).read_text().splitlines() if not line.startswith("#")]
        for name in ("gang.nomad.hcl", "gang-before-1.8.nomad.hcl")
    )
    block = r'disconnect \{\s+lost_after = "5m"\s+replace    = false\s+\}'
    text, times = re.subn(block, 'max_client_disconnect = "5m"', "\n".join(newer))
    assert (text, times) == ("\n".join(older), 1)
