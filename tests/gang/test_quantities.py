"""Durations and sizes as people write them."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astra_agent.errors import InvalidRequest
from astra_gang.quantities import format_size, parse_duration, parse_size


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("90s", 90), ("24h", 86400), ("1h30m", 5400), ("1.5d", 129600), ("2w", 1209600), ("0.25", 0.25)],
)
def test_a_duration_is_seconds_or_numbers_with_units(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "h", "1x", "-1h", "1h 30m", "1h30", "24H", "1e3", "nan", "١h", "1..5h"])
def test_what_is_no_duration_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(InvalidRequest, match=r"is no duration.*24h"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("1048576", 1048576), ("120Gi", 128849018880), ("1.5G", 1_500_000_000), ("512MiB", 536870912), ("1KB", 1000),
        ("0.5Ki", 512), ("2Pi", 2 * 2**50), ("1.0000001Ki", 1024),
    ],
)  # fmt: skip
def test_a_size_is_bytes_or_a_number_with_a_unit(text: str, size_bytes: int) -> None:
    assert parse_size(text) == size_bytes


@pytest.mark.parametrize("text", ["", "Gi", "120gi", "-1Gi", "1 Gi", "1Ei", "1e9", "inf"])
def test_what_is_no_size_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(InvalidRequest, match=r"is no size.*120Gi"):
        parse_size(text)


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [(0, "0"), (1000, "1000"), (1024, "1Ki"), (1536, "1.5Ki"), (128849018880, "120Gi"), (2**50, "1Pi")],
)
def test_a_size_is_shown_in_the_largest_unit_that_is_exact(size_bytes: int, text: str) -> None:
    assert format_size(size_bytes) == text


@given(st.integers(0, 2**59))
def test_a_shown_size_reads_back_as_itself(size_bytes: int) -> None:
    assert parse_size(format_size(size_bytes)) == size_bytes


@given(st.text(max_size=12))
def test_any_text_is_a_quantity_or_refused(text: str) -> None:
    for parse in (parse_duration, parse_size):
        with contextlib.suppress(InvalidRequest):
            assert parse(text) >= 0
