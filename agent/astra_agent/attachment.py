"""
What a slot gets of its machine besides processor and memory: attachments, as variables and an edit of the OCI spec.

Devices and limits of real GPUs and ports are added here, as pure functions of the machine's facts; GPUs that a facts
file only claims are variables and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from astra_agent.errors import InvalidRequest
from astra_agent.wire import MachineFacts, SlotRequest

SpecEdit = Callable[[dict[str, object]], dict[str, object]]


@dataclass(frozen=True, slots=True)
class Attachment:
    env: Mapping[str, str] = field(default_factory=dict)
    spec_edit: SpecEdit | None = None


def attach(facts: MachineFacts, request: SlotRequest) -> Attachment:
    """Raises: InvalidRequest naming a GPU that this machine does not have."""
    if not request.gpus:
        return Attachment()
    uuids = {gpu.index: gpu.uuid for gpu in facts.gpus}
    for index in request.gpus:
        if index not in uuids:
            has = ", ".join(str(known) for known in sorted(uuids)) or "none"
            raise InvalidRequest(f"GPU {index} is not on {facts.name}; it has: {has}", "gpus")
    return Attachment(env={"NVIDIA_VISIBLE_DEVICES": ",".join(uuids[index] for index in request.gpus)})
