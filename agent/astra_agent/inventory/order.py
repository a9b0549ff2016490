"""The order of names, and lists of numbers as the kernel writes them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

_PIECES = re.compile(r"[0-9]+|[^0-9]+")
_LARGEST = 1 << 16
"""No machine has as many processors or memory nodes; a list that names more is no list."""


@lru_cache(maxsize=4096)
def natural(name: str) -> tuple[tuple[int, str], ...]:
    """A sort key by which `mlx5_9` comes before `mlx5_10`."""
    return tuple((int(piece) if piece[0] in "0123456789" else -1, piece) for piece in _PIECES.findall(name))


def parse_list(text: str) -> frozenset[int] | None:
    """The numbers of a list such as `0-55,112-167`; None when it is none. An empty text is an empty list."""
    numbers: set[int] = set()
    for piece in text.strip().split(",") if text.strip() else ():
        match = re.fullmatch(r"([0-9]{1,6})(?:-([0-9]{1,6}))?", piece.strip())
        if match is None:
            return None
        first = int(match[1])
        last = int(match[2] or first)
        if not first <= last < _LARGEST:
            return None
        numbers.update(range(first, last + 1))
    return frozenset(numbers)


def format_list(numbers: Iterable[int]) -> str:
    """Numbers as the kernel writes such a list."""
    ranges: list[list[int]] = []
    for number in sorted(numbers):
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)
