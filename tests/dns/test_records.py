"""The snapshot: whose name is whose, what goes in and out, what stays as it was."""

from __future__ import annotations

from dataclasses import replace

import pytest

from astra_dns import names
from astra_dns.query import AAAA, PTR, A
from astra_dns.records import Draft, RunNames, View
from tests.dns.names_of_runs import ETL, LLAMA, OTHERS_LLAMA, snapshot


def addresses(view: View, name: str) -> list[str]:
    records = view.find(names.relative(name)) or ()
    return [".".join(map(str, data)) if rtype == A else data.hex() for rtype, data in records if rtype in (A, AAAA)]


def test_a_worker_and_the_leader_by_the_runs_name_are_there() -> None:
    view = snapshot().view("nlp")
    assert addresses(view, "llama-0") == ["10.0.0.1"]
    assert addresses(view, "llama") == ["10.0.0.1"]
    assert addresses(view, "llama-1") == ["10.0.0.2", "fd" + "00" * 14 + "02"]
    assert addresses(view, "etl-driver-0") == ["10.0.0.3"]


def test_a_workspace_has_its_own_run_of_a_name() -> None:
    assert addresses(snapshot().view("vision"), "llama-0") == ["10.0.9.9"]
    assert addresses(snapshot().view("vision"), "llama-1") == []


def test_a_frozen_snapshot_does_not_change_with_its_draft() -> None:
    draft = Draft()
    draft.put(LLAMA)
    before = draft.freeze()
    draft.put(replace(LLAMA, addresses={"llama-0": ("10.0.0.7",)}))
    after = draft.freeze()
    assert addresses(before.view("nlp"), "llama-0") == ["10.0.0.1"]
    assert addresses(before.view("nlp"), "llama-1") != []
    assert addresses(after.view("nlp"), "llama-0") == ["10.0.0.7"]
    assert addresses(after.view("nlp"), "llama-1") == []


def test_what_was_put_and_dropped_leaves_nothing() -> None:
    draft = Draft()
    for run in (LLAMA, ETL, OTHERS_LLAMA):
        draft.put(run)
    for run in (LLAMA, ETL, OTHERS_LLAMA):
        draft.drop(run.key)
        draft.drop(run.key)
    frozen = draft.freeze()
    assert dict(frozen.views) == {}
    assert frozen.view("nlp") is frozen.nobody


def test_an_address_names_every_worker_that_has_it_and_no_other_workspaces() -> None:
    view = snapshot().view("nlp")
    ptr = {names.to_text(data) for rtype, data in view.find_reverse(names.reverse("10.0.0.1")) or () if rtype == PTR}
    assert ptr == {"llama-0.nlp.astra.internal.", "etl-executor-0.nlp.astra.internal."}
    assert view.find_reverse(names.reverse("10.0.9.9")) is None


def test_a_name_of_two_runs_is_the_workers_and_becomes_the_other_runs_when_that_ends() -> None:
    draft = Draft()
    short = RunNames("nlp", "a", {"a-1": ("10.1.0.1",)}, "a-1", 1)
    named_alike = RunNames("nlp", "a-1", {"a-1-0": ("10.1.0.2",)}, "a-1-0", 2)
    for run in (named_alike, short):
        draft.put(run)
    assert addresses(draft.freeze().view("nlp"), "a-1") == ["10.1.0.1"]
    draft.drop(short.key)
    assert addresses(draft.freeze().view("nlp"), "a-1") == ["10.1.0.2"]
    assert addresses(draft.freeze().view("nlp"), "a-1-0") == ["10.1.0.2"]


def test_what_is_unchanged_is_shared_by_snapshots() -> None:
    draft = Draft()
    for run in (LLAMA, ETL, OTHERS_LLAMA):
        draft.put(run)
    before = draft.freeze()
    draft.put(replace(ETL, port=1))
    after = draft.freeze()
    assert after.view("vision") is before.view("vision")
    assert after.view("nlp").runs[b"llama"] is before.view("nlp").runs[b"llama"]


@pytest.mark.parametrize(
    "run",
    [
        RunNames("nlp", "x" * 64, {}),
        RunNames("nlp", "a.b", {}),
        RunNames("n.lp", "a", {}),
        RunNames("nlp", "", {}),
        RunNames("nlp", "a", {"ä-0": ("10.0.0.1",)}),
        RunNames("nlp", "a", {"a-0": ("10.0.0.300",)}),
        RunNames("w" * 63, "a" * 60, {"a" * 60 + "-0": ()}),
        RunNames("nlp", "a", {"b-0": ()}),
        RunNames("nlp", "a", {"a-0": ()}, "a-1"),
    ],
)
def test_what_is_no_name_or_no_address_is_refused_and_nothing_changes(run: RunNames) -> None:
    long_zone = ".".join(["z" * 50] * 2 + ["internal"])
    draft = Draft(long_zone)
    with pytest.raises(ValueError, match=r"."):
        draft.put(run)
    assert list(draft.runs) == []
    assert dict(draft.freeze().views) == {}
