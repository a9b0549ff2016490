"""Runs the all-reduce of our examples in the user's image, through the API that any run goes through, with a bound."""

from __future__ import annotations

import asyncio
import secrets
from contextlib import suppress
from importlib import resources
from typing import Any

from astra_agent.errors import AstraError, Conflict, InvalidRequest, NotFound
from astra_cli.client import Client
from astra_cli.documents import ENDED, Job
from astra_cli.follow import Narrator, follow_run
from astra_cli.netcheck import program
from astra_cli.netcheck.program import Ran

Json = dict[str, Any]

LOG_BYTES = 16 << 20
"""Of each worker, from the end: NCCL writes some thousand lines for a machine."""
LOG_S = 20.0
_LAST_LINES = 3


async def run(client: Client, document: Json, narrator: Narrator, *, limit_s: float) -> Ran:
    """
    Submit, wait for its end, read what its workers wrote.

    It is stopped when it takes longer than *limit_s*, the fetch of its image included, and when this is cancelled.

    Raises:
        AstraError: The coordinator refuses the run, or does not answer.
    """
    backend = program.backend_of(document)
    source = (resources.files("astra_cli.netcheck") / "programs" / f"{backend}.program").read_text()
    submitted = await client.submit(program.of(document, name=f"netcheck-{secrets.token_hex(3)}", source=source))
    name = Job.model_validate(submitted).metadata.name
    narrator.note(f"{name} runs the all-reduce with PyTorch")
    late = ""
    try:
        async with asyncio.timeout(limit_s):
            await follow_run(client, name, narrator)
    except TimeoutError:
        late = f"{limit_s:.0f} s were over; "
    finally:
        await asyncio.shield(_end(client, name))
    job = Job.model_validate(await client.job(name))
    workers = sorted(job.status.workers, key=lambda worker: worker.rank)
    logs = tuple([await _log(client, name, worker.rank, worker.attempt) for worker in workers])
    template = document["spec"]["task_template"]
    gpus = (template.get("requested_resources") or {}).get("gpu_requests") or {}
    return Ran(
        image=str(template["image"]),
        backend=backend,
        machines=tuple(worker.machine or worker.name for worker in workers),
        ranks=gpus.get("count") or len(workers),
        promised=program.promise(job.status.tier or "", document),
        logs=logs,
        failure="" if job.status.phase == "Completed" else late + _why(job, logs),
    )


async def _end(client: Client, name: str) -> None:
    """So that nothing of it goes on; does nothing to a run that has ended."""
    with suppress(AstraError):
        if Job.model_validate(await client.job(name)).status.phase not in ENDED:
            await client.stop(name)


async def _log(client: Client, name: str, rank: int, attempt: int | None) -> str:
    """As far as it has been written when its end is known; empty for a worker that never started."""
    pieces = []
    with suppress(NotFound, Conflict, InvalidRequest, TimeoutError):
        async with asyncio.timeout(LOG_S):
            async for piece in client.logs(name, rank, attempt=attempt, follow=True, tail_bytes=LOG_BYTES):
                pieces.append(piece)
    return b"".join(pieces).decode(errors="replace")


def _why(job: Job, logs: tuple[str, ...]) -> str:
    """The run's own reason, with the last lines of the first worker that wrote any."""
    reason = job.status.reason or job.status.phase
    for rank, log in enumerate(logs):
        if lines := [line.strip() for line in log.splitlines() if line.strip()][-_LAST_LINES:]:
            return f"{reason}; rank {rank} wrote last: {' / '.join(lines)}"
    return reason
