"""
The spec of a run: parsed once, at the edge, from what a user submits to what the coordinator works with.

`parse` is the only way in. It knows nothing of the cluster: an impossible shape is refused here, one that only finds no
room now is not.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from pydantic import ValidationError

from astra_agent.errors import InvalidRequest
from astra_agent.wire import DriveMount
from astra_gang.core.state import OnFailure, Policy, StartPolicy
from astra_gang.shape import Resources, most_workers
from astra_gang.spec import rules
from astra_gang.spec.document import MACHINES_MAX, Document, RequestedResources, RunSpec, TaskTemplate
from astra_gang.spec.refusal import refusal
from astra_gang.spec.rules import SPARE_SUFFIX

__all__ = ["SPARE_SUFFIX", "Spec", "as_document", "parse", "policy"]


@dataclass(frozen=True, slots=True)
class Spec:
    """
    What a run is, with every default filled in.

    Attributes:
        command: Program and arguments; empty for the image's own entrypoint and command.
        args: With an empty *command*: arguments for the image's entrypoint.
        machines_max: The most workers that the scheduler may choose; 1 unless the run is a gang.
        interconnect: The loosest tier between workers that will do (`nvlink`, `infiniband`, `rdma`), or None for any.
        min_gbps: What a port must reach at least, or 0.
        preflight: The network between its machines is proved before any program starts.
        spares: Slots beside the workers', each to take over the rank of one whose machine fails.
        document: The run as it was submitted, with defaults.
    """

    name: str
    start: StartPolicy
    on_failure: OnFailure
    time_limit_s: float | None
    image: str
    command: tuple[str, ...]
    args: tuple[str, ...]
    env: dict[str, str]
    drives: tuple[DriveMount, ...]
    resources: Resources
    machines_max: int
    interconnect: str | None
    min_gbps: float
    document: Document
    preflight: bool = False
    spares: int = 0


def parse(document: object) -> Spec:
    """
    Read a run from a JSON value: the whole document with `metadata` and `spec`.

    Raises:
        InvalidRequest: The first thing that is wrong, in one sentence, with the path of the field.
    """
    try:
        checked = Document.model_validate(document)
    except ValidationError as error:
        raise refusal(error, document) from None
    except RecursionError:
        raise InvalidRequest("the run is nested too deeply to be read") from None
    start = StartPolicy(checked.spec.start)
    template = checked.spec.task_template
    resources = _resources(template.requested_resources) if template else Resources()
    machines_max = MACHINES_MAX if start is StartPolicy.GANG else 1
    rules.check_available(checked.spec)
    rules.check(checked, most_workers(resources, machines_max=machines_max))
    if template is None:
        raise AssertionError("rules.check lets no run without a task_template pass")
    return _spec(_with_defaults(checked), template, resources, machines_max)


def policy(spec: Spec, settings: Policy) -> Policy:
    """What the core needs to know of the spec; times and limits that no spec sets come from *settings*."""
    return replace(
        settings,
        start=spec.start,
        on_failure=spec.on_failure,
        time_limit_s=spec.time_limit_s,
        preflight=spec.preflight,
        spares=spec.spares,
    )


def as_document(spec: Spec) -> dict[str, Any]:
    """The run as JSON, defaults filled in; `parse` gives the same spec for it."""
    return spec.document.model_dump(mode="json", exclude_none=True)


def _with_defaults(document: Document) -> Document:
    """A gang restarts as a whole unless the user says otherwise; workers that stand alone restart alone."""
    if document.spec.on_failure is not None:
        return document
    on_failure = OnFailure.RESTART_JOB if document.spec.start == "Gang" else OnFailure.RESTART_TASK
    spec = document.spec.model_copy(update={"on_failure": on_failure.value})
    return document.model_copy(update={"spec": spec})


def _spec(document: Document, template: TaskTemplate, resources: Resources, machines_max: int) -> Spec:
    run: RunSpec = document.spec
    network = template.requested_resources.network
    return Spec(
        name=document.metadata.name,
        start=StartPolicy(run.start),
        on_failure=OnFailure(run.on_failure or OnFailure.RESTART_JOB),
        time_limit_s=template.time_limit_seconds,
        image=template.image,
        command=(template.command, *template.args) if template.command else (),
        args=() if template.command else template.args,
        env=template.env,
        drives=tuple(
            DriveMount(name=ref.name, mount_path=ref.mount_path, read_only=ref.mode == "ReadOnly")
            for ref in template.datavolume_refs
        ),
        resources=resources,
        machines_max=machines_max,
        interconnect=network.interconnect,
        min_gbps=network.min_gbps or 0.0,
        document=document,
        preflight=bool(run.preflight),
        spares=run.spares or 0,
    )


def _resources(asked: RequestedResources) -> Resources:
    machines = asked.machines
    most = MACHINES_MAX if machines is None or machines.max is None else machines.max
    return Resources(
        gpus=asked.gpu_requests.count,
        min_gpus_per_machine=asked.gpu_requests.min_per_machine or 1,
        machines=None if machines is None else (machines.min, most),
        cpu_cores=asked.cpu_cores or 0.0,
        memory_bytes=asked.memory_bytes or 0,
        cpu_cores_per_gpu=asked.per_gpu.cpu_cores or 0.0,
        memory_bytes_per_gpu=asked.per_gpu.memory_bytes or 0,
    )
