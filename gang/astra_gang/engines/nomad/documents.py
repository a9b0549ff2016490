"""
Documents as the items of variables: plain JSON while it is small, for people who look at it; compressed when it is not,
and in several parts when a variable is too small for that.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

PLAIN_MAX = 16 * 1024
"""Bytes of JSON that are written as they are."""
PART_MAX = 60_000
"""Bytes of one part; a variable's keys and values together have 65,536."""
WRITTEN = "written"
"""Item with the name of the writing."""
_TEXT, _ZLIB, _PARTS = "json", "zlib", "parts"


@dataclass(frozen=True, slots=True)
class Items:
    """
    Attributes:
        main: Of the variable at the document's path.
        parts: Of the variables that have to be there before it, in order.
    """

    main: dict[str, str]
    parts: tuple[dict[str, str], ...] = ()


class Damaged(ValueError):
    """A variable that is no document, or not whole."""


def encode(text: str, written: str) -> Items:
    """*written*: tells the parts of this writing from those of others; it goes into their paths."""
    if len(text.encode()) <= PLAIN_MAX:
        return Items({_TEXT: text, WRITTEN: written})
    packed = base64.b64encode(zlib.compress(text.encode(), 6)).decode()
    if len(packed) <= PART_MAX:
        return Items({_ZLIB: packed, WRITTEN: written})
    cut = [packed[i : i + PART_MAX] for i in range(0, len(packed), PART_MAX)]
    return Items({_PARTS: str(len(cut)), WRITTEN: written}, tuple({_ZLIB: part} for part in cut))


def part_paths(path: str, items: dict[str, str]) -> tuple[str, ...]:
    """Where the parts of the document at *path* are, in order; none for one that is in one piece."""
    try:
        return tuple(part_path(path, items[WRITTEN], i) for i in range(int(items.get(_PARTS, "0"))))
    except (KeyError, ValueError) as error:
        raise Damaged(f"variable {path} is none of a document ({error})") from error


def part_path(path: str, written: str, number: int) -> str:
    return f"{path}/{PART}{written}-{number}"


PART = "part-"
"""How the last name in the path of a part begins; no document's does."""


def is_part(path: str) -> bool:
    return path.rpartition("/")[2].startswith(PART)


def decode(path: str, main: dict[str, str], parts: Sequence[dict[str, str]] = ()) -> str:
    """
    Raises:
        Damaged: With the path.
    """
    if _TEXT in main:
        return main[_TEXT]
    try:
        packed = "".join(part[_ZLIB] for part in parts) if _PARTS in main else main[_ZLIB]
        return zlib.decompress(base64.b64decode(packed, validate=True)).decode()
    except (KeyError, binascii.Error, zlib.error, UnicodeDecodeError) as error:
        raise Damaged(f"variable {path} is damaged ({error})") from error
