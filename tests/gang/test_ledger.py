"""Runs in memory and what a turn makes of them: nothing counts before it is recorded."""

from __future__ import annotations

from dataclasses import replace

import pytest

from astra_agent.errors import Conflict, NotFound
from astra_gang.core import Outcome, Phase, StopAsked
from astra_gang.ledger import Draft, Ledger
from astra_gang.store import RunRecord
from tests.fakes.clock import FakeClock
from tests.fakes.runs import record

CLOCK = FakeClock()


def ended(run: RunRecord, at: float) -> RunRecord:
    return RunRecord(run.spec, replace(run.state, phase=Phase.ENDED, outcome=Outcome.COMPLETED, ended_at=at))


def draft(ledger: Ledger, kept: int = 10) -> Draft:
    return Draft(ledger, CLOCK, kept)


def test_a_draft_changes_nothing_until_its_batch_is_accepted() -> None:
    ledger = Ledger([record()])
    made = draft(ledger)
    made.feed("u1", StopAsked())
    run = ledger.get("u1")
    assert run is not None
    assert run.state.phase is Phase.PENDING
    batch = made.batch()
    assert batch is not None
    ledger.accept(batch)
    run = ledger.get("u1")
    assert run is not None
    assert run.state.phase is Phase.ENDED


def test_nothing_to_record_is_no_batch() -> None:
    made = draft(Ledger([record()]))
    made.feed("nobody", StopAsked())
    assert made.batch() is None


def test_event_ids_go_on_from_the_last_recorded_one() -> None:
    made = draft(Ledger([record()], {"u1": 41}))
    made.feed("u1", StopAsked())
    batch = made.batch()
    assert batch is not None
    assert [event.id for event in batch.events] == list(range(42, 42 + len(batch.events)))


def test_a_name_is_free_once_its_run_has_ended_also_within_one_turn() -> None:
    ledger = Ledger([record()])
    made = draft(ledger)
    with pytest.raises(Conflict):
        made.add(record(uid="u2"))
    made.feed("u1", StopAsked())
    made.add(record(uid="u2"))
    with pytest.raises(Conflict):
        made.add(record(uid="u3"))
    made.add(record(uid="u4", workspace="other"))


def test_the_newest_of_a_name_is_found_and_older_ones_by_uid() -> None:
    older, newer = ended(record(), 1.0), record(uid="u2")
    ledger = Ledger([older, newer])
    assert ledger.find("default", "llama") is newer
    assert ledger.find("default", "llama", "u1") is older
    for workspace, name, uid in (("other", "llama", None), ("default", "nobody", None), ("default", "llama", "u9")):
        with pytest.raises(NotFound):
            ledger.find(workspace, name, uid)


def test_the_runs_that_ended_longest_ago_are_forgotten_first_and_live_ones_never() -> None:
    runs = [ended(record(f"r{i}", uid=f"u{i}"), at) for i, at in enumerate((5.0, 3.0, 4.0))]
    ledger = Ledger([record("live", uid="live"), *runs])
    made = draft(ledger, kept=2)
    made.add(record("new", uid="new"))
    batch = made.batch()
    assert batch is not None
    assert batch.forget_runs == ("u1",)
    ledger.accept(batch)
    assert [run.state.uid for run in ledger.all()] == ["live", "u0", "u2", "new"]


@pytest.mark.parametrize(
    ("there", "new", "said"),
    [
        (
            ("llama", 2), ("llama-1", 1),
            "run llama-1 would have the name of worker llama-1 of run llama, which has not ended: "
            "stop llama first, or choose another name than llama-1",
        ),
        (
            ("llama-1", 1), ("llama", 2),
            "worker llama-1 of run llama would have the name of run llama-1, which has not ended: "
            "stop llama-1 first, or choose another name than llama",
        ),
    ],
)  # fmt: skip
def test_a_name_is_a_run_or_a_worker_of_one_other_run(there: tuple[str, int], new: tuple[str, int], said: str) -> None:
    made = draft(Ledger([record(*there)]))
    with pytest.raises(Conflict) as refused:
        made.add(record(*new, uid="u2"))
    assert str(refused.value) == said
    made.add(record(*new, uid="u3", workspace="other"))


def test_names_of_groups_count_as_well() -> None:
    plain = record("llama-a", 1)
    grouped = record("llama", 1, uid="u2")
    (worker,) = grouped.state.workers
    grouped = replace(grouped, state=replace(grouped.state, workers=(replace(worker, name="llama-a-0"),)))
    made = draft(Ledger([plain]))
    with pytest.raises(Conflict, match=r"worker llama-a-0 of run llama would have the name of worker llama-a-0"):
        made.add(grouped)


@pytest.mark.parametrize("name", ["llama-2", "llama-01", "llama-a", "lla"])
def test_names_that_only_look_alike_are_free(name: str) -> None:
    draft(Ledger([record("llama", 2)])).add(record(name, 1, uid="u2"))
