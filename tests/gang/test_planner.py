"""Which run gets which machines when several want some."""

from __future__ import annotations

from dataclasses import replace

from astra_gang.core import Event, NotPlaced, Phase, Place, Placed, RunState, Slot, outstanding, step
from astra_gang.engine import Machine
from astra_gang.planner import answers
from astra_gang.store import RunRecord
from tests.fakes.runs import record
from tests.gang.cluster import machine


def wanting(run: RunRecord) -> RunRecord:
    """The run, with its `Place` outstanding."""
    assert any(isinstance(decision, Place) for decision in outstanding(run.state))
    return run


def holding(run: RunRecord, *places: tuple[str, tuple[int, ...]]) -> RunRecord:
    """The run with a slot for each worker."""
    slots = [Slot(f"{run.state.uid}-{i}", name, gpus) for i, (name, gpus) in enumerate(places)]
    workers = tuple(replace(w, slot=slot) for w, slot in zip(run.state.workers, slots, strict=True))
    return RunRecord(run.spec, replace(run.state, workers=workers, wants_place=False, phase=Phase.RESERVING))


def assigned(events: list[tuple[str, Event]], uid: str) -> dict[str, tuple[int, ...]]:
    answer = dict(events)[uid]
    assert isinstance(answer, Placed), answer
    return {a.machine: a.gpus for a in answer.assignments}


def test_the_older_run_chooses_first_whatever_order_they_are_given_in() -> None:
    old, young = record("old", 1, 8, uid="u1", now=1.0), record("young", 1, 8, uid="u2", now=2.0)
    found = answers([wanting(young), wanting(old)], [machine("m1")])
    assert assigned(found, "u1") == {"m1": tuple(range(8))}
    assert isinstance(dict(found)["u2"], NotPlaced)


def test_two_runs_of_one_round_never_get_the_same_gpus() -> None:
    runs = [wanting(record(f"r{i}", 2, 8, uid=f"u{i}", now=float(i))) for i in range(2)]
    found = answers(runs, [machine("m1"), machine("m2")])
    first, second = assigned(found, "u0"), assigned(found, "u1")
    for name in ("m1", "m2"):
        assert set(first[name]) & set(second[name]) == set()


def test_what_was_decided_and_is_not_held_by_the_engine_yet_is_taken_off() -> None:
    decided = holding(record("a", 1, 8, uid="u1"), ("m1", tuple(range(8))))
    found = answers([decided, wanting(record("b", 1, 8, uid="u2"))], [machine("m1"), machine("m2")])
    assert assigned(found, "u2") == {"m2": tuple(range(8))}


def test_what_the_engine_holds_is_taken_off_once_and_not_twice() -> None:
    held = holding(record("a", 1, 4, uid="u1"), ("m1", (0, 1, 2, 3)))
    snapshot = replace(machine("m1", free=4), slots=("u1-0",))
    found = answers([held, wanting(record("b", 1, 4, uid="u2"))], [snapshot])
    assert assigned(found, "u2") == {"m1": (4, 5, 6, 7)}


def test_a_run_that_does_not_fit_keeps_nobody_behind_it_waiting() -> None:
    large, small = record("large", 3, 24, uid="u1", now=1.0), record("small", 1, 8, uid="u2", now=2.0)
    found = answers([wanting(large), wanting(small)], [machine("m1"), machine("m2")])
    assert isinstance(dict(found)["u1"], NotPlaced)
    assert assigned(found, "u2")


def test_a_run_that_lost_all_its_machines_may_go_on_in_another_shape() -> None:
    run = open_shape(workers=1)
    state = replace(run.state, phase=Phase.ASSEMBLING, tier="machine", domain="m0", attempt=3)
    found = answers([RunRecord(run.spec, state)], [machine(f"m{i}", free=1, gpus=1, nvlink="n1") for i in range(4)])
    placed, _ = step(state, dict(found)["u1"], 1001.0)
    assert machines_of(placed) == ["m0", "m1", "m2", "m3"]
    assert (placed.phase, placed.tier, placed.domain) == (Phase.ASSEMBLING, "nvlink", "n1")
    assert placed.members == (0, 1, 2, 3)


def open_shape(workers: int) -> RunRecord:
    """4 GPUs on as many machines as the scheduler likes."""
    run = record("llama", workers, 4)
    resources = replace(run.spec.resources, machines=None)
    return RunRecord(replace(run.spec, resources=resources), run.state)


def machines_of(state: RunState) -> list[str]:
    return [worker.slot.machine for worker in state.workers if worker.slot is not None]


def trays(channels: int) -> list[Machine]:
    found = [machine(f"m{i}", free=8, nvlink="rack-1.7") for i in range(1, 3)]
    return [replace(one, facts=one.facts.model_copy(update={"imex_channels": channels})) for one in found]


def channel(events: list[tuple[str, Event]], uid: str) -> int:
    answer = dict(events)[uid]
    assert isinstance(answer, Placed), answer
    assert answer.tier == "nvlink"
    return answer.channel


def test_every_run_of_an_nvlink_domain_has_a_channel_of_its_own_where_there_are_several() -> None:
    runs = [wanting(record(f"r{i}", 2, 4, uid=f"u{i}", now=float(i))) for i in range(3)]
    found = answers(runs, trays(2048))
    assert [channel(found, f"u{i}") for i in range(3)] == [0, 1, 2]


def test_all_runs_share_channel_0_where_the_machines_are_set_up_so() -> None:
    runs = [wanting(record(f"r{i}", 2, 4, uid=f"u{i}", now=float(i))) for i in range(2)]
    found = answers(runs, trays(0))
    assert [channel(found, f"u{i}") for i in range(2)] == [0, 0]


def test_a_channel_that_a_placed_run_has_is_nobody_elses() -> None:
    old = record("old", 2, 4, uid="u1")
    old = holding(old, ("m1", (0, 1)), ("m2", (0, 1)))
    old = RunRecord(old.spec, replace(old.state, tier="nvlink", domain="rack-1.7", channel_domain="rack-1.7"))
    found = answers([old, wanting(record("new", 2, 4, uid="u2"))], trays(2048))
    assert channel(found, "u2") == 1


def test_a_run_waits_when_every_channel_is_taken() -> None:
    runs = [wanting(record(f"r{i}", 2, 4, uid=f"u{i}", now=float(i))) for i in range(2)]
    answer = dict(answers(runs, trays(1)))["u1"]
    assert isinstance(answer, NotPlaced)
    assert answer.reason.startswith("Every IMEX channel of NVLink domain rack-1.7 is taken")
