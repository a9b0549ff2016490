"""
The sentences that a user reads. Where the product's page on multi-machine runs gives one, it stands here word for word.
"""

from __future__ import annotations

from astra_gang.core.state import AttemptSeen, Worker

WAITING_AT_BARRIER = "Waiting at the gang barrier"
BARRIER_TIMED_OUT = "Gang barrier timed out waiting for all members"
TIME_LIMIT = "A gang member exceeded its time limit"


def starting_together(ready: int, total: int) -> str:
    return f"Starting together: {ready} of {total} ready"


def down(worker: Worker, machine: str) -> str:
    return f"{worker.name} is Down: its machine {machine} is lost"


def gang_restart(worker: Worker) -> str:
    return f"Gang restart: {worker.name} failed."


def task_restart(worker: Worker) -> str:
    return f"Worker restart: {worker.name} failed."


def how_it_ended(seen: AttemptSeen | None) -> str:
    if seen is None or seen.code_unknown or seen.code is None:
        return "Ended, exit code unknown"
    exited = f"Exited with code {seen.code}"
    return f"{seen.detail}: {exited[0].lower()}{exited[1:]}" if seen.detail else exited


def worker_failed(worker: Worker, machine: str, how: str) -> str:
    return f"Worker {worker.name} failed on {machine}: {how}"


def budget_spent(worker: Worker, machine: str, how: str) -> str:
    return f"{worker_failed(worker, machine, how)}; the gang does not run without it."


def back_off(attempt: int, wait_s: float, failures: int, budget: int) -> str:
    return f"Attempt {attempt} starts in {wait_s:g} s (failure {failures} of {budget} that its worker may have)"
