"""
What `astra run` submits: a file's document, or one made of flags. Pure; the coordinator checks the spec.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from typing import Any

import yaml

from astra_agent.errors import InvalidRequest

Json = dict[str, Any]

STARTS = ("Gang", "MinAvailable", "Independent")
ON_FAILURE = ("RestartJob", "RestartTask", "FailJob")
"""The spec's policies; here as words, since the coordinator's code takes a while to load."""

_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_UNITS_BYTES = {"": 1, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40, "K": 10**3, "M": 10**6, "G": 10**9}

_TEMPLATE = r"\bspec\.task_template\."
_RESOURCES = rf"{_TEMPLATE}requested_resources\."
_FLAGS = (
    (r"\bmetadata\.name\b", "--name"),
    (rf"{_RESOURCES}machines\b", "--machines"),
    (rf"{_RESOURCES}gpu_requests\.count\b", "--gpus"),
    (rf"{_RESOURCES}cpu_cores\b", "--cpus"),
    (rf"{_RESOURCES}memory_bytes\b", "--memory"),
    (rf"{_TEMPLATE}time_limit_seconds\b", "--time-limit"),
    (rf"{_TEMPLATE}image\b", "--image"),
    (rf"{_TEMPLATE}env\b", "--env"),
    (rf"({_TEMPLATE})?datavolume_refs\[\d+\](\.\w+)?", "--drive"),
    (rf"{_TEMPLATE}(command|args(\[\d+\])?)", "the command after `--`"),
    (r"\bspec\.start\b|\bstart:?(?= \"?(Gang|MinAvailable|Independent)\b)", "--start"),
    (r"\bspec\.on_failure\b|\bon_failure:?(?= \"?(RestartJob|RestartTask|FailJob)\b)", "--on-failure"),
    (r"\bspec\.spares\b", "--spares"),
    (r', or \{"min".*?\}', ""),  # a range has no flag
)
"""Fields of the spec in sentences, and the flags that they came from."""


@dataclass(frozen=True, slots=True)
class RunFlags:
    """`astra run` without a file. Empty or None: not given."""

    name: str
    image: str
    machines: int | None = None
    gpus: int | None = None
    start: str | None = None
    on_failure: str | None = None
    env: tuple[str, ...] = ()
    drives: tuple[str, ...] = ()
    time_limit: str | None = None
    cpu_cores: float | None = None
    memory: str | None = None
    preflight: bool | None = None
    spares: int | None = None
    command: tuple[str, ...] = ()


def parse(text: str, source: str) -> Json:
    """JSON when it looks like it, else YAML; the same document either way."""
    try:
        document = json.loads(text) if text.lstrip().startswith("{") else yaml.safe_load(text)
    except json.JSONDecodeError as error:
        raise InvalidRequest(
            f"{source} is no JSON: {error.msg} in line {error.lineno}, column {error.colno}"
        ) from error
    except yaml.YAMLError as error:
        raise InvalidRequest(f"{source} is no YAML: {_problem(error)}") from error
    except RecursionError as error:
        raise InvalidRequest(f"{source} is nested too deeply for a run file") from error
    if not isinstance(document, dict):
        raise InvalidRequest(f"{source} must hold a mapping with named fields, not {_kind(document)}")
    try:
        json.dumps(document, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequest(f"{source} holds a value that JSON does not have: {error}; put it in quotes") from error
    return document


def _problem(error: yaml.YAMLError) -> str:
    """`could not find expected ':' in line 5, column 1`"""
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None)
    if mark is None or problem is None:
        return " ".join(str(error).split())
    return f"{problem} in line {mark.line + 1}, column {mark.column + 1}"


def named(document: Json, name: str) -> Json:
    """The document with another name: `astra run FILE --name NAME`."""
    metadata = document.get("metadata")
    return {**document, "metadata": {**(metadata if isinstance(metadata, dict) else {}), "name": name}}


def with_image(document: Json, image: str) -> Json:
    """The document with another image; one that has no template gets none, and is refused for that."""
    spec = document.get("spec")
    template = spec.get("task_template") if isinstance(spec, dict) else None
    if not isinstance(spec, dict) or not isinstance(template, dict):
        return document
    return {**document, "spec": {**spec, "task_template": {**template, "image": image}}}


def build(flags: RunFlags) -> Json:
    """
    The document that the flags stand for. Several machines without `--start` are a gang.

    Raises:
        InvalidRequest: a flag's value is not in its form.
    """
    resources: Json = {}
    if flags.machines is not None:
        resources["machines"] = flags.machines
    if flags.gpus is not None:
        resources["gpu_requests"] = {"count": flags.gpus}
    if flags.cpu_cores is not None:
        if not math.isfinite(flags.cpu_cores):
            raise InvalidRequest(f"--cpus must be a number of cores such as 4, not {flags.cpu_cores}", "--cpus")
        resources["cpu_cores"] = flags.cpu_cores
    if flags.memory is not None:
        resources["memory_bytes"] = byte_count(flags.memory, "--memory")
    template: Json = {"image": flags.image}
    if flags.command:
        template["command"] = flags.command[0]
        template["args"] = list(flags.command[1:])
    if flags.env:
        template["env"] = dict(_env(item) for item in flags.env)
    if flags.drives:
        template["datavolume_refs"] = [_drive(item) for item in flags.drives]
    if flags.time_limit is not None:
        template["time_limit_seconds"] = seconds(flags.time_limit, "--time-limit")
    if resources:
        template["requested_resources"] = resources
    spec: Json = {"task_template": template}
    start = flags.start or ("Gang" if (flags.machines or 1) > 1 else None)
    if start:
        spec["start"] = start
    if flags.on_failure:
        spec["on_failure"] = flags.on_failure
    if flags.preflight:
        spec["preflight"] = True
    if flags.spares is not None:
        spec["spares"] = flags.spares
    return {"metadata": {"name": flags.name}, "spec": spec}


def in_flags(sentence: str) -> str:
    """The coordinator's sentence about a document that `build` made, for who wrote flags and knows no document."""
    for path, flag in _FLAGS:
        sentence = re.sub(path, flag, sentence)
    return sentence


