"""Small runs and machines for tests of the coordinator."""

from __future__ import annotations

from typing import Any

from astra_agent.wire import GpuFacts, MachineFacts
from astra_gang import plan
from astra_gang.core import Policy, begin
from astra_gang.spec import Spec, parse, policy
from astra_gang.store import RunRecord


def document(name: str = "llama", machines: int = 2, gpus: int = 0, **spec: Any) -> dict[str, Any]:
    """A gang of *machines* workers, as a user submits it."""
    resources: dict[str, Any] = {"machines": machines, "cpu_cores": 1}
    if gpus:
        resources["gpu_requests"] = {"count": gpus}
    template = {"image": "host", "command": "sleep", "args": ["60"], "requested_resources": resources}
    return {"metadata": {"name": name}, "spec": {"start": "Gang", "task_template": template, **spec}}


def spec_of(name: str = "llama", machines: int = 2, gpus: int = 0, **spec: Any) -> Spec:
    return parse(document(name, machines, gpus, **spec))


def record(
    name: str = "llama",
    machines: int = 2,
    gpus: int = 0,
    *,
    uid: str = "u1",
    now: float = 1000.0,
    workspace: str = "default",
) -> RunRecord:
    """The run, just submitted."""
    spec = spec_of(name, machines, gpus)
    state = begin(
        workspace=workspace,
        name=name,
        uid=uid,
        policy=policy(spec, Policy()),
        workers=plan.workers(spec, machines),
        now=now,
    )
    return RunRecord(spec, state)


def facts(name: str = "m1", *, gpus: int = 8, cpu_cores: float = 16.0, out_of_use: str | None = None) -> MachineFacts:
    return MachineFacts(
        name=name,
        address=f"10.0.0.{name.removeprefix('m')}",
        cpu_cores=cpu_cores,
        memory_bytes=64 * 2**30,
        gpus=tuple(GpuFacts(index=i, uuid=f"GPU-{name}-{i}") for i in range(gpus)),
        out_of_use=out_of_use,
    )
