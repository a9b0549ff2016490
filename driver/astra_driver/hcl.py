"""
From a pydantic model to Nomad's schema of a configuration block, and from the MessagePack that Nomad makes of such a
block back to the model. Pure. The model is the one source: what it says is also the page in `docs/`.

| a field of type | is in a job file |
|---|---|
| `str`, `bool`, `int`, `float` | `name = value` |
| `tuple[str, ...]` | `name = ["a", "b"]` |
| `dict[str, str]` | `name { key = "value" }`; never an attribute of type map, which no job file can fill |
| a model | `name { … }`, once |
| `tuple[model, ...]` | `name { … }`, any number of times; `Block` gives it the name of one |
"""

from __future__ import annotations

import json
import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeVar, Union, get_args, get_origin

import msgpack
from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.fields import FieldInfo

from astra_agent.errors import InvalidRequest
from astra_driver.proto.hclspec_pb2 import Attr, Block, BlockAttrs, BlockList, Default, Literal, Object, Spec


class Settings(BaseModel):
    """Base of configuration blocks: a number may come as a whole one, a float or decimal text."""

    model_config = ConfigDict(frozen=True, extra="forbid", coerce_numbers_to_str=True)


@dataclass(frozen=True, slots=True)
class Named:
    """The name of one block of a field that holds several, such as `mount` for *mounts*."""

    name: str


S = TypeVar("S", bound=Settings)

_SCALARS = {str: "string", bool: "bool", int: "number", float: "number"}


def spec_of(model: type[Settings]) -> Spec:
    """The schema of a block. Raises: TypeError for a field that no job file could fill."""
    attributes = {name: _field_spec(name, field) for name, field in model.model_fields.items()}
    return Spec(object=Object(attributes=attributes))


def hcl_name(name: str, field: FieldInfo) -> str:
    """What a job file calls the field *name*."""
    return next((mark.name for mark in field.metadata if isinstance(mark, Named)), name)


def kind_of(field: FieldInfo) -> str:
    """In words, for a table: `string`, `list of strings`, `block`, …"""
    kind = _bare(field.annotation)
    if kind in _SCALARS:
        return _SCALARS[kind]
    if get_origin(kind) is tuple:
        return "list of strings" if get_args(kind)[0] is str else "blocks"
    return "block of strings" if get_origin(kind) is dict else "block"


def nested(field: FieldInfo) -> type[Settings] | None:
    """The model of a block field; None for others."""
    kind = _bare(field.annotation)
    inner = get_args(kind)[0] if get_origin(kind) is tuple else kind
    return inner if isinstance(inner, type) and issubclass(inner, Settings) else None


def decode(model: type[S], data: bytes) -> S:
    """
    The settings that Nomad has sent; all defaults for no bytes. What was not given arrives as nil.

    Raises: InvalidRequest in the words of the job file.
    """
    try:
        document = msgpack.unpackb(data, raw=False, strict_map_key=False) if data else {}
    except (ValueError, msgpack.UnpackException) as error:
        raise InvalidRequest(f"the configuration can't be decoded: {error}") from error
    try:
        return model.model_validate(_given(document))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(_path(model, first["loc"]))
        shown = "" if first["type"] in ("missing", "extra_forbidden") else f" is {_shown(first['input'])}"
        said = first["msg"].removeprefix("Value error, ")
        raise InvalidRequest(f"config: {where}{shown}: {said}", where or None) from error


def _field_spec(name: str, field: FieldInfo) -> Spec:
    kind, called, required = _bare(field.annotation), hcl_name(name, field), field.is_required()
    if get_origin(kind) is dict and get_args(kind) == (str, str):
        return Spec(block_attrs=BlockAttrs(name=called, type="string", required=required))
    if (model := nested(field)) is not None:
        if get_origin(kind) is tuple:
            return Spec(block_list=BlockList(name=called, nested=spec_of(model)))
        return Spec(block_value=Block(name=called, required=required, nested=spec_of(model)))
    attr = Spec(Attr=Attr(name=called, type=_type(name, kind), required=required))
    default = _literal(field)
    return attr if default is None else Spec(default=Default(primary=attr, default=Spec(literal=default)))


def _type(name: str, kind: Any) -> str:
    if kind in _SCALARS:
        return _SCALARS[kind]
    if get_origin(kind) is tuple and get_args(kind) == (str, ...):
        return "list(string)"
    raise TypeError(f"a job file can't fill {name} of type {kind}")


def _literal(field: FieldInfo) -> Literal | None:
    """The default as an expression; none where it is what an absent value stands for anyway."""
    if field.is_required() or field.default in (None, "", ()):
        return None
    value = list(field.default) if isinstance(field.default, tuple) else field.default
    return Literal(value=json.dumps(value))


def _bare(annotation: Any) -> Any:
    """Without `| None`."""
    if get_origin(annotation) in (Union, types.UnionType):
        return next(kind for kind in get_args(annotation) if kind is not type(None))
    return annotation


def _given(value: Any) -> Any:
    """Without what is nil, at every depth."""
    if isinstance(value, dict):
        return {key: _given(item) for key, item in value.items() if item is not None}
    return [_given(item) for item in value] if isinstance(value, list) else value


def _path(model: type[Settings], loc: tuple[int | str, ...]) -> Iterator[str]:
    """A place in the model, as a job file names it: `mount.target`."""
    at: type[Settings] | None = model
    for part in loc:
        if isinstance(part, int):
            continue
        field = at.model_fields.get(part) if at is not None else None
        yield part if field is None else hcl_name(part, field)
        at = None if field is None else nested(field)


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 80 else f"{text[:77]}…"
