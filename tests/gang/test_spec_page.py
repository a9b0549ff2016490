"""
The reference page says what the code does: `docs/spec.md`.

The table of fields is written from the models: `pytest --rewrite` writes it anew.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from astra_gang.environment import environment
from astra_gang.spec import parse
from astra_gang.spec.document import Document
from astra_gang.spec.rules import NOT_YET
from tests.gang.cluster import machine, placed_run
from tests.gang.test_environment import spec

PAGE = Path(__file__).parents[2] / "docs" / "spec.md"
_FIELDS = re.compile(r"(<!-- fields: [^\n]*-->\n).*?(<!-- end -->)", re.DOTALL)
_VARIABLES = re.compile(r"<!-- variables: [^\n]*-->\n(.*?)<!-- end -->", re.DOTALL)
_LATER = {*NOT_YET, "health_check"}


def field_table() -> str:
    rows = [
        f"| `{path.removeprefix('spec.task_template.')}` | {takes} | {default} |"
        for path, takes, default in _fields(Document)
    ]
    return "\n".join(["", "| field | takes | default |", "|---|---|---|", *rows, "", ""])


def _fields(model: type[BaseModel], above: str = "") -> Iterator[tuple[str, str, str]]:
    for name, field in model.model_fields.items():
        path = f"{above}{name}"
        if name in _LATER:
            yield path, "not available yet", ""
            continue
        inner = next((found for found in _models(field.annotation)), None)
        if inner is None or name in ("datavolume_refs", "machines"):
            yield path, (field.description or "").replace("|", "\\|"), _default(field.default)
        if inner is not None and name != "machines":
            yield from _fields(inner, f"{path}[]." if name == "datavolume_refs" else f"{path}.")


def _models(annotation: object) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _models(argument)


def _default(value: object) -> str:
    if value is PydanticUndefined:
        return "must be given"
    return "" if value is None or value in ((), {}) else f"`{json.dumps(value)}`"


def test_the_table_of_fields_is_the_models(pytestconfig: pytest.Config) -> None:
    if pytestconfig.getoption("--rewrite"):
        PAGE.write_text(_FIELDS.sub(lambda match: f"{match[1]}{field_table()}{match[2]}", PAGE.read_text()))
    match = _FIELDS.search(PAGE.read_text())
    assert match is not None
    assert match[0] == f"{match[1]}{field_table()}{match[2]}", "run this test with --rewrite"


def test_the_tables_of_variables_name_every_variable_that_a_worker_may_get_and_no_other() -> None:
    match = _VARIABLES.search(PAGE.read_text())
    assert match is not None
    named = [
        name for row in re.findall(r"^\| (`[^|]*) \|", match[1], re.MULTILINE) for name in re.findall(r"`(\w+)`", row)
    ]
    assert len(named) == len(set(named)), "a variable is listed twice"
    assert set(named) == _every_variable()


def _every_variable() -> set[str]:
    known = {"m-1": machine("m-1", nvlink="nv").facts}
    found: set[str] = set()
    for gpus, tier, group in ((8, "ethernet", None), (0, "machine", "driver")):
        run = placed_run("x", ["m-1"], gpus=gpus, tier=tier)
        run = replace(run, workers=(replace(run.workers[0], group=group),))
        found |= environment(run, spec("x", 1, gpus), 0, known).keys()
    return found


def test_the_example_of_the_page_is_taken() -> None:
    example = re.search(r"```json\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert example is not None
    assert parse(json.loads(example[1])).resources.gpus == 16
