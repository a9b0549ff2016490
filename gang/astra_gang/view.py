"""The API's documents: what the coordinator knows, in the words of its users. Values in, JSON out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any

from astra_agent.errors import NotFound
from astra_gang import absence
from astra_gang.absence import Absence
from astra_gang.clock import rfc3339
from astra_gang.core import Attempt, Member, Phase, RunState, Slot, Worker
from astra_gang.core.record import find_attempt, member_of
from astra_gang.core.sentences import WAITING_AT_BARRIER, how_it_ended
from astra_gang.core.slots import attempt_in, has_started, is_ready, old_alive
from astra_gang.engine import Machine
from astra_gang.spec import as_document
from astra_gang.store import RunEvent, RunRecord

Json = dict[str, Any]
Wall = Callable[[float], datetime]

_PHASES = {
    Phase.PENDING: "Pending",
    Phase.RESERVING: "Pending",
    Phase.REQUEUEING: "Pending",
    Phase.ASSEMBLING: "Starting",
    Phase.STARTING: "Starting",
    Phase.RUNNING: "Running",
    Phase.ENDING: "Stopping",
}
_OF_PHASE = {"asked": "Preparing", "preparing": "Preparing", "ready": "ReadyToStart", "failed": "Failed"}
_OF_ATTEMPT = {"arming": "ReadyToStart", "armed": "Armed", "running": "Running", "stopping": "Stopping"}
_MOVING = ("Preparing", "ReadyToStart", "Armed", "Running", "Stopping")
"""Of a worker in one of these its machine would say more if it answered."""


def phase(state: RunState) -> str:
    """In the words of users."""
    return str(state.outcome) if state.phase is Phase.ENDED else _PHASES[state.phase]


def job(run: RunRecord, wall: Wall, absences: Iterable[Absence] = (), held_up: str | None = None) -> Json:
    """
    Args:
        wall: The cluster's clock to UTC.
        absences: Of machines that this run waits for.
        held_up: Why nothing can happen to it now.
    """
    away = {one.machine: one for one in absences}
    state = run.state
    document = as_document(run.spec)
    return {
        "metadata": {
            "name": state.name,
            "workspace": state.workspace,
            "uid": state.uid,
            "submitted_at": rfc3339(wall(state.submitted_at)),
        },
        "spec": document["spec"],
        "status": {
            "phase": phase(state),
            "reason": _reason(state, away.values(), held_up),
            "refused": state.refused,
            "attempt": state.attempt,
            "ready": sum(is_ready(w) or has_started(w) for w in state.workers),
            "total": len(state.workers),
            "tier": state.tier or None,
            "domain": state.domain or None,
            "ended_at": _time(state.ended_at, wall),
            "workers": [_worker(state, worker, away) for worker in state.workers],
            "spares": [
                {"machine": slot.machine, "state": _OF_PHASE.get(slot.phase, "Stopping"), "detail": slot.detail}
                for slot in state.spares
            ],
        },
    }


def _reason(state: RunState, absences: Iterable[Absence], held_up: str | None) -> str:
    reason = absence.reason(state, absences)
    if held_up is None or state.phase is Phase.ENDED:
        return reason
    return "; ".join(filter(None, (reason.rstrip("."), held_up)))


def _worker(state: RunState, worker: Worker, away: Mapping[str, Absence]) -> Json:
    slot, member = worker.slot, member_of(state, worker.rank, worker.attempt)
    word, detail = _in_slot(state, worker, slot) if slot is not None else _without_slot(state, worker, member)
    if slot is not None and slot.machine in away and word in _MOVING:
        detail = away[slot.machine].sentence
    return {
        "rank": worker.rank,
        "name": worker.name,
        "machine": slot.machine if slot is not None else member.machine if member is not None else None,
        "state": word,
        "detail": detail,
        "address": slot.address if slot is not None else None,
        "slot": slot.id if slot is not None else None,
        "attempt": worker.attempt if member is not None else None,
        "code": member.code if member is not None else None,
        "failures": worker.failures,
    }


def _in_slot(state: RunState, worker: Worker, slot: Slot) -> tuple[str, str]:
    if slot.lost:
        return "Down", f"its machine {slot.machine} is lost"
    seen = attempt_in(slot, worker.attempt)
    if seen is not None and seen.state == "exited":
        return _ended(state, worker, seen.code), how_it_ended(seen)
    if slot.stuck is not None:
        return "Failed", slot.stuck
    if seen is not None and seen.state != "arming":
        return _OF_ATTEMPT[seen.state], seen.detail or slot.detail
    if old_alive(worker):
        return "Stopping", ": ".join(filter(None, (f"Attempt {worker.attempt - 1} is being stopped", slot.detail)))
    word = _OF_PHASE.get(slot.phase, "Stopping")
    waiting = WAITING_AT_BARRIER if len(state.members) > 1 else "Waiting to start"
    return word, waiting if word == "ReadyToStart" and not slot.detail else slot.detail


def _without_slot(state: RunState, worker: Worker, member: Member | None) -> tuple[str, str]:
    if state.phase not in (Phase.ENDING, Phase.ENDED):
        return "Pending", ""
    if member is None or member.started_at is None:
        return str(state.outcome), "It never started"
    if member.ended_at is None:
        return str(state.outcome), how_it_ended(None)
    return _ended(state, worker, member.code), member.detail


def _ended(state: RunState, worker: Worker, code: int | None) -> str:
    """A worker that ended by itself completed or failed; one that ended when its attempt was over had been stopped."""
    if code == 0:
        return "Completed"
    attempt, member = find_attempt(state, worker.attempt), member_of(state, worker.rank, worker.attempt)
    if attempt is None or attempt.ended_at is None or member is None or member.ended_at is None:
        return "Failed"
    return "Stopped" if member.ended_at > attempt.ended_at else "Failed"


def ranks(run: RunRecord, number: int | None, wall: Wall) -> Json:
    """
    Who is where.

    Args:
        number: An attempt, with exactly its members; None: every worker in the newest attempt that it is a member of.
    Raises:
        NotFound: There is no record of this attempt.
    """
    state = run.state
    numbers = [attempt.number for attempt in state.attempts]
    attempt = find_attempt(state, state.attempt if number is None else number)
    if number is not None:
        members = list(recorded_attempt(run, number).members)
    else:
        members = [_newest_member(state, worker) for worker in state.workers]
    return {
        "attempt": state.attempt if number is None else number,
        "attempts": numbers,
        "items": [_member(member, wall) for member in members],
        "opened_at": _time(attempt.opened_at if attempt is not None else None, wall),
        "ended_why": (attempt.ended_why or None) if attempt is not None else None,
    }


def recorded_attempt(run: RunRecord, number: int) -> Attempt:
    """
    Raises:
        NotFound: There is no record of it; the sentence says which there are.
    """
    attempt = find_attempt(run.state, number)
    if attempt is None:
        kept = [attempt.number for attempt in run.state.attempts]
        which = "no attempt has begun yet"
        if kept:
            which = (
                f"there are attempts {kept[0]} to {kept[-1]}" if len(kept) > 1 else f"there is attempt {kept[0]} alone"
            )
        raise NotFound(f"run {run.state.name} has no record of attempt {number}: {which}")
    return attempt


def _newest_member(state: RunState, worker: Worker) -> Member:
    member = member_of(state, worker.rank, worker.attempt)
    if member is not None:
        return member
    slot = worker.slot
    return Member(
        rank=worker.rank,
        name=worker.name,
        slot=slot.id if slot is not None else "",
        machine=slot.machine if slot is not None else "",
        address=slot.address if slot is not None else None,
    )


def _member(member: Member, wall: Wall) -> Json:
    return {
        "rank": member.rank,
        "name": member.name,
        "machine": member.machine or None,
        "address": member.address,
        "slot": member.slot or None,
        "started_at": _time(member.started_at, wall),
        "ended_at": _time(member.ended_at, wall),
        "code": member.code,
        "detail": member.detail,
    }


def event(said: RunEvent, wall: Wall) -> Json:
    return {
        "id": said.id,
        "at": rfc3339(wall(said.at)),
        "level": said.level,
        "sentence": said.sentence,
        "rank": said.rank,
        "attempt": said.attempt,
    }


def machines(found: Iterable[Machine], expected: Iterable[str], silent: Callable[[str], float | None]) -> Json:
    """
    Args:
        silent: For how many seconds a machine has not answered.
        expected: Names that the configuration has; one that no agent has spoken for is shown, too.
    """
    items = {machine.facts.name: _machine(machine, silent(machine.facts.name)) for machine in found}
    for name in expected:
        items.setdefault(name, _unknown_machine(name))
    return {"items": [items[name] for name in sorted(items)]}


def _machine(machine: Machine, silent_s: float | None) -> Json:
    facts = machine.facts
    return {
        "name": facts.name,
        "address": facts.address,
        "connected": machine.connected,
        "silent_s": None if silent_s is None else round(silent_s, 1),
        "out_of_use": machine.out_of_use,
        "cpu_cores": facts.cpu_cores,
        "free_cpu_cores": machine.free_cpu_cores,
        "memory_bytes": facts.memory_bytes,
        "free_memory_bytes": machine.free_memory_bytes,
        "gpus": len(facts.gpus),
        "free_gpus": len(machine.free_gpus),
        "domains": dict(facts.domains),
        "ports": [port.model_dump() for port in facts.ports],
        "findings": [found.model_dump() for found in facts.findings],
        "slots": list(machine.slots),
    }


def _unknown_machine(name: str) -> Json:
    return {
        "name": name,
        "address": "",
        "connected": False,
        "silent_s": None,
        "out_of_use": "its agent has not connected since the coordinator started",
        "cpu_cores": 0,
        "free_cpu_cores": 0,
        "memory_bytes": 0,
        "free_memory_bytes": 0,
        "gpus": 0,
        "free_gpus": 0,
        "domains": {},
        "ports": [],
        "findings": [],
        "slots": [],
    }


def _time(at: float | None, wall: Wall) -> str | None:
    return None if at is None else rfc3339(wall(at))
