"""What the fake knows: nodes, jobs, allocations; and its scheduler, which places what fits, a part included."""

from __future__ import annotations

import asyncio
import copy
import json
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.fakes.agent_socket import FakeAgentSocket
from tests.fakes.nomad import recorded

TERMINAL = ("complete", "failed", "lost")


@dataclass(slots=True)
class FakeNode:
    """A machine with a client; *agent* is what its driver talks to."""

    name: str
    agent: FakeAgentSocket | None = None
    id: str = field(default_factory=lambda: str(uuid.uuid4()))
    pool: str = "gpu"
    status: str = "ready"
    eligible: bool = True
    draining: bool = False
    cores: int = 16
    memory_mb: int = 64 * 1024
    gpus: tuple[str, ...] = ()
    driver_healthy: bool = True

    @property
    def takes(self) -> bool:
        return self.status == "ready" and self.eligible and not self.draining and self.driver_healthy


@dataclass(slots=True)
class FakeJob:
    document: dict[str, Any]
    create_index: int
    modify_index: int
    version: int = 0
    stopped: bool = False

    @property
    def groups(self) -> dict[str, dict[str, Any]]:
        return {group["Name"]: group for group in self.document["TaskGroups"]}

    def allows(self, group: dict[str, Any], node: FakeNode) -> bool:
        for constraint in group.get("Constraints") or ():
            if constraint.get("LTarget") == "${node.unique.id}" and node.id not in constraint["RTarget"].split(","):
                return False
        return bool(self.document.get("NodePool", "default") == node.pool)


@dataclass(slots=True)
class FakeAllocation:
    id: str
    job: FakeJob
    group: str
    node: FakeNode
    number: int
    evaluation: str
    create_index: int
    modify_index: int
    desired: str = "run"
    client: str = "pending"
    description: str = ""
    events: list[tuple[str, str]] = field(default_factory=list)
    failed: bool = False
    gpus: tuple[str, ...] = ()

    @property
    def task(self) -> dict[str, Any]:
        found: dict[str, Any] = self.job.groups[self.group]["Tasks"][0]
        return found

    @property
    def over(self) -> bool:
        return self.client in TERMINAL


Key = tuple[str, str]


