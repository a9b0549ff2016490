from __future__ import annotations

from typing import Any

import pytest

from astra_agent.errors import InvalidRequest
from astra_cli.runfile import ON_FAILURE, STARTS, RunFlags, build, byte_count, in_flags, named, parse, seconds
from astra_gang.core import OnFailure, StartPolicy
from astra_gang.spec import parse as checked


def test_yaml_and_json_give_the_same_document() -> None:
    document = {"metadata": {"name": "a"}, "spec": {"start": "Gang"}}
    assert parse('{"metadata": {"name": "a"}, "spec": {"start": "Gang"}}', "f") == document
    assert parse("metadata: {name: a}\nspec:\n  start: Gang\n", "f") == document


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ('{"a": 1,}', "is no JSON"),
        ("a: [1", "is no YAML: expected ',' or ']', but got '<stream end>' in line 1, column 6"),
        ("", "not nothing"),
        ("- 1", "not a list"),
        ("a: 2026-01-01", "put it in quotes"),
        ("a: .nan", "put it in quotes"),
        ("a: !!python/object:os.system {}", "is no YAML"),
    ],
)
def test_a_file_that_is_no_run_is_refused_with_its_name(text: str, part: str) -> None:
    with pytest.raises(InvalidRequest, match=r"run\.yaml") as caught:
        parse(text, "run.yaml")
    assert part in str(caught.value)


def test_deep_nesting_is_refused_not_crashed_on() -> None:
    with pytest.raises(InvalidRequest):
        parse('{"a":' + "[" * 100_000, "run.json")


def test_a_name_on_the_command_line_stands_instead_of_the_files() -> None:
    assert named({"metadata": {"name": "a", "x": 1}}, "b") == {"metadata": {"name": "b", "x": 1}}
    assert named({}, "b") == {"metadata": {"name": "b"}}


@pytest.mark.parametrize(
    ("flags", "start"),
    [
        (RunFlags("n", "host", machines=4), "Gang"),
        (RunFlags("n", "host", machines=4, start="Independent"), "Independent"),
        (RunFlags("n", "host", machines=1), None),
        (RunFlags("n", "host"), None),
    ],
    ids=["several machines", "the flag wins", "one machine", "nothing said"],
)
def test_several_machines_are_a_gang_unless_said_otherwise(flags: RunFlags, start: str | None) -> None:
    assert build(flags)["spec"].get("start") == start


def test_every_flag_finds_its_place_in_the_spec() -> None:
    flags = RunFlags(
        "n", "host", machines=2, gpus=16, on_failure="FailJob", env=("A=1",), drives=("d:/data:ro", "c:/ckpt"),
        time_limit="24h", cpu_cores=1.5, memory="2Gi", preflight=True, command=("python3", "t.py"),
    )  # fmt: skip
    assert build(flags)["spec"] == {
        "start": "Gang",
        "on_failure": "FailJob",
        "preflight": True,
        "task_template": {
            "image": "host",
            "command": "python3",
            "args": ["t.py"],
            "env": {"A": "1"},
            "datavolume_refs": [
                {"name": "d", "mount_path": "/data", "mode": "ReadOnly"},
                {"name": "c", "mount_path": "/ckpt", "mode": "ReadWrite"},
            ],
            "time_limit_seconds": 86400,
            "requested_resources": {
                "machines": 2, "gpu_requests": {"count": 16}, "cpu_cores": 1.5, "memory_bytes": 2 << 30,
            },
        },
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "value"), [("90", 90), ("90s", 90), ("30m", 1800), ("24h", 86400), ("1h30m", 5400), ("2d", 172800)]
)
def test_a_time_limit_has_units(text: str, value: int) -> None:
    assert seconds(text, "--time-limit") == value


@pytest.mark.parametrize("text", ["", "h", "1.5h", "-1h", "1h30", "1 h"])
def test_a_time_limit_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="--time-limit"):
        seconds(text, "--time-limit")


@pytest.mark.parametrize(
    ("text", "value"), [("1024", 1024), ("512Mi", 512 << 20), ("1.5Gi", 3 << 29), ("2G", 2 * 10**9)]
)
def test_a_size_has_units(text: str, value: int) -> None:
    assert byte_count(text, "--memory") == value


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ({"cpu_cores": -1.0}, "--cpus is -1.0: right is"),
        ({"machines": 0}, "--machines is 0: right is a whole number from 1 to 4096"),
        ({"gpus": -1}, "--gpus is -1: right is"),
        ({"memory": "0"}, "--memory is 0: right is"),
        ({"time_limit": "0"}, "--time-limit is 0: right is"),
        ({"env": ("A B=1",)}, '--env has "A B": a variable'),
        ({"drives": ("x:/a", "y:/a")}, '--drive is "/a", as that of drive x is: give each its own'),
        ({"name": "UP"}, '--name is "UP": a run'),
        ({"image": " "}, '--image is " ": give'),
        ({"command": ("",)}, "the command after `--` is empty: name a program"),
        (
            {"start": "Independent", "machines": 3},
            '--start "Independent" with 3 workers is not available yet: set --start Gang',
        ),
        ({"machines": 2, "gpus": 3}, "Cannot plan workers: cannot evenly distribute 3 gpus across 2 machines"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else "",
)
def test_what_the_coordinator_refuses_is_said_of_the_flags(flags: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        checked(build(RunFlags(**{"name": "n", "image": "host", **flags})))
    said = in_flags(str(caught.value))
    assert said.startswith(sentence)
    assert "spec." not in said


def test_policies_are_the_coordinators() -> None:
    assert tuple(STARTS) == tuple(StartPolicy)
    assert tuple(ON_FAILURE) == tuple(OnFailure)


def test_a_number_of_cores_is_one() -> None:
    with pytest.raises(InvalidRequest, match="--cpus must be a number of cores such as 4, not nan"):
        build(RunFlags("n", "host", cpu_cores=float("nan")))
