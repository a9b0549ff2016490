"""
What is summed, and what every partial sum must be, bit for bit.

Each position of a ring contributes whole numbers, so that sums are exact in any order: the block of `BLOCK` elements
repeats from the beginning of every segment. A block of a partial sum follows from how many positions are in it and from
the sum of their offsets; it is compared as bytes, so that a single flipped bit is found.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]

ELEMENT = 4
BLOCK = 16384
"""Elements; 64 KiB stay in a core's first caches beside the chunk that is compared."""
BLOCK_BYTES = BLOCK * ELEMENT
RANKS_MAX = 32768
"""So that a sum stays below 2**24, where float32 still has every whole number."""
_OFFSETS = 16
_BASE: Floats = np.arange(BLOCK, dtype=np.float32) % np.float32(251) + np.float32(1)

_memcmp = ctypes.CDLL(None).memcmp
_memcmp.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
_memcmp.restype = ctypes.c_int


def offset(position: int) -> int:
    """What this position adds to the base."""
    return position % _OFFSETS


def block(positions: Iterable[int]) -> Floats:
    """The sum over *positions* of one block."""
    chosen = tuple(positions)
    return summed(len(chosen), sum(offset(position) for position in chosen))


def summed(count: int, offsets: int) -> Floats:
    return _BASE * np.float32(count) + np.float32(offsets)


def fill(target: Floats, position: int) -> None:
    """*target* is one segment: what *position* contributes."""
    own = block([position])
    for begin in range(0, len(target), BLOCK):
        part = target[begin : begin + BLOCK]
        part[:] = own[: len(part)]


def check(found: Floats, expected: Floats) -> int:
    """
    Compare a chunk, which begins at a multiple of `BLOCK` in its segment, with the repeated block.

    Returns:
        How many elements are wrong. They are put right, so that the next one on the way does not find them again.
    """
    wrong = 0
    at, want, left = found.ctypes.data, expected.ctypes.data, found.nbytes
    for begin in range(0, found.nbytes, BLOCK_BYTES):
        if _memcmp(at + begin, want, min(BLOCK_BYTES, left - begin)) != 0:
            part = found[begin // ELEMENT : begin // ELEMENT + BLOCK]
            right = expected[: len(part)]
            wrong += int(np.count_nonzero(part.view(np.uint32) != right.view(np.uint32)))
            part[:] = right
    return wrong
