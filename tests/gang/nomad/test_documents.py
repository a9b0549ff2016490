"""Documents in variables: plain while small, compressed, split; and never more than a variable takes."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astra_gang.engines.nomad.documents import (
    PLAIN_MAX,
    Damaged,
    Items,
    decode,
    encode,
    is_part,
    part_path,
    part_paths,
)

LIMIT = 65_536


def size(items: dict[str, str]) -> int:
    return sum(len(key.encode()) + len(value.encode()) for key, value in items.items())


def read(items: Items) -> str:
    return decode("astra/x", items.main, items.parts)


def test_a_small_document_can_be_read_by_people() -> None:
    assert encode('{"a": 1}', "7-1").main["json"] == '{"a": 1}'


def test_a_larger_one_is_compressed_into_one_variable() -> None:
    items = encode("x" * (PLAIN_MAX + 1), "7-1")
    assert items.parts == () and "json" not in items.main
    assert read(items) == "x" * (PLAIN_MAX + 1)


def test_one_that_does_not_fit_compressed_is_split() -> None:
    numbers = random.Random(7)
    text = json.dumps([numbers.random() for _ in range(20_000)])
    items = encode(text, "7-1")
    assert len(items.parts) > 1
    assert all(size(part) <= LIMIT for part in (items.main, *items.parts))
    assert read(items) == text
    assert len(part_paths("astra/x", items.main)) == len(items.parts)


@given(st.text(max_size=2000))
def test_every_text_comes_back_as_it_was(text: str) -> None:
    assert read(encode(text, "1-1")) == text


def test_parts_are_told_from_documents_by_their_paths() -> None:
    assert is_part(part_path("astra/runs/u1", "7-3", 0))
    assert not is_part("astra/runs/u1") and not is_part("astra/events/u1/0")


@pytest.mark.parametrize("main", [{}, {"zlib": "no base64 at all"}, {"zlib": "aGVsbG8="}, {"parts": "1"}])
def test_a_variable_that_is_none_of_ours_is_named(main: dict[str, str]) -> None:
    with pytest.raises(Damaged, match="variable astra/x is damaged"):
        decode("astra/x", main, [{}])


@pytest.mark.parametrize("main", [{"parts": "two", "written": "1-1"}, {"parts": "2"}])
def test_parts_that_can_not_be_found_are_named(main: dict[str, str]) -> None:
    with pytest.raises(Damaged, match="variable astra/x is none of a document"):
        part_paths("astra/x", main)
