"""What may be asked of a dev cluster's supervisor."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field


class _Request(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Status(_Request):
    do: Literal["status"] = "status"


class LinkRequest(_Request):
    """Of None is left as it is."""

    do: Literal["link"] = "link"
    machine: str
    rate_bit_s: int | None = None
    up: bool | None = None


class Kill(_Request):
    do: Literal["kill"] = "kill"
    machine: str


class Boot(_Request):
    do: Literal["start"] = "start"
    machine: str


Request = Annotated[Status | LinkRequest | Kill | Boot, Field(discriminator="do")]
