"""
The document that a user submits, as it is written: names, types and ranges of its fields, and nothing else.

Every field's description says what would be right there; a refusal quotes it, so it reads after "right is".
What a document means together is in `rules`, what it comes to in `astra_gang.spec`.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PlainSerializer,
    SerializerFunctionWrapHandler,
    Strict,
    model_serializer,
    model_validator,
)

MACHINES_MAX = 4096
GPUS_MAX = 65536
CPU_CORES_MAX = 65536
MEMORY_MAX = 2**50
TIME_LIMIT_MAX_S = 10 * 365 * 86400

T = TypeVar("T")
# JSON has lists only: a list is taken for a tuple, while what is in it stays strict.
Many = Annotated[tuple[T, ...], Strict(False)]


# A whole number stays one: the document that is given back reads as it was written.
Number = Annotated[float, PlainSerializer(lambda value: int(value) if value.is_integer() else value)]


class Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class GpuRequests(Part):
    count: int = Field(
        0,
        ge=0,
        le=GPUS_MAX,
        description=f"how many GPUs the whole run has, a whole number from 0 to {GPUS_MAX}, such as 16",
    )
    min_per_machine: int | None = Field(
        None, ge=1, le=GPUS_MAX, description="the fewest GPUs a worker may have, a whole number from 1, such as 8"
    )


class Machines(Part):
    """How many machines a run may take. In a document a plain number stands for both ends."""

    min: int = Field(1, ge=1, le=MACHINES_MAX, description=f"a whole number from 1 to {MACHINES_MAX}, such as 2")
    max: int | None = Field(
        None,
        ge=1,
        le=MACHINES_MAX,
        description=f"a whole number from 1 to {MACHINES_MAX}, not less than min, such as 4",
    )

    @model_validator(mode="before")
    @classmethod
    def _number(cls, value: object) -> object:
        if isinstance(value, int) and not isinstance(value, bool):
            return {"min": value, "max": value}
        return value

    @model_serializer(mode="wrap")
    def _as_written(self, handler: SerializerFunctionWrapHandler) -> object:
        return self.min if self.min == self.max else handler(self)


class PerGpu(Part):
    cpu_cores: Number | None = Field(
        None, gt=0, le=CPU_CORES_MAX, description="CPU cores for each GPU, a number above 0, such as 12"
    )
    memory_bytes: int | None = Field(
        None,
        gt=0,
        le=MEMORY_MAX,
        description="bytes of memory for each GPU, a whole number above 0, such as 128849018880",
    )


class Network(Part):
    interconnect: Literal["rdma", "infiniband", "nvlink"] | None = Field(
        None, description='the slowest network that will do: "rdma", "infiniband" or "nvlink"'
    )
    min_gbps: Number | None = Field(
        None, gt=0, le=100_000, description="the least speed of one port in Gb/s, a number above 0, such as 200"
    )


class RequestedResources(Part):
    cpu_cores: Number | None = Field(
        None, gt=0, le=CPU_CORES_MAX, description="CPU cores of one worker, a number above 0, such as 4"
    )
    memory_bytes: int | None = Field(
        None,
        gt=0,
        le=MEMORY_MAX,
        description="bytes of memory of one worker, a whole number above 0, such as 17179869184",
    )
    gpu_requests: GpuRequests = Field(GpuRequests(), description='an object such as {"count": 16}')
    machines: Machines | None = Field(
        None, description=f'a whole number from 1 to {MACHINES_MAX}, or {{"min": 2, "max": 4}}'
    )
    per_gpu: PerGpu = Field(PerGpu(), description='an object such as {"cpu_cores": 12, "memory_bytes": 128849018880}')
    network: Network = Field(Network(), description='an object such as {"interconnect": "infiniband"}')


class DatavolumeRef(Part):
    name: str = Field(description='the name of a drive, such as "datasets"')
    mount_path: str = Field(description='an absolute path in the container, such as "/data"')
    mode: Literal["ReadOnly", "ReadWrite"] = Field("ReadWrite", description='"ReadOnly" or "ReadWrite"')


class TaskTemplate(Part):
    image: str = Field(
        description='an image reference such as "nvcr.io/nvidia/pytorch:24.08-py3", "host" or "oci-archive:/path.tar"'
    )
    command: str | None = Field(None, description='the program as one string, such as "bash", with the rest in args')
    args: Many[str] = Field((), description='a list of strings, such as ["-c", "torchrun train.py"]')
    env: dict[str, str] = Field(
        {}, description='an object of strings, such as {"NCCL_DEBUG": "INFO"}: put numbers in quotes'
    )
    time_limit_seconds: Number | None = Field(
        None, gt=0, le=TIME_LIMIT_MAX_S, description="seconds, a number above 0, such as 86400"
    )
    datavolume_refs: Many[DatavolumeRef] = Field(
        (), description='a list of objects such as {"name": "datasets", "mount_path": "/data", "mode": "ReadOnly"}'
    )
    health_check: dict[str, object] | None = Field(None, description="an object")
    requested_resources: RequestedResources = Field(
        RequestedResources(), description='an object such as {"gpu_requests": {"count": 16}, "machines": 2}'
    )


class DependsOn(Part):
    group_name: str = Field(description="the name of a worker group of this run")
    condition: Literal["Running", "Healthy"] = Field(description='"Running" or "Healthy"')


class TaskGroup(Part):
    name: str = Field(description='the name of the group, such as "driver"')
    task_template: TaskTemplate = Field(description='an object with an "image"')
    depends_on: Many[DependsOn] = Field(
        (), description='a list of objects such as {"group_name": "driver", "condition": "Running"}'
    )


class RunSpec(Part):
    start: Literal["Gang", "MinAvailable", "Independent"] = Field(
        "Independent", description='"Gang", "MinAvailable" or "Independent"'
    )
    on_failure: Literal["RestartJob", "RestartTask", "FailJob"] | None = Field(
        None, description='"RestartJob", "RestartTask" or "FailJob"'
    )
    min_available: int | None = Field(
        None,
        ge=1,
        le=MACHINES_MAX,
        description=f"how many workers start together, a whole number from 1 to {MACHINES_MAX}",
    )
    task_template: TaskTemplate | None = Field(None, description='an object with an "image"')
    task_groups: Many[TaskGroup] | None = Field(None, description="a list of worker groups")
    leader_group: str | None = Field(None, description="the name of a worker group of this run")
    complete_with: str | None = Field(None, description="the name of a worker group of this run")
    priority: int | None = Field(
        None,
        ge=-1000,
        le=1000,
        description="a whole number from -1000 to 1000, 0 by default: higher ones choose machines first",
    )
    preflight: bool | None = Field(
        None, description="true, to have the network between the machines proved before any program starts, or false"
    )
    spares: int | None = Field(
        None,
        ge=0,
        le=MACHINES_MAX,
        description="a whole number from 0, 0 by default: slots beside the workers', each to take over from one whose "
        "machine fails",
    )
    segment: int | None = Field(None, ge=1, le=MACHINES_MAX, description="a whole number from 1")


class Metadata(Part):
    name: str = Field(description='the name of the run, such as "llama-sft"')


class Document(Part):
    metadata: Metadata = Field(description='an object such as {"name": "llama-sft"}')
    spec: RunSpec = Field(description='an object with a "task_template"')
