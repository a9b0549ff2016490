"""What a figure of the bench says of itself: the ratio, whether its goal is met, its record and its line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench import __main__, figure
from bench.figure import Figure, against_goal, against_peer, record, table


def slots(goal: float = 0.9) -> Figure:
    """The machine slows down in the second of three pairs, for both."""
    return against_peer("slots", "slot start / ctr run", "ms", [80.0, 400.0, 90.0], [100.0, 500.0, 100.0], goal)


def idle(goal: float = 50.0) -> Figure:
    return against_goal("idle", "memory of an idle agent", "MB", [40.0, 45.0, 41.0], goal)


def recorded(item: Figure, folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setattr(figure, "RESULTS", folder / "bench")
    record(item)
    document: dict[str, Any] = json.loads((folder / "bench" / f"{item.name}.json").read_text())
    return document


def test_the_ratio_to_a_peer_is_the_median_of_the_pairs() -> None:
    assert (slots().ours, slots().peer, slots().ratio) == (90.0, 100.0, 0.8)


def test_without_a_peer_the_ratio_is_to_the_goal() -> None:
    assert (idle().ours, idle().peer, idle().ratio) == (41.0, None, 0.82)


@pytest.mark.parametrize(
    ("item", "met"),
    [(slots(0.8), True), (slots(0.79), False), (idle(41.0), True), (idle(40.9), False)],
    ids=["peer", "peer missed", "goal", "goal missed"],
)
def test_a_goal_is_met_by_what_is_as_good(item: Figure, met: bool) -> None:
    assert item.met is met


def test_ours_and_the_peers_are_measured_in_pairs() -> None:
    with pytest.raises(ValueError, match="shorter"):
        against_peer("slots", "", "ms", [1.0, 2.0], [1.0], 1.0)


def test_a_figure_is_recorded_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    document = recorded(slots(), tmp_path, monkeypatch)
    machine = document.pop("machine")
    assert document == {
        "figure": "slot start / ctr run",
        "unit": "ms",
        "ours": 90.0,
        "peer": 100.0,
        "ratio": 0.8,
        "goal": 0.9,
        "met": True,
        "samples": [80.0, 400.0, 90.0],
    }
    assert machine.keys() == {"cores", "kernel", "load"}


def test_one_without_a_peer_says_so_and_one_that_misses_its_goal_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    document = recorded(idle(40.0), tmp_path, monkeypatch)
    assert (document["peer"], document["ratio"], document["met"]) == (None, 1.025, False)


def test_the_table_has_a_line_for_each_figure() -> None:
    assert table([slots(), idle(40.0)]).splitlines() == [
        "FIGURE                   OURS   PEER    RATIO  GOAL     MET",
        "slot start / ctr run     90 ms  100 ms  0.80   ≤ 0.9    yes",
        "memory of an idle agent  41 MB  -       1.02   ≤ 40 MB  no",
    ]


def test_a_figure_that_is_none_is_refused_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert __main__.main(["slot"]) == 2
    assert capsys.readouterr().err.startswith("there is no figure 'slot'; there are: slots, restart, ")
