"""
One sentence for the first thing that is wrong with a document: where, what is there, what would be right.

A field that does not exist comes before everything else, since a misspelt name also makes the right one look missing.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from astra_agent.errors import InvalidRequest
from astra_gang.spec.document import Document

_SHOWN_MAX = 60

Location = tuple[int | str, ...]


def refusal(error: ValidationError, document: object) -> InvalidRequest:
    """The error for the caller; *document* is what was validated against `Document`."""
    details = error.errors(include_url=False, include_context=False)
    first = next((detail for detail in details if detail["type"] == "extra_forbidden"), details[0])
    location = _as_written(first["loc"], document)
    field = _printable(path(location))
    return InvalidRequest(_printable(_sentence(first, location, field, document)), field=field or None)


def path(location: Sequence[int | str]) -> str:
    """`spec.task_template.args[1]`"""
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def show(value: object) -> str:
    """The value as the user wrote it, in JSON, cut to a length that fits into a sentence."""
    text = _printable(json.dumps(value, ensure_ascii=False, default=str, skipkeys=True))
    return text if len(text) <= _SHOWN_MAX else text[: _SHOWN_MAX - 1] + "…"


def _sentence(detail: ErrorDetails, location: Location, field: str, document: object) -> str:
    if detail["type"] == "extra_forbidden":
        return _unknown(location, field)
    if detail["type"] == "invalid_key" or detail["loc"][-1:] == ("[key]",):
        return f"{path(location[:-1]) or 'the document'} has the name {show(location[-1])}: names are strings"
    wanted = _description(location)
    if detail["type"] == "missing":
        return f"{field} is missing: give {wanted}"
    if not location:
        return f'the document is {show(document)}: a run is an object with "metadata" and "spec"'
    value = _at(document, location)
    kind = f", {_kind(value)}" if detail["type"].endswith("_type") else ""
    return f"{field} is {show(value)}{kind}: right is {wanted}"


def _printable(text: str) -> str:
    """JSON may hold half of a surrogate pair, which no terminal or answer can be sent, and names with line breaks."""
    whole = text.encode("utf-8", "backslashreplace").decode()
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in whole)


def _unknown(location: Location, field: str) -> str:
    *above, name = location
    known = list(_model_at(above).model_fields)
    elsewhere = [there for there in _all_paths(Document) if there.rpartition(".")[2] == name]
    if elsewhere:
        return f"{field} is no field of a run: did you mean {elsewhere[0]}?"
    close = difflib.get_close_matches(str(name), known, n=1, cutoff=0.6)
    if close:
        return f"{field} is no field of a run: did you mean {path([*above, close[0]])}?"
    return f"{field} is no field of a run: {path(above) or 'the document'} has {', '.join(known)}"


def _as_written(location: Location, document: object) -> Location:
    """Cut off what a model has made of a plainer value, such as `min` below `"machines": 0`."""
    value = document
    for depth, part in enumerate(location):
        if isinstance(value, Mapping):
            value = value.get(part)
        elif isinstance(value, Sequence) and not isinstance(value, str) and isinstance(part, int):
            value = value[part]
        else:
            return location[:depth]
    return location


def _at(document: Any, location: Location) -> object:
    for part in location:
        document = document[part]
    return document


def _description(location: Location) -> str:
    """What the nearest field at or above the location says of itself."""
    for depth in range(len(location), 0, -1):
        owner, name = _model_at(location[: depth - 1]), location[depth - 1]
        if isinstance(name, str) and name in owner.model_fields:
            return owner.model_fields[name].description or ""
    return ""


def _model_at(location: Sequence[int | str]) -> type[BaseModel]:
    """The model that has the fields at this place; the last one on the way when the way leads out of the models."""
    model: type[BaseModel] = Document
    for part in location:
        if isinstance(part, str) and part in model.model_fields:
            model = _model_of(model.model_fields[part]) or model
    return model


def _model_of(field: FieldInfo) -> type[BaseModel] | None:
    return next((found for found in _models(field.annotation)), None)


def _models(annotation: object) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _models(argument)


def _all_paths(model: type[BaseModel], above: str = "") -> Iterator[str]:
    """Every field of a document, outer ones first; lists as `[]`."""
    inner: list[tuple[type[BaseModel], str]] = []
    for name, field in model.model_fields.items():
        here = f"{above}.{name}" if above else name
        yield here
        below = _model_of(field)
        if below is not None:
            inner.append((below, here if not _is_list(field.annotation) else f"{here}[]"))
    for below, here in inner:
        yield from _all_paths(below, here)


def _is_list(annotation: object) -> bool:
    return any(getattr(found, "__origin__", None) is tuple for found in (annotation, *get_args(annotation)))


def _kind(value: object) -> str:
    match value:
        case None:
            return "nothing"
        case bool():
            return "a truth value"
        case int() | float():
            return "a number"
        case str():
            return "a string"
        case Mapping():
            return "an object"
        case Sequence():
            return "a list"
        case _:
            return f"a {type(value).__name__}"
