"""
Nomad's answers, read into frozen values. Versions differ in what they leave out (2.0 drops zero values, `null` stands
for an empty list): everything that is missing has a default, everything unknown is ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from astra_agent.errors import Unavailable

TERMINAL = frozenset({"complete", "failed", "lost"})
"""Client statuses after which nothing of an allocation is placed any more. `lost` may yet come back: 2.7."""
DRIVER = "astra"


class Answer(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", populate_by_name=True)

    @model_validator(mode="before")
    @classmethod
    def _null_is_missing(cls, given: Any) -> Any:
        return {k: v for k, v in given.items() if v is not None} if isinstance(given, Mapping) else given

    @classmethod
    def of(cls, body: object) -> Self:
        """
        Raises:
            Unavailable: It is nothing that Nomad says; a proxy may have answered in its place.
        """
        try:
            return cls.model_validate(body)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"]) or "the whole"
            raise Unavailable(
                f"Nomad's answer is no {cls.__name__.lower()} ({where}: {first['msg']}): is there a proxy in between?"
            ) from error

    @classmethod
    def list_of(cls, body: object) -> tuple[Self, ...]:
        """As `of`, for a list; `null` is an empty one."""
        if body is None:
            return ()
        if not isinstance(body, list):
            raise Unavailable(f"Nomad's answer is no list of {cls.__name__.lower()}s: is there a proxy in between?")
        return tuple(cls.of(item) for item in body)


# Jobs and evaluations ------------------------------------------------------------------------------------------------


class Group(Answer):
    name: str = Field("", alias="Name")
    count: int = Field(1, alias="Count")


class Job(Answer):
    """*document*: the whole of it, to be registered again with a change."""

    id: str = Field(alias="ID")
    namespace: str = Field("default", alias="Namespace")
    version: int = Field(0, alias="Version")
    modify_index: int = Field(0, alias="JobModifyIndex")
    stopped: bool = Field(False, alias="Stop")
    status: str = Field("", alias="Status")
    type: str = Field("", alias="Type")
    meta: dict[str, str] = Field({}, alias="Meta")
    groups: tuple[Group, ...] = Field((), alias="TaskGroups")
    document: dict[str, Any] = Field({}, exclude=True, repr=False)

    @model_validator(mode="before")
    @classmethod
    def _keep_the_document(cls, given: Any) -> Any:
        return {**given, "document": given} if isinstance(given, Mapping) else given


class Registered(Answer):
    """What register, deregister and scale answer. *evaluation* is empty when there was nothing to do."""

    evaluation: str = Field("", alias="EvalID")
    modify_index: int = Field(0, alias="JobModifyIndex")
    warnings: str = Field("", alias="Warnings")


class Shortage(Answer):
    """Why a group's placement failed. *more*: further placements of the group that were not even tried."""

    filtered: dict[str, int] = Field({}, alias="ConstraintFiltered")
    exhausted: dict[str, int] = Field({}, alias="DimensionExhausted")
    more: int = Field(0, alias="CoalescedFailures")


class Evaluation(Answer):
    id: str = Field(alias="ID")
    job: str = Field("", alias="JobID")
    status: str = Field("", alias="Status")
    description: str = Field("", alias="StatusDescription")
    triggered_by: str = Field("", alias="TriggeredBy")
    create_index: int = Field(0, alias="CreateIndex")
    modify_index: int = Field(0, alias="ModifyIndex")
    job_modify_index: int = Field(0, alias="JobModifyIndex")
    failed: dict[str, Shortage] = Field({}, alias="FailedTGAllocs")
    blocked: str = Field("", alias="BlockedEval")
    queued: dict[str, int] = Field({}, alias="QueuedAllocations")


# Allocations ---------------------------------------------------------------------------------------------------------


class TaskEvent(Answer):
    type: str = Field("", alias="Type")
    message: str = Field("", alias="DisplayMessage")
    details: dict[str, str] = Field({}, alias="Details")


class Task(Answer):
    state: str = Field("pending", alias="State")
    failed: bool = Field(False, alias="Failed")
    restarts: int = Field(0, alias="Restarts")
    events: tuple[TaskEvent, ...] = Field((), alias="Events")


class Cpu(Answer):
    shares: int = Field(0, alias="CpuShares")


class Memory(Answer):
    mb: int = Field(0, alias="MemoryMB")


class Device(Answer):
    vendor: str = Field("", alias="Vendor")
    type: str = Field("", alias="Type")
    ids: tuple[str, ...] = Field((), alias="DeviceIDs")


class TaskResources(Answer):
    cpu: Cpu = Field(Cpu(), alias="Cpu")
    memory: Memory = Field(Memory(), alias="Memory")
    devices: tuple[Device, ...] = Field((), alias="Devices")


class AllocatedResources(Answer):
    tasks: dict[str, TaskResources] = Field({}, alias="Tasks")


