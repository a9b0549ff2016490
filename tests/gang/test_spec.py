"""The spec: what users submit, and the one sentence they get when it is wrong."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astra_agent.errors import InvalidRequest
from astra_agent.wire import DriveMount
from astra_gang.core.state import OnFailure, Policy, StartPolicy
from astra_gang.shape import Resources
from astra_gang.spec import as_document, parse, policy
from astra_gang.spec.document import Document

TORCHRUN = (
    "torchrun --nnodes=$WORLD_SIZE --node-rank=$RANK --nproc-per-node=$ASTRAEUS_GPU_COUNT --master-addr=$MASTER_ADDR "
    "--master-port=$MASTER_PORT /data/code/sft.py --resume-from /ckpt/llama-sft"
)
LLAMA_SFT: dict[str, Any] = {
    "metadata": {"name": "llama-sft"},
    "spec": {
        "start": "Gang",
        "on_failure": "RestartJob",
        "task_template": {
            "image": "nvcr.io/nvidia/pytorch:24.08-py3",
            "command": "bash",
            "args": ["-c", TORCHRUN],
            "time_limit_seconds": 86400,
            "datavolume_refs": [
                {"name": "datasets", "mount_path": "/data", "mode": "ReadOnly"},
                {"name": "checkpoints", "mount_path": "/ckpt", "mode": "ReadWrite"},
            ],
            "requested_resources": {
                "gpu_requests": {"count": 16},
                "machines": 2,
                "per_gpu": {"cpu_cores": 12, "memory_bytes": 128849018880},
                "network": {"interconnect": "infiniband"},
            },
        },
    },
}
ETL: dict[str, Any] = {
    "metadata": {"name": "etl"},
    "spec": {
        "start": "Independent",
        "leader_group": "driver",
        "task_groups": [
            {
                "name": "driver",
                "task_template": {
                    "image": "apache/spark:3.5.1",
                    "command": "/opt/spark/bin/driver.sh",
                    "requested_resources": {"cpu_cores": 4, "memory_bytes": 17179869184},
                },
            },
            {
                "name": "executor",
                "depends_on": [{"group_name": "driver", "condition": "Running"}],
                "task_template": {
                    "image": "apache/spark:3.5.1",
                    "command": "/opt/spark/bin/executor.sh",
                    "requested_resources": {"cpu_cores": 16, "memory_bytes": 68719476736, "machines": 4},
                },
            },
        ],
    },
}


def document(name: str = "x", spec: dict[str, Any] | None = None, **template: Any) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": {**(spec or {}), "task_template": {"image": "host", **template}}}


def asking(**resources: Any) -> dict[str, Any]:
    return document(requested_resources=resources)


def gang(name: str = "x", **resources: Any) -> dict[str, Any]:
    return document(name, {"start": "Gang"}, requested_resources=resources)


def refusal(given: object) -> tuple[str | None, str]:
    with pytest.raises(InvalidRequest) as refused:
        parse(given)
    return refused.value.field, str(refused.value)


# What is taken ----------------------------------------------------------------------------------------------------


def test_the_training_example_is_taken_as_it_is() -> None:
    spec = parse(LLAMA_SFT)
    assert (spec.name, spec.start, spec.on_failure) == ("llama-sft", StartPolicy.GANG, OnFailure.RESTART_JOB)
    assert spec.command == ("bash", "-c", TORCHRUN)
    assert spec.args == ()
    assert spec.time_limit_s == 86400
    assert spec.interconnect == "infiniband"
    assert spec.drives == (
        DriveMount(name="datasets", mount_path="/data", read_only=True),
        DriveMount(name="checkpoints", mount_path="/ckpt"),
    )
    assert spec.resources == Resources(gpus=16, machines=(2, 2), cpu_cores_per_gpu=12, memory_bytes_per_gpu=120 * 2**30)


def test_the_training_example_is_given_back_as_it_is() -> None:
    expected = json.loads(json.dumps(LLAMA_SFT))
    expected["spec"]["task_template"]["env"] = {}
    assert as_document(parse(LLAMA_SFT)) == expected


def test_the_models_know_the_example_with_worker_groups() -> None:
    assert Document.model_validate(ETL).spec.task_groups is not None


def test_an_example_with_the_least_per_machine_leaves_the_shape_open() -> None:
    spec = parse(gang(gpu_requests={"count": 16, "min_per_machine": 8}))
    assert spec.resources == Resources(gpus=16, min_gpus_per_machine=8)


def test_a_run_without_start_is_independent_and_its_one_worker_restarts_alone() -> None:
    spec = parse(document())
    assert (spec.start, spec.on_failure, spec.machines_max) == (StartPolicy.INDEPENDENT, OnFailure.RESTART_TASK, 1)


def test_a_gang_restarts_as_a_whole_by_default() -> None:
    assert parse(gang(machines=2)).on_failure is OnFailure.RESTART_JOB


@pytest.mark.parametrize("start", ["Gang", "MinAvailable", "Independent"])
def test_a_run_of_one_worker_is_taken_whatever_its_start_policy(start: str) -> None:
    assert parse(document(spec={"start": start}, requested_resources={"machines": 1})).start == start


def test_without_a_command_args_are_for_the_image_s_own() -> None:
    spec = parse(document(args=["--epochs", "3"]))
    assert (spec.command, spec.args) == ((), ("--epochs", "3"))


@pytest.mark.parametrize(
    ("machines", "expected"),
    [(4, (4, 4)), ({"min": 2, "max": 4}, (2, 4)), ({"min": 2}, (2, 4096)), ({"max": 2}, (1, 2))],
)
def test_machines_are_a_number_or_a_range(machines: object, expected: tuple[int, int]) -> None:
    spec = parse(gang(gpu_requests={"count": 8}, machines=machines))
    assert spec.resources.machines == expected
    assert parse(as_document(spec)) == spec


@pytest.mark.parametrize(("given", "expected"), [(True, True), (False, False), (None, False)])
def test_a_preflight_is_wanted_or_not(given: bool | None, expected: bool) -> None:
    spec = parse(document(spec={"preflight": given} if given is not None else {}))
    assert spec.preflight is expected
    assert policy(spec, Policy()).preflight is expected
    assert as_document(spec)["spec"].get("preflight") is given


def test_spares_are_for_gangs_of_several_machines() -> None:
    spec = parse(document(spec={"start": "Gang", "spares": 2}, requested_resources={"machines": 4}))
    assert (spec.spares, policy(spec, Policy()).spares) == (2, 2)
    for start, resources in (("Gang", {"machines": 1}), ("Independent", {})):
        assert refusal(document(spec={"start": start, "spares": 2}, requested_resources=resources)) == (
            "spec.spares",
            "spec.spares is 2: spares are for a gang of several machines, so leave it out or set start: Gang and "
            "machines",
        )


def test_a_run_with_spares_has_a_name_that_leaves_room_for_theirs() -> None:
    gang = {"requested_resources": {"machines": 4}}
    assert parse(document("a" * 61, spec={"start": "Gang"}, **gang)).name == "a" * 61
    field, sentence = refusal(document("a" * 61, spec={"start": "Gang", "spares": 1}, **gang))
    assert field == "metadata.name"
    assert sentence.endswith("a worker's name has -spare behind it and at most 63 in all, so 57 would do")


def test_a_preflight_is_true_or_false() -> None:
    assert refusal(document(spec={"preflight": "yes"})) == (
        "spec.preflight",
        'spec.preflight is "yes", a string: right is true, to have the network between the machines proved before any '
        "program starts, or false",
    )


def test_the_core_s_policy_takes_limits_from_the_spec_and_the_rest_from_the_settings() -> None:
    settings = Policy(barrier_timeout_s=60, budget=3)
    found = policy(parse(document(spec={"on_failure": "FailJob"}, time_limit_seconds=90)), settings)
    assert found == Policy(
        start=StartPolicy.INDEPENDENT,
        on_failure=OnFailure.FAIL_JOB,
        time_limit_s=90,
        barrier_timeout_s=60,
        budget=3,
    )


# What is refused --------------------------------------------------------------------------------------------------

R = "spec.task_template.requested_resources"
T = "spec.task_template"


@pytest.mark.parametrize(
    ("given", "field", "sentence"),
    [
        pytest.param(
            document(comand="x"),
            f"{T}.comand",
            f"{T}.comand is no field of a run: did you mean {T}.command?",
            id="misspelt",
        ),
        pytest.param(
            {"metadata": {"name": "x"}, "spec": {"task_template": {"imgae": "host"}}},
            f"{T}.imgae",
            f"{T}.imgae is no field of a run: did you mean {T}.image?",
            id="misspelt and so missing",
        ),
        pytest.param(
            document(spec={"machines": 2}),
            "spec.machines",
            f"spec.machines is no field of a run: did you mean {R}.machines?",
            id="in the wrong place",
        ),
        pytest.param(
            asking(network={"vlan": 3}),
            f"{R}.network.vlan",
            f"{R}.network.vlan is no field of a run: {R}.network has interconnect, min_gbps",
            id="nothing like it",
        ),
        pytest.param(
            {**document(), "kind": "Job"},
            "kind",
            "kind is no field of a run: the document has metadata, spec",
            id="at the top",
        ),
        pytest.param(
            document(args="-c x"),
            f"{T}.args",
            f'{T}.args is "-c x", a string: right is a list of strings, such as ["-c", "torchrun train.py"]',
            id="no list",
        ),
        pytest.param(
            document(args=["a", 1]),
            f"{T}.args[1]",
            f'{T}.args[1] is 1, a number: right is a list of strings, such as ["-c", "torchrun train.py"]',
            id="in a list",
        ),
        pytest.param(
            document(env={"A": 1}),
            f"{T}.env.A",
            f'{T}.env.A is 1, a number: right is an object of strings, such as {{"NCCL_DEBUG": "INFO"}}: '
            "put numbers in quotes",
            id="a number for a variable",
        ),
        pytest.param(
            asking(machines=0),
            f"{R}.machines",
            f'{R}.machines is 0: right is a whole number from 1 to 4096, or {{"min": 2, "max": 4}}',
            id="no machines",
        ),
        pytest.param(
            asking(machines="2"),
            f"{R}.machines",
            f'{R}.machines is "2", a string: right is a whole number from 1 to 4096, or {{"min": 2, "max": 4}}',
            id="a string",
        ),
        pytest.param(
            asking(machines=True),
            f"{R}.machines",
            f'{R}.machines is true, a truth value: right is a whole number from 1 to 4096, or {{"min": 2, "max": 4}}',
            id="true is no number",
        ),
        pytest.param(
            asking(machines=5000),
            f"{R}.machines",
            f'{R}.machines is 5000: right is a whole number from 1 to 4096, or {{"min": 2, "max": 4}}',
            id="too many",
        ),
        pytest.param(
            asking(network={"interconnect": "ib"}),
            f"{R}.network.interconnect",
            f'{R}.network.interconnect is "ib": right is the slowest network that will do: '
            '"rdma", "infiniband" or "nvlink"',
            id="not one of them",
        ),
        pytest.param(
            document(time_limit_seconds=0),
            f"{T}.time_limit_seconds",
            f"{T}.time_limit_seconds is 0: right is seconds, a number above 0, such as 86400",
            id="no time",
        ),
        pytest.param(
            document(datavolume_refs=[{"name": "a"}]),
            f"{T}.datavolume_refs[0].mount_path",
            f'{T}.datavolume_refs[0].mount_path is missing: give an absolute path in the container, such as "/data"',
            id="missing",
        ),
        pytest.param(
            {"spec": {}},
            "metadata",
            'metadata is missing: give an object such as {"name": "llama-sft"}',
            id="no metadata",
        ),
        pytest.param(
            {"metadata": {"name": "x"}, "spec": {}},
            T,
            f'{T} is missing: give an object with an "image"',
            id="no template",
        ),
        pytest.param([], None, 'the document is []: a run is an object with "metadata" and "spec"', id="no object"),
        pytest.param(
            document(env={1: "a"}), f"{T}.env[1]", f"{T}.env has the name 1: names are strings", id="a name of YAML"
        ),
        pytest.param(
            gang(gpu_requests={"count": 12}, machines=5),
            f"{R}.machines",
            "Cannot plan workers: cannot evenly distribute 12 gpus across 5 machines",
            id="no even shape",
        ),
    ],
)
def test_a_refusal_names_the_field_the_value_and_what_would_be_right(
    given: object, field: str | None, sentence: str
) -> None:
    assert refusal(given) == (field, sentence)


@pytest.mark.parametrize(
    ("given", "field", "sentence"),
    [
        (asking(machines=4), "spec.start", 'start "Independent" with 4 workers is not available yet: set start: Gang'),
        (
            document(spec={"start": "MinAvailable", "min_available": 2}, requested_resources={"machines": 4}),
            "spec.start",
            'start "MinAvailable" with 4 workers is not available yet: set start: Gang',
        ),
        (
            ETL,
            "spec.task_groups",
            "spec.task_groups: worker groups are not available yet: "
            "use task_template, with machines for how many workers",
        ),
        (
            document(health_check={"port": 80}),
            f"{T}.health_check",
            f"{T}.health_check: health checks are not available yet: leave it out",
        ),
    ],
)
def test_what_is_not_there_yet_is_refused_by_name(given: object, field: str, sentence: str) -> None:
    assert refusal(given) == (field, sentence)


@pytest.mark.parametrize("name", ["leader_group", "complete_with", "segment"])
def test_no_field_that_nothing_serves_is_taken_in_silence(name: str) -> None:
    value = {"leader_group": "a", "complete_with": "a", "segment": 4}[name]
    field, sentence = refusal(document(spec={name: value}))
    assert field == f"spec.{name}"
    assert "not available yet" in sentence


@pytest.mark.parametrize(
    "name", ["", "Llama", "llama_sft", "-a", "a-", "1a", "0x10", "a.b", "ä", "a b", "a\n", "a" * 62]
)
def test_a_name_that_is_no_label_or_leaves_no_room_for_ranks_is_refused(name: str) -> None:
    field, sentence = refusal(document(name))
    assert field == "metadata.name"
    assert sentence.startswith("metadata.name is")


def test_a_name_leaves_room_for_the_highest_rank_it_may_come_to() -> None:
    assert parse(document("a" * 61)).name == "a" * 61
    assert parse(gang("a" * 60, machines=11, gpu_requests={"count": 11})).name == "a" * 60
    assert refusal(gang("a" * 61, gpu_requests={"count": 16}))[1].endswith(
        "61 characters: a worker's name has -15 behind it and at most 63 in all, so 60 would do"
    )


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("data", "is absolute, such as /data"),
        ("/", "the root is the image's"),
        ("/data/", "shortest form, /data"),
        ("/data/../etc", "shortest form, /etc"),
        ("//data", "shortest form, /data"),
        ("/proc", "/proc is Astraeus's own"),
        ("/proc/self", "/proc is Astraeus's own"),
        ("/dev/shm", "/dev is Astraeus's own"),
        ("/etc/hosts", "/etc/hosts is Astraeus's own"),
        ("/etc", "/etc/hosts is Astraeus's own"),
        ("/a\0b", "has a zero byte"),
    ],
)
def test_a_mount_path_that_can_not_be_mounted_is_refused(path: str, why: str) -> None:
    field, sentence = refusal(document(datavolume_refs=[{"name": "a", "mount_path": path}]))
    assert field == f"{T}.datavolume_refs[0].mount_path"
    assert why in sentence


def test_two_drives_are_not_mounted_in_one_place() -> None:
    refs = [{"name": "a", "mount_path": "/data"}, {"name": "b", "mount_path": "/data"}]
    assert refusal(document(datavolume_refs=refs)) == (
        f"{T}.datavolume_refs[1].mount_path",
        f'{T}.datavolume_refs[1].mount_path is "/data", as that of drive a is: give each its own',
    )


@pytest.mark.parametrize(
    ("template", "field"),
    [
        ({"image": ""}, "image"),
        ({"image": "busybox "}, "image"),
        ({"command": ""}, "command"),
        ({"args": ["a\0"]}, "args[0]"),
        ({"args": ["a" * 131072]}, "args[0]"),
        ({"args": ["a" * 100_000] * 11}, "args"),
        ({"env": {"1A": ""}}, "env"),
        ({"env": {"A=B": ""}}, "env"),
        ({"env": {"A": "\0"}}, "env.A"),
        ({"env": {"A": "ä" * 65536}}, "env.A"),
    ],
)
def test_what_no_program_can_be_started_with_is_refused(template: dict[str, Any], field: str) -> None:
    assert refusal(document(**template))[0] == f"{T}.{field}"


def test_min_available_is_for_that_start_policy_and_no_more_than_the_workers() -> None:
    assert refusal(document(spec={"min_available": 1}))[0] == "spec.min_available"
    assert refusal(document(spec={"start": "MinAvailable", "min_available": 2}))[0] == "spec.min_available"
    assert parse(document(spec={"start": "MinAvailable", "min_available": 1})).start is StartPolicy.MIN_AVAILABLE


# Any document -----------------------------------------------------------------------------------------------------

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


def places(value: object, above: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [above, *(place for key, below in inner for place in places(below, (*above, key)))]


def changed(value: Any, place: tuple[Any, ...], new: object) -> Any:
    if not place:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[place[0]] = changed(value[place[0]], place[1:], new)
    return copy


def test_a_name_with_a_line_break_is_told_on_one_line() -> None:
    field, sentence = refusal(document(spec={"a\nb": None}))
    assert field == "spec.a\\nb"
    assert sentence.startswith("spec.a\\nb is no field of a run")


@given(st.sampled_from(places(LLAMA_SFT) + places(ETL)), st.sampled_from([LLAMA_SFT, ETL]), json_values)
def test_any_document_is_parsed_or_refused_in_one_printable_sentence(
    place: tuple[Any, ...], example: dict[str, Any], value: object
) -> None:
    if place not in places(example):
        return
    given_document = changed(example, place, value)
    try:
        spec = parse(given_document)
    except InvalidRequest as refused:
        assert str(refused).encode() and "\n" not in str(refused)
        assert (
            refused.field is None or refused.field in str(refused) or refused.field.rpartition(".")[2] in str(refused)
        )
    else:
        assert parse(as_document(spec)) == spec
        assert parse(json.loads(json.dumps(as_document(spec)))) == spec
