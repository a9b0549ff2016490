"""
The sentences that a user reads. Where the product's page on multi-machine runs gives one, it stands here word for word.

A run of one worker, whatever its start policy, is no gang to its user: nothing here calls it one.
"""

from __future__ import annotations

from collections.abc import Sequence

from astra_gang.core.slots import has_completed, has_ended, is_returning
from astra_gang.core.state import AttemptSeen, Proof, RunState, Slot, Worker

WAITING_AT_BARRIER = "Waiting at the gang barrier"
BARRIER_TIMED_OUT = "Gang barrier timed out waiting for all members"


def starting_together(members: Sequence[Worker], ready: int) -> str:
    if len(members) == 1:
        return f"{members[0].name} is {'ready to start' if ready else 'being prepared'}"
    return f"Starting together: {ready} of {len(members)} ready"


def proving(state: RunState) -> str:
    return f"Proving the network of {len(state.workers)} machines"


def proved(proof: Proof) -> str:
    """Of a proof that blames no machine."""
    if proof.verdict == "sound":
        return f"The network is proved: {proof.sentence}"
    if proof.verdict == "unmeasured":
        return f"The run goes on without a proof of its network: {proof.sentence}"
    return f"The run goes on, since no machine of it is to blame: {proof.sentence}"


def swaps(worker: Worker, machine: str) -> str:
    return f"{worker.name} leaves {machine}: another machine is tried"


def takes_spare(worker: Worker, slot: Slot) -> str:
    return f"{worker.name} takes the spare on {slot.machine}"


def spare_gone(slot: Slot) -> str:
    why = "its machine is lost" if slot.lost else slot.withdrawn or slot.stuck or slot.detail or "it has ended"
    return f"The spare on {slot.machine} is given up: {why}"


def unproved(state: RunState) -> str:
    names = ", ".join(state.workers[rank].name for rank in state.members)
    return f"{names} starts without a proof of the network: the other workers run"


def left_out(reason: str, why: str) -> str:
    """Why there is no placement, with why a machine is left out of it."""
    return f"{reason}; {why}" if why else reason


def faults_spent(why: str, faults: int) -> str:
    return f"{why}; {faults} attempts in a row did not start"


def barrier_opens(members: Sequence[Worker], attempt: int) -> str:
    if len(members) == 1:
        return f"{members[0].name} starts attempt {attempt}"
    return f"The gang barrier opens for attempt {attempt}"


def all_run(state: RunState) -> str:
    """Every worker runs; where some have ended by the time the last one is seen to run, all have started."""
    ended = any(map(has_ended, state.workers))
    if len(state.workers) == 1:
        return f"{state.leader.name} {'has started' if ended else 'runs'}"
    return f"All {len(state.workers)} workers {'have started' if ended else 'run'}"


def some_completed(state: RunState) -> str:
    return f"{sum(map(has_completed, state.workers))} of {len(state.workers)} workers have completed"


def completed(state: RunState, worker: Worker) -> str:
    last = all(map(has_completed, state.workers))
    return f"{worker.name} completed" + ("" if last else f" ({some_completed(state)})")


def all_completed(state: RunState) -> str:
    return f"All {len(state.workers)} workers completed" if len(state.workers) > 1 else f"{state.leader.name} completed"


def over_time_limit(state: RunState) -> str:
    gang = len(state.workers) > 1
    return f"{'A gang member' if gang else state.leader.name} exceeded its time limit"


def down(worker: Worker, machine: str) -> str:
    return f"{worker.name} is Down: its machine {machine} is lost"


def leaves(worker: Worker, slot: Slot) -> str:
    return f"{worker.name} leaves {slot.machine}: {slot.withdrawn or slot.detail}"


def gang_restart(worker: Worker) -> str:
    return f"Gang restart: {worker.name} {_what_happened(worker)}."


def task_restart(worker: Worker) -> str:
    return f"Worker restart: {worker.name} {_what_happened(worker)}."


def _what_happened(worker: Worker) -> str:
    if worker.slot is not None and is_returning(worker.slot):
        return "was stopped from outside"
    moves = worker.slot is not None and worker.slot.withdrawn and not worker.slot.lost
    return "moves to another machine" if moves else "failed"


def not_returned(worker: Worker, machine: str) -> str:
    return f"{worker.name} is Down: it was stopped on {machine} from outside and did not come back"


def how_it_ended(seen: AttemptSeen | None) -> str:
    if seen is None or seen.code_unknown or seen.code is None:
        return "Ended, code unknown"
    exited = f"Exited with code {seen.code}"
    return f"{seen.detail}: {exited[0].lower()}{exited[1:]}" if seen.detail else exited


def worker_failed(worker: Worker, machine: str, how: str) -> str:
    return f"Worker {worker.name} failed on {machine}: {how}"


def budget_spent(state: RunState, worker: Worker, machine: str, how: str) -> str:
    end = "the gang does not run without it" if len(state.workers) > 1 else "its budget is spent"
    return f"{worker_failed(worker, machine, how)}; {end}."


def back_off(attempt: int, wait_s: float, failures: int, budget: int) -> str:
    return f"Attempt {attempt} starts after a back-off of {wait_s:g} s (failure {failures} of a budget of {budget})"