def seconds(text: str, field: str) -> int:
    """`90s`, `30m`, `24h`, `2d`, a bare number of seconds, or several: `1h30m`."""
    if text.isdecimal():
        return int(text)
    if re.fullmatch(r"(\d+[smhd])+", text) is None:
        raise InvalidRequest(f"{field} must be a time such as 90s, 30m, 24h or 2d, not {text!r}", field)
    return sum(int(count) * _UNITS_S[unit] for count, unit in re.findall(r"(\d+)([smhd])", text))


def byte_count(text: str, field: str) -> int:
    """`16Gi`, `512Mi`, `1.5Gi`, or a bare number of bytes."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(|Ki|Mi|Gi|Ti|K|M|G)", text)
    if match is None:
        raise InvalidRequest(f"{field} must be a size such as 512Mi or 16Gi, not {text!r}", field)
    return int(float(match[1]) * _UNITS_BYTES[match[2]])


def _env(item: str) -> tuple[str, str]:
    name, equals, value = item.partition("=")
    if not equals or not name:
        raise InvalidRequest(f"--env must be NAME=VALUE, not {item!r}", "--env")
    return name, value


def _drive(item: str) -> Json:
    parts = item.split(":")
    if (
        len(parts) not in (2, 3)
        or not parts[0]
        or not parts[1].startswith("/")
        or parts[2:] not in ([], ["ro"], ["rw"])
    ):
        raise InvalidRequest(f"--drive must be NAME:/PATH or NAME:/PATH:ro, not {item!r}", "--drive")
    return {"name": parts[0], "mount_path": parts[1], "mode": "ReadOnly" if parts[2:] == ["ro"] else "ReadWrite"}


def _kind(value: object) -> str:
    return "nothing" if value is None else f"a {type(value).__name__}"
