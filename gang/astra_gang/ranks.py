"""
Ranks as a pure function of a placement: neighbours in rank are neighbours in the fabric.

A ring all-reduce talks to the next rank, so an order along the domains crosses each border between two of them once.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

from astra_agent.wire import MachineFacts

_DIGITS = re.compile(r"(\d+)", re.ASCII)

Natural = tuple[tuple[str | int, ...], str]


@lru_cache(maxsize=65536)  # names come back with every snapshot of the cluster
def natural(name: str) -> Natural:
    """A sort key in which numbers count as numbers: m-2 before m-10. Different names have different keys."""
    # split() with a group alternates text and digits, so places of two keys hold the same type.
    parts = _DIGITS.split(name)
    return tuple(int(part) if place % 2 else part for place, part in enumerate(parts)), name


def order(machines: Iterable[MachineFacts]) -> list[MachineFacts]:
    """The machines in order of rank, in whatever order they come: by domain, the widest tier first, then by name."""
    return sorted(machines, key=_place_in_fabric)


def block(facts: MachineFacts) -> str:
    """The closest domain that this machine shares with others, or the empty string."""
    return facts.domains.get("nvlink") or facts.domains.get("infiniband") or facts.domains.get("rdma") or ""


def _place_in_fabric(facts: MachineFacts) -> tuple[Natural, ...]:
    domains = facts.domains
    return (
        natural(domains.get("ethernet", "")),
        natural(domains.get("rdma", "")),
        natural(domains.get("infiniband", "")),
        natural(domains.get("nvlink", "")),
        natural(facts.name),
    )
