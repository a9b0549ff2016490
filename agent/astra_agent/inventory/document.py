"""An inventory as JSON, for whoever looks at a machine from afar; the same version writes and reads it."""

from __future__ import annotations

from functools import cache

from pydantic import TypeAdapter, ValidationError

from astra_agent.errors import InvalidRequest
from astra_agent.inventory.model import Inventory


def dump(inventory: Inventory) -> str:
    return _adapter().dump_json(inventory).decode()


def load(document: object) -> Inventory:
    """Raises: InvalidRequest: it is none, or another version's."""
    try:
        return _adapter().validate_python(document)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(step) for step in first["loc"])
        raise InvalidRequest(
            f"the inventory is another version's, wrong at {where}: {first['msg']}; install the same on both"
        ) from error


@cache
def _adapter() -> TypeAdapter[Inventory]:
    """Made when it is first asked for: an agent that nobody looks at does without."""
    return TypeAdapter(Inventory)
