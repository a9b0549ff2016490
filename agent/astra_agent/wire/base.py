"""What every model of the wire is made of."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

PROTOCOL = 4

SlotId = Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")]


class Wire(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")
