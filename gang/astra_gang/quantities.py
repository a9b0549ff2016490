"""
Durations and sizes as people write them, to and from the seconds and bytes that a spec has.
"""

from __future__ import annotations

import re
from decimal import Decimal

from astra_agent.errors import InvalidRequest

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_BYTES = {
    "": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15,
    "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50,
}  # fmt: skip
_NUMBER = r"\d{1,18}(?:\.\d{1,9})?"
_PART = re.compile(rf"({_NUMBER})([smhdw])", re.ASCII)
_DURATION = re.compile(rf"(?:{_NUMBER}|(?:{_NUMBER}[smhdw])+)", re.ASCII)
_SIZE = re.compile(rf"({_NUMBER})((?:[KMGTP]i?)?)B?", re.ASCII)


def parse_duration(text: str) -> float:
    """
    Seconds in `90`, `90s`, `24h`, `1h30m` or `1.5d`.

    Raises:
        InvalidRequest: *text* is no duration.
    """
    if not _DURATION.fullmatch(text):
        raise InvalidRequest(
            f'"{text}" is no duration: write seconds, or numbers with s, m, h, d or w, such as 24h or 1h30m'
        )
    parts = _PART.findall(text)
    if not parts:
        return float(text)
    return float(sum(Decimal(number) * _SECONDS[unit] for number, unit in parts))


def parse_size(text: str) -> int:
    """
    Bytes in `1048576`, `120Gi`, `1.5G` or `512MiB`; a part of a byte is cut off.

    Raises:
        InvalidRequest: *text* is no size.
    """
    match = _SIZE.fullmatch(text)
    if not match:
        raise InvalidRequest(
            f'"{text}" is no size: write bytes, or a number with Ki, Mi, Gi or Ti (powers of 1024) or K, M, G or T, '
            "such as 120Gi"
        )
    return int(Decimal(match[1]) * _BYTES[match[2]])


def format_size(size_bytes: int) -> str:
    """The size in the largest binary unit that leaves no more than one decimal: `120Gi`, `1.5Gi`, `1000` bytes."""
    for unit in ("Pi", "Ti", "Gi", "Mi", "Ki"):
        tenths, rest = divmod(size_bytes * 10, _BYTES[unit])
        if tenths >= 10 and not rest:
            return f"{tenths // 10}{unit}" if tenths % 10 == 0 else f"{tenths / 10:.1f}{unit}"
    return str(size_bytes)


def rough_size(size_bytes: int) -> str:
    """The size in its largest binary unit, cut to one decimal, for sentences: `23.5Gi`."""
    for unit in ("Pi", "Ti", "Gi", "Mi", "Ki"):
        if (tenths := size_bytes * 10 // _BYTES[unit]) >= 10:
            return f"{tenths / 10:g}{unit}"
    return str(size_bytes)
