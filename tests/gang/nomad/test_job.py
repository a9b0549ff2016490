"""The job of a reservation: exactly these machines, and nothing that Nomad would do by itself."""

from __future__ import annotations

import json
from typing import Any

import pytest

from astra_agent.wire import Reservation, RunRef, SlotRequest
from astra_gang.engines.nomad.answers import Job, Node
from astra_gang.engines.nomad.job import Seat, Terms, build, escaped, limit_in, machine_ids, swapped

OLD, NEW = (1, 6, 5), (2, 0, 5)


def node(name: str, *, cores: int = 16, shares: int = 32000, gpus: int = 8) -> Node:
    instances = [{"ID": f"GPU-{name}-{i}", "Healthy": True} for i in range(gpus)]
    devices = [{"Vendor": "nvidia", "Type": "gpu", "Name": "H200", "Instances": instances}] if gpus else None
    return Node.of(
        {
            "ID": f"id-of-{name}",
            "Name": name,
            "NodeResources": {"Cpu": {"CpuShares": shares, "TotalCpuCores": cores}, "Devices": devices},
        }
    )


def seat(machine: str, *, gpus: tuple[int, ...] = (), cpu_cores: float = 2.0, **more: Any) -> Seat:
    request = SlotRequest(
        slot=f"llama-u1-{machine}",
        run=RunRef(workspace="team-a", name="llama", uid="u1"),
        worker=f"llama-{machine}",
        image="busybox:1.36",
        gpus=gpus,
        cpu_cores=cpu_cores,
        **more,
    )
    return Seat(request, node(machine), tuple(f"GPU-{machine}-{gpu}" for gpu in gpus))


def job(*seats: Seat, version: tuple[int, int, int] = NEW) -> dict[str, Any]:
    return build("u1/3", seats, Terms("gpu", version, 300.0))


def test_each_reservation_has_an_id_of_its_own_and_the_same_one_always_the_same() -> None:
    assert job(seat("m1"))["ID"] == "llama-u1-3"
    assert job(seat("m1")) == job(seat("m1"))


def test_it_is_a_batch_job_of_the_pool_in_the_namespace_of_the_workspace() -> None:
    document = job(seat("m1"))
    assert (document["Type"], document["NodePool"], document["Namespace"]) == ("batch", "gpu", "team-a")
    assert document["Datacenters"] == ["*"]
    assert document["AllAtOnce"] is True


def test_one_group_has_one_worker_on_each_of_exactly_the_chosen_nodes() -> None:
    document = job(seat("m1"), seat("m2"), seat("m3"))
    (group,) = document["TaskGroups"]
    assert group["Count"] == 3
    assert machine_ids(document) == ("id-of-m1", "id-of-m2", "id-of-m3")
    assert {"Operand": "distinct_hosts", "RTarget": "true"} in group["Constraints"]


def test_workers_of_another_size_have_a_group_of_their_own() -> None:
    document = job(seat("m1", gpus=(0, 1)), seat("m2", gpus=(0, 1)), seat("m3"))
    assert [(g["Name"], g["Count"]) for g in document["TaskGroups"]] == [("workers", 2), ("workers-2", 1)]


def test_nomad_restarts_and_reschedules_nothing() -> None:
    (group,) = job(seat("m1"))["TaskGroups"]
    assert (group["RestartPolicy"]["Attempts"], group["RestartPolicy"]["Mode"]) == (0, "fail")
    assert (group["ReschedulePolicy"]["Attempts"], group["ReschedulePolicy"]["Unlimited"]) == (0, False)


@pytest.mark.parametrize(
    ("version", "field"),
    [(OLD, "MaxClientDisconnect"), ((1, 7, 7), "MaxClientDisconnect"), ((1, 8, 0), "Disconnect"), (NEW, "Disconnect")],
)
def test_a_cut_off_machine_keeps_its_worker_in_the_words_of_the_version(
    version: tuple[int, int, int], field: str
) -> None:
    document = job(seat("m1"), version=version)
    (group,) = document["TaskGroups"]
    assert [name for name in ("MaxClientDisconnect", "Disconnect") if name in group] == [field]
    assert limit_in(Job.of(document)) == 300.0
    if field == "Disconnect":
        assert group["Disconnect"]["Replace"] is False


def test_a_version_that_drops_the_limit_is_found_out_by_reading_the_job_back() -> None:
    document = job(seat("m1"))
    document["TaskGroups"][0]["Disconnect"] = None
    assert limit_in(Job.of(document)) is None