class FakeNomad:
    """
    Attributes:
        forbidden: Capabilities that the token lacks now.
        broken: Answers that the next calls get, first one first: status and text.
        slow_to_start: While set, drivers do not answer StartTask.
    """

    def __init__(self, version: str = "2.0.5") -> None:
        self.version = version
        self.index = 100
        self.nodes: dict[str, FakeNode] = {}
        self.jobs: dict[Key, FakeJob] = {}
        self.evaluations: dict[str, dict[str, Any]] = {}
        self.allocations: list[FakeAllocation] = []
        self.forbidden: set[str] = set()
        self.broken: list[tuple[int, str]] = []
        self.changed = asyncio.Event()
        self.events: list[dict[str, Any]] = []
        self.before_scheduling_s = 0.005

    # Changes ---------------------------------------------------------------------------------------------------------

    def bump(self, topic: str = "", key: str = "", namespace: str = "default", job: str = "") -> int:
        """One raft entry: a new index, an event, everybody who waits is woken."""
        self.index += 1
        if topic:
            payload = {topic: {"ID": key, "JobID": job}}
            self.events.append(
                {"Topic": topic, "Key": key, "Namespace": namespace, "Index": self.index, "Payload": payload}
            )
        self.changed.set()
        self.changed = asyncio.Event()
        return self.index

    def add_node(self, name: str, agent: FakeAgentSocket | None = None, **more: Any) -> FakeNode:
        node = FakeNode(name, agent, **more)
        self.nodes[name] = node
        self.bump("Node", node.id)
        return node

    def set_node(self, name: str, **changes: Any) -> None:
        """Its state as Nomad has it; what fits now is placed."""
        for key, value in changes.items():
            setattr(self.nodes[name], key, value)
        self.bump("Node", self.nodes[name].id)
        self._unblock()

    def register(self, document: dict[str, Any]) -> tuple[FakeJob, dict[str, Any]]:
        key = (document.get("Namespace") or "default", document["ID"])
        known = self.jobs.get(key)
        document = self._stored(document)
        index = self.bump("Job", key[1], key[0])
        if known is None:
            job = self.jobs[key] = FakeJob(document, index, index)
        else:
            job, same = known, known.document == document and not known.stopped
            job.document, job.stopped = document, False
            if not same:
                job.version += 1
                job.modify_index = index
        return job, self._evaluate(key, job, "job-register")

    def deregister(self, key: Key) -> dict[str, Any] | None:
        job = self.jobs.get(key)
        if job is None:
            return None
        job.stopped = True
        job.modify_index = self.bump("Job", key[1], key[0])
        for evaluation in self.evaluations.values():
            if evaluation["JobID"] == key[1] and evaluation["Status"] == "blocked":
                evaluation["Status"] = "canceled"
        return self._evaluate(key, job, "job-deregister")

    def scale(self, key: Key, count: int) -> dict[str, Any]:
        job = self.jobs[key]
        document = copy.deepcopy(job.document)
        document["TaskGroups"][0]["Count"] = count
        return self.register(document)[1]

    def update(self, allocation: FakeAllocation, **changes: Any) -> None:
        """A client's report, or a decision of the scheduler."""
        for name, value in changes.items():
            setattr(allocation, name, value)
        job = allocation.job.document
        allocation.modify_index = self.bump("Allocation", allocation.id, job["Namespace"], job["ID"])
        if changes.get("client") in ("complete", "failed"):
            self._unblock()

    # Reading ---------------------------------------------------------------------------------------------------------

    def of(self, key: Key) -> list[FakeAllocation]:
        return [a for a in self.allocations if (a.job.document["Namespace"], a.job.document["ID"]) == key]

    def status(self, job: FakeJob) -> str:
        if any(a.job is job and not a.over for a in self.allocations):
            return "running"
        if job.stopped:
            return "dead"
        waiting = any(
            e["Status"] in ("blocked", "pending") for e in self.evaluations.values() if e["JobID"] == job.document["ID"]
        )
        return "pending" if waiting else "dead"

    # The scheduler ---------------------------------------------------------------------------------------------------

    def _evaluate(self, key: Key, job: FakeJob, why: str) -> dict[str, Any]:
        evaluation: dict[str, Any] = {
            "ID": str(uuid.uuid4()), "JobID": key[1], "Namespace": key[0], "Status": "pending", "TriggeredBy": why,
            "CreateIndex": self.index, "ModifyIndex": self.index, "JobModifyIndex": job.modify_index, "Type": "batch",
            "Priority": 50,
        }  # fmt: skip
        self.evaluations[evaluation["ID"]] = evaluation
        asyncio.get_running_loop().call_later(self.before_scheduling_s, self._process, key, evaluation)
        return evaluation

    def _process(self, key: Key, evaluation: dict[str, Any]) -> None:
        """Stop what is too much or in the wrong place, place what fits, and leave the rest in a blocked evaluation."""
        job = self.jobs[key]
        queued = {}
        for name, group in job.groups.items():
            wanted = 0 if job.stopped else int(group["Count"])
            counted = [a for a in self.of(key) if a.group == name and a.desired == "run" and a.client != "lost"]
            for allocation in counted[wanted:]:
                self.update(allocation, desired="stop")
            queued[name] = wanted - len(counted[:wanted])
            for node in sorted(self.nodes.values(), key=lambda node: node.name):
                if queued[name] > 0 and self._fits(job, group, node):
                    self._start(job, name, node, evaluation)
                    queued[name] -= 1
        waiting = [e for e in self.evaluations.values() if e["JobID"] == key[1] and e["Status"] == "blocked"]
        for old in waiting:
            old |= {"Status": "canceled", "ModifyIndex": self.index}
        index = self.bump("Evaluation", evaluation["ID"], key[0], key[1])
        evaluation |= {"Status": "complete", "ModifyIndex": index, "QueuedAllocations": queued}
        short = [name for name, missing in queued.items() if missing > 0]
        if short:
            shortage = recorded.body(self.version, "evaluation-partial")["FailedTGAllocs"]["workers"]
            blocked = {
                **evaluation, "ID": str(uuid.uuid4()), "Status": "blocked", "TriggeredBy": "queued-allocs",
                "CreateIndex": index,
            }  # fmt: skip
            del blocked["QueuedAllocations"]
            self.evaluations[blocked["ID"]] = blocked
            evaluation |= {"BlockedEval": blocked["ID"], "FailedTGAllocs": dict.fromkeys(short, shortage)}

    def _unblock(self) -> None:
        """Capacity has changed: every blocked evaluation is looked at again."""
        for evaluation in list(self.evaluations.values()):
            if evaluation["Status"] == "blocked":
                key = (evaluation["Namespace"], evaluation["JobID"])
                job = self.jobs[key]
                if any(self._fits(job, g, node) for g in job.groups.values() for node in self.nodes.values()):
                    evaluation["Status"] = "canceled"
                    self._evaluate(key, job, "queued-allocs")

    def _fits(self, job: FakeJob, group: dict[str, Any], node: FakeNode) -> bool:
        on_it = [a for a in self.allocations if a.node is node and not a.over]
        if not node.takes or not job.allows(group, node):
            return False
        if any(a.job is job and a.group == group["Name"] for a in on_it) or self._gpus(group, node) is None:
            return False
        cpu = sum(a.task["Resources"]["CPU"] for a in on_it)
        memory = sum(a.task["Resources"]["MemoryMB"] for a in on_it)
        asked = group["Tasks"][0]["Resources"]
        return bool(cpu + asked["CPU"] <= node.cores * 1000 and memory + asked["MemoryMB"] <= node.memory_mb)

    def _start(self, job: FakeJob, group: str, node: FakeNode, evaluation: dict[str, Any]) -> None:
        allocation = FakeAllocation(
            id=str(uuid.uuid4()),
            job=job,
            group=group,
            node=node,
            number=len(self.of((job.document["Namespace"], job.document["ID"]))),
            evaluation=evaluation["ID"],
            create_index=self.index,
            modify_index=self.index,
            gpus=self._gpus(job.groups[group], node) or (),
        )
        self.allocations.append(allocation)
        self.bump("Allocation", allocation.id, job.document["Namespace"], job.document["ID"])

    def _gpus(self, group: dict[str, Any], node: FakeNode) -> tuple[str, ...] | None:
        """The instances that the job would get on this node; None when there are too few."""
        taken = {gpu for a in self.allocations if a.node is node and not a.over for gpu in a.gpus}
        chosen: list[str] = []
        for ask in group["Tasks"][0]["Resources"].get("Devices") or ():
            pinned = [c["RTarget"].split(",") for c in ask["Constraints"] if c["LTarget"] == "${device.ids}"]
            fitting = [gpu for gpu in node.gpus if gpu not in taken and all(gpu in ids for ids in pinned)]
            if len(fitting) < ask["Count"]:
                return None
            chosen += fitting[: ask["Count"]]
        return tuple(chosen)

    def _stored(self, document: dict[str, Any]) -> dict[str, Any]:
        """As this version keeps it: fields of the other one are dropped without a word."""
        kept: dict[str, Any] = json.loads(json.dumps(document))
        kept.setdefault("Namespace", "default")
        template = recorded.body(self.version, "job")
        for group in kept["TaskGroups"]:
            for name in set(group) - set(template["TaskGroups"][0]):
                del group[name]
            if self.version.startswith("2."):
                group["MaxClientDisconnect"] = None
        return kept

    def waiting(self) -> Iterator[FakeAllocation]:
        """Those whose clients have not taken them."""
        yield from (a for a in self.allocations if a.client == "pending")
