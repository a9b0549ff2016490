from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from astra_cli import render
from astra_cli.documents import Job, Machine
from astra_cli.render import Cell, Table
from tests.fakes.api import job

NOW = datetime(2026, 1, 2, 3, 5, 5, tzinfo=UTC)


def test_plain_columns_stand_under_their_heads_and_end_without_blanks() -> None:
    table = Table(("NAME", "N"), ((Cell("a"), Cell("10")), (Cell("longer"), Cell(""))), right=(1,))
    assert render.plain(table).splitlines() == ["NAME     N", "a       10", "longer   -"]


def test_wide_and_combining_characters_count_as_the_terminal_counts_them() -> None:
    assert render.width("a漢é") == 4
    assert render.width("e\u0301") == 1


def test_what_a_program_wrote_can_not_move_the_cursor() -> None:
    assert render.clean("a\x1b[2Jb\nc\u202ed") == "a [2Jb c d"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (59.9, "59s"), (60, "1m"), (187, "3m 7s"), (3600, "1h"), (176400, "2d 1h"), (-3, "0s")],
)  # fmt: skip
def test_a_duration_has_its_two_largest_units(seconds: float, text: str) -> None:
    assert render.duration(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0"), (512, "512"), (1024, "1Ki"), (1536 << 20, "1.5Gi"), (128 << 30, "128Gi")]
)  # fmt: skip
def test_a_size_has_a_binary_unit(count: int, text: str) -> None:
    assert render.size(count) == text


def test_times_are_in_utc_whatever_zone_they_came_in() -> None:
    at = datetime.fromisoformat("2026-01-02T05:04:05+02:00")
    assert render.stamp(at) == "2026-01-02 03:04:05Z"
    assert render.clock(at + timedelta(milliseconds=7)) == "03:04:05.007Z"


def test_a_runs_page_says_phase_reason_and_where_it_is() -> None:
    page = render.job(Job.model_validate(job(reason="Starting together: 1 of 2 ready", phase="Starting")), NOW)
    assert [line.text for line in page.lines] == [
        "first-gang: Starting",
        "Starting together: 1 of 2 ready",
        "2 workers · attempt 0 · ethernet dev · submitted 2026-01-02 03:04:05Z, 1m ago",
    ]
    assert page.table is not None
    assert [cell.text for cell in page.table.rows[1]][:4] == ["1", "first-gang-1", "m-2", "Preparing"]


def test_a_field_of_a_newer_coordinator_is_no_reason_to_fail() -> None:
    document = {**job(), "of_the_future": 1}
    assert Job.model_validate(document).metadata.name == "first-gang"


@pytest.mark.parametrize(
    ("machine", "text"),
    [
        (Machine(name="m", connected=True), "connected"),
        (Machine(name="m", connected=False), "not connected"),
        (Machine(name="m", connected=True, silent_s=12.4), "does not answer since 12 s"),
        (Machine(name="m", connected=True, out_of_use="process 7 does not die"), "out of use: process 7 does not die"),
    ],
    ids=["connected", "away", "silent", "out of use"],
)
def test_a_machine_says_whether_it_can_be_used(machine: Machine, text: str) -> None:
    assert render.machine_state(machine).text == text
