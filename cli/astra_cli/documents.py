"""
The API's documents as the command line reads them.

Unknown fields are let through: a newer coordinator may say more. `--json` prints what the coordinator sent, not these.
"""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class Document(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class Metadata(Document):
    name: str
    workspace: str = "default"
    uid: str = ""
    submitted_at: datetime | None = None


class WorkerStatus(Document):
    rank: int
    name: str
    state: str
    machine: str | None = None
    detail: str | None = ""
    address: str | None = None
    attempt: int | None = None
    code: int | None = None
    failures: int = 0


class SpareStatus(Document):
    machine: str
    state: str
    detail: str = ""


class JobStatus(Document):
    phase: str
    reason: str | None = ""
    refused: bool = False
    attempt: int | None = None
    ready: int = 0
    total: int = 0
    tier: str | None = ""
    domain: str | None = ""
    ended_at: datetime | None = None
    workers: tuple[WorkerStatus, ...] = ()
    spares: tuple[SpareStatus, ...] = ()


class NamesOfRun(Document):
    """What the workers of the run's workspace are told."""

    run: str
    leader: str = ""
    port: int = 0
    attempt: int = 0
    world_size: int = 0
    addresses: dict[str, tuple[str, ...]] = {}


class LookupRecord(Document):
    name: str
    type: str
    ttl_s: int
    data: str


class Lookup(Document):
    asker: str = Field(alias="as")
    machine: str
    server: str
    name: str
    type: str
    rcode: str
    took_s: float
    records: tuple[LookupRecord, ...] = ()


class Job(Document):
    metadata: Metadata
    status: JobStatus

    @property
    def ended(self) -> bool:
        return self.status.phase in ENDED


ENDED = ("Completed", "Failed", "Stopped")


class Event(Document):
    id: int
    at: datetime
    sentence: str
    level: Literal["info", "warning", "error"] = "info"
    rank: int | None = None
    attempt: int | None = None


class RankRow(Document):
    rank: int
    name: str
    machine: str | None = None
    address: str | None = None
    slot: str | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    code: int | None = None
    detail: str | None = ""


class Ranks(Document):
    attempt: int
    attempts: tuple[int, ...] = ()
    items: tuple[RankRow, ...] = ()
    opened_at: datetime | None = None
    ended_why: str | None = ""


class MachineFinding(Document):
    level: str
    subject: str
    sentence: str
    fix: str = ""


class DrainCost(Document):
    run: str
    sentence: str
    workspace: str = "default"
    workers: int = 0


class Machine(Document):
    name: str
    address: str = ""
    connected: bool = False
    silent_s: float | None = None
    out_of_use: str | None = None
    cpu_cores: float = 0.0
    free_cpu_cores: float = 0.0
    memory_bytes: int = 0
    free_memory_bytes: int = 0
    gpus: int = 0
    free_gpus: int = 0
    domains: dict[str, str] = {}
    findings: tuple[MachineFinding, ...] = ()
    slots: tuple[str, ...] = ()
    drain: tuple[DrainCost, ...] | None = None
    """Of one machine alone; None: the coordinator does not say."""
