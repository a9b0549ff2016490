"""What Nomad calls a task, and what the agent calls the slot of it. Pure."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

from astra_agent.errors import InvalidRequest

_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")
_LABEL_MAX = 63


@dataclass(frozen=True, slots=True)
class TaskId:
    """
    `<allocation>/<task>/<start>`. Nomad makes a new one for each start of the task; the slot is the allocation's task,
    and *start* its incarnation.
    """

    allocation: str
    task: str
    start: str

    @staticmethod
    def parse(text: str) -> TaskId:
        """Raises: InvalidRequest."""
        allocation, _, rest = text.partition("/")
        task, _, start = rest.rpartition("/")
        if not (allocation and task and start):
            raise InvalidRequest(f'the task ID is "{text}"; expected <allocation>/<task>/<start>')
        return TaskId(allocation, task, start)

    @property
    def slot(self) -> str:
        return slot_id(self.allocation, self.task)

    @property
    def engine_ref(self) -> str:
        return f"{self.allocation}/{self.task}"


def slot_id(allocation: str, task: str) -> str:
    """The same each time, and another one for each task: a name that is no label, or too long, goes in as its hash."""
    plain = f"{allocation}-{task}"
    if len(plain) <= _LABEL_MAX and _LABEL.fullmatch(plain):
        return plain
    return f"{allocation.lower()}-{hashlib.sha256(task.encode()).hexdigest()[:16]}"


def of_engine_ref(ref: str) -> tuple[str, str] | None:
    """Allocation and task; None for a slot that is not Nomad's."""
    allocation, slash, task = ref.partition("/")
    return (allocation, task) if allocation and slash and task else None


def host_name(*words: str) -> str:
    """A DNS label of these words."""
    label = re.sub(r"[^a-z0-9]+", "-", "-".join(words).lower()).strip("-")
    return label[:_LABEL_MAX].strip("-") or "task"