def test_every_driver_finds_its_own_machine_s_slot_in_the_task() -> None:
    document = job(seat("m1", gpus=(0,), env={"A": "b"}), seat("m2", gpus=(7,), env={"A": "b"}))
    (task,) = document["TaskGroups"][0]["Tasks"]
    assert task["Driver"] == "astra"
    found = Reservation.model_validate_json(task["Config"]["reservation"])
    one, two = found.request("id-of-m1"), found.request("id-of-m2")
    assert (one.slot, one.worker, one.gpus) == ("llama-u1-m1", "llama-m1", (0,))
    assert (two.slot, two.worker, two.gpus, two.env) == ("llama-u1-m2", "llama-m2", (7,), {"A": "b"})


def test_what_nomad_s_client_would_take_for_a_template_arrives_as_the_user_wrote_it() -> None:
    """The client replaces `$${` by `${` and `%%{` by `%{`, and reads every other `${` as a variable of its own."""
    document = job(seat("m1", args=("echo ${RANK} %{x} $HOME $${Y}",), env={"A": "${NOMAD_ALLOC_ID}"}))
    text = document["TaskGroups"][0]["Tasks"][0]["Config"]["reservation"]
    assert "${" not in text.replace("$${", "") and "%{" not in text.replace("%%{", "")
    read = Reservation.model_validate_json(text.replace("$${", "${").replace("%%{", "%{")).common
    assert (read.args, read.env) == (("echo ${RANK} %{x} $HOME $${Y}",), {"A": "${NOMAD_ALLOC_ID}"})


def test_text_without_templates_is_left_alone() -> None:
    assert escaped('{"a": "$HOME 100 %"}') == '{"a": "$HOME 100 %"}'


def test_the_chosen_gpus_are_pinned_on_each_machine() -> None:
    (task,) = job(seat("m1", gpus=(0, 1)), seat("m2", gpus=(6, 7)))["TaskGroups"][0]["Tasks"]
    (device,) = task["Resources"]["Devices"]
    assert (device["Name"], device["Count"]) == ("nvidia/gpu", 2)
    assert device["Constraints"] == [
        {
            "LTarget": "${device.ids}",
            "Operand": "set_contains_any",
            "RTarget": "GPU-m1-0,GPU-m1-1,GPU-m2-6,GPU-m2-7",
        }
    ]


def test_gpus_that_nomad_does_not_know_are_the_book_s_affair_alone() -> None:
    without = Seat(seat("m2", gpus=(0,)).request, node("m2", gpus=0), ("GPU-m2-0",))
    (task,) = job(without)["TaskGroups"][0]["Tasks"]
    assert "Devices" not in task["Resources"]


def test_cores_become_shares_of_the_slowest_machine_so_that_it_fits_everywhere() -> None:
    slow = Seat(seat("m2").request, node("m2", cores=16, shares=16000), ())
    (task,) = job(seat("m1"), slow)["TaskGroups"][0]["Tasks"]
    assert task["Resources"]["CPU"] == 2000


def test_a_worker_without_limits_asks_for_the_least_that_nomad_takes() -> None:
    (task,) = job(seat("m1", cpu_cores=0.0))["TaskGroups"][0]["Tasks"]
    assert (task["Resources"]["CPU"], task["Resources"]["MemoryMB"]) == (1, 10)


def test_taking_a_machine_off_changes_the_list_and_nothing_else() -> None:
    kept = Job.of(job(seat("m1"), seat("m2")))
    changed = swapped(kept, out="id-of-m1", into="id-of-m9")
    assert changed is not None
    assert machine_ids(changed) == ("id-of-m2", "id-of-m9")
    changed["TaskGroups"][0]["Constraints"] = kept.document["TaskGroups"][0]["Constraints"]
    assert json.dumps(changed) == json.dumps(kept.document)
    assert machine_ids(kept.document) == ("id-of-m1", "id-of-m2"), "the argument stays as it was"


def test_a_machine_that_is_off_already_changes_nothing() -> None:
    assert swapped(Job.of(job(seat("m1"))), out="id-of-m7") is None


def test_a_job_whose_last_machine_is_taken_off_is_placed_nowhere() -> None:
    changed = swapped(Job.of(job(seat("m1"))), out="id-of-m1")
    assert changed is not None and machine_ids(changed) == ("none",)
