"""The tables of `docs/nomad-driver.md`, from the models that Nomad's schema is made of. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator

from pydantic.fields import FieldInfo

from astra_driver.hcl import Settings, hcl_name, kind_of, nested


def table(model: type[Settings]) -> str:
    """A row for each field, those of blocks after their block."""
    lines = ["| name | type | default | |", "|---|---|---|---|", *_rows(model, "")]
    return "\n".join(lines) + "\n"


def _rows(model: type[Settings], prefix: str) -> Iterator[str]:
    for name, field in model.model_fields.items():
        called = f"{prefix}{hcl_name(name, field)}"
        yield f"| `{called}` | {kind_of(field)} | {_default(field)} | {field.description} |"
        if (inner := nested(field)) is not None:
            yield from _rows(inner, f"{called}.")


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    if field.default in (None, "", (), {}):
        return ""
    default = list(field.default) if isinstance(field.default, tuple) else field.default
    return f"`{json.dumps(default)}`"