class Allocation(Answer):
    """*job_version* is there in lists; a single allocation has the whole job instead."""

    id: str = Field(alias="ID")
    namespace: str = Field("default", alias="Namespace")
    job: str = Field("", alias="JobID")
    job_version: int = Field(0, alias="JobVersion")
    group: str = Field("", alias="TaskGroup")
    name: str = Field("", alias="Name")
    node: str = Field("", alias="NodeID")
    node_name: str = Field("", alias="NodeName")
    desired: str = Field("run", alias="DesiredStatus")
    client: str = Field("pending", alias="ClientStatus")
    description: str = Field("", alias="ClientDescription")
    desired_description: str = Field("", alias="DesiredDescription")
    create_index: int = Field(0, alias="CreateIndex")
    modify_index: int = Field(0, alias="ModifyIndex")
    tasks: dict[str, Task] = Field({}, alias="TaskStates")
    resources: AllocatedResources = Field(AllocatedResources(), alias="AllocatedResources")

    @property
    def is_over(self) -> bool:
        """Its client has said that nothing of it runs, or Nomad has given up on the client."""
        return self.client in TERMINAL

    @property
    def is_live(self) -> bool:
        """It is meant to run, and does, will, or is on a machine that is cut off."""
        return self.desired == "run" and not self.is_over

    @property
    def index(self) -> int:
        """The number in its name `job.group[3]`. A hint: duplicates have been seen."""
        digits = self.name.rpartition("[")[2].rstrip("]")
        return int(digits) if digits.isdecimal() else 0


# Nodes ---------------------------------------------------------------------------------------------------------------


class NodeCpu(Answer):
    shares: int = Field(0, alias="CpuShares")
    cores: int = Field(0, alias="TotalCpuCores")


class Instance(Answer):
    id: str = Field("", alias="ID")
    healthy: bool = Field(False, alias="Healthy")


class DeviceGroup(Answer):
    vendor: str = Field("", alias="Vendor")
    type: str = Field("", alias="Type")
    name: str = Field("", alias="Name")
    instances: tuple[Instance, ...] = Field((), alias="Instances")


class NodeResources(Answer):
    cpu: NodeCpu = Field(NodeCpu(), alias="Cpu")
    memory: Memory = Field(Memory(), alias="Memory")
    devices: tuple[DeviceGroup, ...] = Field((), alias="Devices")


class Driver(Answer):
    detected: bool = Field(False, alias="Detected")
    healthy: bool = Field(False, alias="Healthy")
    description: str = Field("", alias="HealthDescription")
    attributes: dict[str, str] = Field({}, alias="Attributes")


class Drained(Answer):
    status: str = Field("", alias="Status")


class Node(Answer):
    id: str = Field(alias="ID")
    name: str = Field("", alias="Name")
    address: str = Field("", alias="Address")
    pool: str = Field("default", alias="NodePool")
    status: str = Field("", alias="Status")
    eligibility: str = Field("eligible", alias="SchedulingEligibility")
    draining: bool = Field(False, alias="Drain")
    last_drain: Drained = Field(Drained(), alias="LastDrain")
    drivers: dict[str, Driver] = Field({}, alias="Drivers")
    resources: NodeResources = Field(NodeResources(), alias="NodeResources")
    reserved: NodeResources = Field(NodeResources(), alias="ReservedResources")

    @property
    def machine(self) -> str:
        """The name that the agent on it gives its machine; the node's own where no driver tells."""
        driver = self.drivers.get(DRIVER)
        return (driver.attributes.get("driver.astra.machine") if driver else None) or self.name


# The servers, variables ----------------------------------------------------------------------------------------------


class Member(Answer):
    name: str = Field("", alias="Name")
    status: str = Field("", alias="Status")
    tags: dict[str, str] = Field({}, alias="Tags")


class Members(Answer):
    members: tuple[Member, ...] = Field((), alias="Members")

    def version(self) -> tuple[int, int, int] | None:
        """The oldest of the servers that are alive: what all of them can. None when nobody says."""
        builds = [m.tags["build"] for m in self.members if m.status == "alive" and "build" in m.tags]
        return min((version(build) for build in builds), default=None)


def version(build: str) -> tuple[int, int, int]:
    """`1.6.5`, `2.0.5-dev`, `1.7.0+ent` as numbers; what can't be read counts as 0."""
    parts = [*build.partition("-")[0].partition("+")[0].split("."), "0", "0", "0"][:3]
    major, minor, patch = (int(part) if part.isdecimal() else 0 for part in parts)
    return major, minor, patch


class Lock(Answer):
    id: str = Field("", alias="ID")


class Variable(Answer):
    """*modify_index* 0: there is none. A list has no items."""

    path: str = Field("", alias="Path")
    modify_index: int = Field(0, alias="ModifyIndex")
    items: dict[str, str] = Field({}, alias="Items")
    lock: Lock | None = Field(None, alias="Lock")
