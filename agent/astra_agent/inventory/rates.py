"""The rate of a port, as sysfs writes it."""

from __future__ import annotations

import re

_RATE = re.compile(r"([0-9]{1,4}(?:\.[0-9])?) Gb/sec \((?P<width>1|2|4|8|12)X(?: (?P<speed>[A-Z]+[0-9]*))?\)")
_MODEL = re.compile(r"MT([0-9]{4,5})")

_NEWEST_SLOW_MODEL = 4128
"""ConnectX-7 is MT4129, and each later card has a higher number: none of them ever negotiates SDR."""


def parse_rate(text: str) -> float | None:
    """Gbit/s of `400 Gb/sec (4X NDR)`; None when it is no such text. The name in the brackets is for people."""
    match = _RATE.fullmatch(text.strip())
    return float(match[1]) if match else None


def is_kernels_guess(text: str, model: str) -> bool:
    """
    Whether the text stands for a speed that this kernel has no name for: it prints the slowest one instead, so an
    active port of a recent card that claims `10 Gb/sec (4X SDR)` runs at something faster than the kernel knows.
    """
    rate, card = _RATE.fullmatch(text.strip()), _MODEL.fullmatch(model)
    if rate is None or card is None:
        return False
    return rate["speed"] in (None, "SDR") and int(card[1]) > _NEWEST_SLOW_MODEL
