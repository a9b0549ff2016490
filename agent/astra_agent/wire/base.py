"""What every model of the wire is made of."""

from __future__ import annotations

import json
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

PROTOCOL = 4


def other_protocol(message: str) -> object | None:
    """
    The protocol that the first message of a peer names, when it is not ours; None as well for what is no message.
    Asked before the rest is read: a peer of another protocol may say things that these models refuse.
    """
    try:
        said = json.loads(message)
    except ValueError:
        return None
    named: object = said.get("protocol") if isinstance(said, dict) else None
    return None if named == PROTOCOL else named


SlotId = Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")]


class Wire(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")
