"""
The port to Nomad: what the engine, the records and the adoption ask of it, in values. Which library carries a call is
its own affair: python-nomad the plain calls about jobs, aiohttp all that waits, locks or streams.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, Generic, Self, TypeVar
from urllib.parse import quote

from astra_agent.errors import NotFound
from astra_gang.engines.nomad import refusals
from astra_gang.engines.nomad.answers import (
    Allocation,
    Evaluation,
    Job,
    Members,
    Node,
    Registered,
    Variable,
)
from astra_gang.engines.nomad.library import Library
from astra_gang.engines.nomad.transport import PATIENCE_S, Access, Transport

WAIT_S = 30.0
"""For one blocking query. After a snapshot is restored it is not woken, so it must end by itself (3.2)."""
WRITTEN_S = 7.0
"""For a variable to be written: a server that knows no leader says so after 5.2 s."""
EVERYWHERE = "*"
_LIVE = 'ClientStatus == "pending" or ClientStatus == "running" or ClientStatus == "unknown"'
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Seen(Generic[T]):
    """*index*: ask with it to hear of what comes after."""

    value: T
    index: int


class NomadApi:
    """
    Used inside `async with`. Every method raises `Unavailable` with a sentence when Nomad can't or won't answer; a
    write that raises it may have happened. `NotFound`, `Conflict` and `InvalidRequest` only where it says so.

    Args:
        namespace: Of calls that belong to no workspace.
    """

    def __init__(self, access: Access, *, namespace: str = "default", patience_s: float = PATIENCE_S) -> None:
        self.namespace = namespace
        self.transport = Transport(access, patience_s)
        self._library = Library(self.transport)
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        self._stack.push_async_callback(self._library.close)
        await self._stack.enter_async_context(self.transport)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    # The cluster -----------------------------------------------------------------------------------------------------

    async def members(self) -> Members:
        answer = await self.transport.read(
            "/v1/agent/members", "tell its version", refusals.NODES, namespace=self.namespace
        )
        return Members.of(answer.body)

    async def nodes(self, pool: str) -> tuple[Node, ...]:
        """Of the pool, sorted by name."""
        answer = await self.transport.read(
            "/v1/nodes", "list nodes", refusals.NODES, namespace=self.namespace, query={"resources": "true"}
        )
        found = (node for node in Node.list_of(answer.body) if node.pool == pool)
        return tuple(sorted(found, key=lambda node: (node.name, node.id)))

    async def live_allocations(self) -> tuple[Allocation, ...]:
        """Everything that may run, of all namespaces that the token may read, with resources."""
        query = {"resources": "true", "task_states": "false", "filter": _LIVE}
        answer = await self.transport.read(
            "/v1/allocations", "list allocations", refusals.READ, namespace=EVERYWHERE, query=query
        )
        return tuple(a for a in Allocation.list_of(answer.body) if not a.is_over)

    # Jobs ------------------------------------------------------------------------------------------------------------

    async def job(self, job: str, namespace: str) -> Job | None:
        try:
            return Job.of(await self._library.job(job, namespace, f"read job {job}", refusals.READ))
        except NotFound:
            return None

    async def jobs_with(self, key: str) -> tuple[Job, ...]:
        """Stubs of all jobs that are not dead and have this key in their meta."""
        answer = await self.transport.read(
            "/v1/jobs", "list jobs", refusals.LIST, namespace=EVERYWHERE, query={"meta": "true"}
        )
        return tuple(job for job in Job.list_of(answer.body) if key in job.meta)

    async def register(self, document: dict[str, Any], *, modify_index: int) -> Registered:
        """
        Args:
            modify_index: Of the job as it was read; 0: there must be none.

        Raises:
            Conflict: It is there already, or has changed since.
            InvalidRequest: Nomad does not take such a job.
        """
        body = {"Job": document, "EnforceIndex": True, "JobModifyIndex": modify_index}
        answer = await self._library.register(body, f"register job {document['ID']}", refusals.SUBMIT)
        return Registered.of(answer)

    async def deregister(self, job: str, namespace: str) -> Registered:
        """Stop it, without purge. Idempotent; a job that is not there is fine."""
        answer = await self._library.deregister(job, namespace, f"stop job {job}", refusals.SUBMIT)
        return Registered.of(answer)

    async def scale(self, job: str, namespace: str, group: str, count: int, why: str) -> Registered:
        """Raises also NotFound."""
        answer = await self.transport.ask(
            "POST", f"/v1/job/{_part(job)}/scale", f"scale job {job}", refusals.SUBMIT,
            namespace=namespace, body={"Count": count, "Target": {"Group": group}, "Message": why},
        )  # fmt: skip
        return Registered.of(answer.body)

    async def evaluations(self, job: str, namespace: str, *, index: int = 0) -> Seen[tuple[Evaluation, ...]]:
        answer = await self.transport.read(
            f"/v1/job/{_part(job)}/evaluations", f"read the evaluations of job {job}", refusals.READ,
            namespace=namespace, index=index, wait_s=WAIT_S,
        )  # fmt: skip
        return Seen(Evaluation.list_of(answer.body), answer.index)

    async def allocations(self, job: str, namespace: str, *, index: int = 0) -> Seen[tuple[Allocation, ...]]:
        """Of the job, with the states of their tasks; none for a job that is not there."""
        answer = await self.transport.read(
            f"/v1/job/{_part(job)}/allocations", f"list the allocations of job {job}", refusals.READ,
            namespace=namespace, index=index, wait_s=WAIT_S,
        )  # fmt: skip
        return Seen(Allocation.list_of(answer.body), answer.index)

    # Variables -------------------------------------------------------------------------------------------------------

    async def variable(self, path: str) -> Variable:
        """With `modify_index` 0 when there is none."""
        try:
            answer = await self.transport.read(
                f"/v1/var/{path}", f"read variable {path}", self._at(refusals.READ_VARIABLES, path),
                namespace=self.namespace,
            )  # fmt: skip
        except NotFound:
            return Variable(path=path)
        return Variable.of(answer.body)

    async def variables(self, prefix: str) -> tuple[Variable, ...]:
        """Without items, sorted by path."""
        answer = await self.transport.read(
            "/v1/vars", f"list variables under {prefix}", self._at(refusals.LIST_VARIABLES, prefix),
            namespace=self.namespace, query={"prefix": prefix},
        )  # fmt: skip
        return tuple(sorted(Variable.list_of(answer.body), key=lambda variable: variable.path))

    async def put_variable(self, path: str, items: dict[str, str], *, cas: int) -> Variable:
        """
        Write it, if its index is still *cas*; 0: if there is none.

        Raises:
            Conflict: It is another one.
            InvalidRequest: It is too large, or has a path that Nomad does not take.
        """
        answer = await self.transport.ask(
            "PUT", f"/v1/var/{path}", f"write variable {path}", self._at(refusals.WRITE_VARIABLES, path),
            namespace=self.namespace, query={"cas": str(cas)}, body={"Path": path, "Items": items}, within_s=WRITTEN_S,
        )  # fmt: skip
        return Variable.of(answer.body)

    async def delete_variable(self, path: str, *, cas: int) -> None:
        """Raises: Conflict, when its index is not *cas* any more, or it is gone."""
        await self.transport.ask(
            "DELETE", f"/v1/var/{path}", f"delete variable {path}", self._at(refusals.DESTROY_VARIABLES, path),
            namespace=self.namespace, query={"cas": str(cas)},
        )  # fmt: skip

    async def acquire_lock(self, path: str, items: dict[str, str], *, ttl_s: float, delay_s: float) -> Variable:
        """
        Only where the servers have locks (`answers.version`, 1.7): 1.6 writes the items and locks nothing.

        Raises:
            Conflict: Another has it.
        """
        body = {"Path": path, "Items": items, "Lock": {"TTL": f"{ttl_s:g}s", "LockDelay": f"{delay_s:g}s"}}
        return await self._lock(path, "lock-acquire", "acquire the lock", body)

    async def renew_lock(self, path: str, lock: str) -> None:
        """Raises: Conflict, when the lock is another's, or nobody's."""
        await self._lock(path, "lock-renew", "renew the lock", {"Path": path, "Lock": {"ID": lock}})

    async def release_lock(self, path: str, lock: str) -> None:
        """Raises: Conflict, when the lock is another's, or nobody's."""
        await self._lock(path, "lock-release", "release the lock", {"Path": path, "Lock": {"ID": lock}})

    async def _lock(self, path: str, operation: str, what: str, body: dict[str, Any]) -> Variable:
        answer = await self.transport.ask(
            "PUT", f"/v1/var/{path}", f"{what} {path}", self._at(refusals.WRITE_VARIABLES, path),
            namespace=self.namespace, query={operation: ""}, body=body,
        )  # fmt: skip
        return Variable.of(answer.body)

    def _at(self, need: refusals.Need, path: str) -> refusals.Need:
        return refusals.Need(need.name, need.rule.replace("PATH", f"{path.partition('/')[0]}/*"))


def _part(text: str) -> str:
    """One part of a path, whatever is in it."""
    return quote(text, safe="")
