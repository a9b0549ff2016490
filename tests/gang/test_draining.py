"""What a drain would cost is what the core then does: each sentence beside the drain that it speaks of."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from astra_gang.core import (
    Assignment,
    AttemptSeen,
    MachineWithdrawn,
    OnFailure,
    Phase,
    Placed,
    Reserved,
    RunState,
    Slot,
    SlotSeen,
    StopAsked,
    step,
)
from astra_gang.draining import Cost, costs
from astra_gang.engine import Machine
from astra_gang.engines.book import free
from astra_gang.store import RunRecord
from tests.fakes.runs import facts, record

NOW = 1000.0


def reserved(workers: int, on_failure: OnFailure | None = None, name: str = "llama", **more: Any) -> RunRecord:
    """Worker 0 on m1, worker 1 on m2 and so on; nothing is prepared yet."""
    run = record(name, workers, **more)
    state = run.state if on_failure is None else _with(run.state, on_failure)
    chosen = tuple(Assignment(rank, f"m{rank + 1}") for rank in range(workers))
    state, _ = step(state, Placed(state.reservation, chosen, "ethernet", "lan", "here"), NOW)
    state, _ = step(state, Reserved(state.reservation), NOW)
    return RunRecord(run.spec, state)


def _with(state: RunState, on_failure: OnFailure) -> RunState:
    return replace(state, policy=replace(state.policy, on_failure=on_failure))


def report(run: RunRecord, rev: int, *attempts: AttemptSeen, ranks: tuple[int, ...] | None = None) -> RunRecord:
    """From the agents of these workers, or of all."""
    state = run.state
    for worker in state.workers:
        if worker.slot is not None and (ranks is None or worker.rank in ranks):
            seen = SlotSeen(worker.slot.id, rev, "ready", address="10.0.0.1", port=29500, attempts=attempts)
            state, _ = step(state, seen, NOW)
    return RunRecord(run.spec, state)


def running(workers: int, on_failure: OnFailure | None = None, name: str = "llama", **more: Any) -> RunRecord:
    run = report(reserved(workers, on_failure, name, **more), 1)
    for rev, word in ((2, "armed"), (3, "running")):
        run = report(run, rev, AttemptSeen(0, word))
    assert run.state.phase is Phase.RUNNING
    return run


def cluster(machines: int) -> list[Machine]:
    """All empty: what a run holds of its machines does not matter to who moves."""
    names = [f"m{number + 1}" for number in range(machines)]
    here = {"domains": {"ethernet": "lan"}}
    return [free(facts(name).model_copy(update=here), (), connected=True) for name in names]


def found(*runs: RunRecord, machine: str = "m2", machines: int = 5) -> tuple[Cost, ...]:
    return costs(((run.state, run.spec) for run in runs), cluster(machines), machine, NOW)


def sentences(*runs: RunRecord, machine: str = "m2", machines: int = 5) -> list[str]:
    return [cost.sentence for cost in found(*runs, machine=machine, machines=machines)]


def drained(run: RunRecord, machine: str) -> RunState:
    return step(run.state, MachineWithdrawn(machine, f"{machine} is being drained"), NOW)[0]


def test_a_gang_restarts() -> None:
    run = running(4)
    assert sentences(run) == ["draining it restarts llama (4 workers)"]
    after = drained(run, "m2")
    assert (after.phase, after.attempt, len(after.members)) == (Phase.ASSEMBLING, 1, 4)


def test_a_run_of_one_worker_moves() -> None:
    run = running(1, name="hello")
    assert sentences(run, machine="m1") == ["draining it moves hello (1 worker) to another machine"]
    after = drained(run, "m1")
    assert (after.phase, after.workers[0].slot) == (Phase.ASSEMBLING, None)


@pytest.mark.parametrize(
    ("machine", "sentence", "members"),
    [
        ("m2", "draining it moves llama-1 to another machine, and the others of llama (3 workers) run on", (1,)),
        ("m1", "draining it restarts llama (3 workers)", (0, 1, 2)),
    ],
    ids=["a worker", "the leader"],
)
def test_with_restart_task_one_worker_moves_alone_unless_it_leads(
    machine: str, sentence: str, members: tuple[int, ...]
) -> None:
    run = running(3, OnFailure.RESTART_TASK)
    assert sentences(run, machine=machine) == [sentence]
    assert drained(run, machine).members == members


def test_a_run_that_is_to_fail_with_a_worker_fails() -> None:
    run = running(2, OnFailure.FAIL_JOB)
    assert sentences(run) == ["draining it fails llama (2 workers)"]
    assert drained(run, "m2").phase is Phase.ENDING


@pytest.mark.parametrize("on_failure", list(OnFailure))
def test_before_a_program_runs_only_the_worker_moves(on_failure: OnFailure) -> None:
    run = reserved(3, on_failure)
    assert sentences(run) == ["draining it moves llama-1 to another machine before llama (3 workers) starts"]
    after = drained(run, "m2")
    assert (after.phase, after.attempt) == (Phase.ASSEMBLING, 0)
    assert [worker.slot is None for worker in after.workers] == [False, True, False]


def test_an_adopted_gang_is_placed_anew_whole() -> None:
    run = running(3)
    run = replace(run, state=replace(run.state, adopted=True))
    assert sentences(run) == ["draining it takes llama (3 workers) off all its machines and places it anew"]


@pytest.mark.parametrize(
    ("workers", "machine", "whole"),
    [(3, "m2", "restarts llama (3 workers)"), (1, "m1", "moves llama (1 worker) to another machine")],
)
def test_that_no_other_machine_has_room_is_said(workers: int, machine: str, whole: str) -> None:
    run = running(workers)
    waits = "; no other machine has room now: llama then waits"
    assert sentences(run, machine=machine, machines=workers) == [f"draining it {whole}{waits}"]
    assert sentences(run, machine=machine, machines=workers + 1) == [f"draining it {whole}"]


def test_it_costs_nothing_where_no_worker_would_have_to_leave() -> None:
    run = running(3)
    completed = report(run, 4, AttemptSeen(0, "exited", 0), ranks=(1,))
    stopping = replace(run, state=step(run.state, StopAsked(), NOW)[0])
    left = replace(run, state=drained(run, "m2"))
    assert sentences(run, machine="m4") == []
    assert [sentences(other) for other in (record(), completed, stopping, left)] == [[]] * 4
    assert drained(completed, "m2").phase is Phase.RUNNING


def test_each_run_has_its_own_sentence_in_order_of_their_names() -> None:
    both = found(running(2, name="bert", uid="u2", workspace="nlp"), running(4))
    assert [(cost.workspace, cost.run, cost.workers) for cost in both] == [("default", "llama", 4), ("nlp", "bert", 2)]


def test_a_spare_costs_no_restart() -> None:
    run = running(2)
    spare = Slot("llama-u1-2", "m3", phase="ready")
    state = replace(run.state, spares=(spare,), policy=replace(run.state.policy, spares=1))
    found = costs([(state, run.spec)], [], "m3", NOW)
    assert [cost.sentence for cost in found] == ["draining it gives up a spare of llama (2 workers), which runs on"]
    (moved,) = costs([(state, run.spec)], [], "m2", NOW)
    assert moved.sentence == "draining it restarts llama (2 workers)", "nobody waits for a machine"
