"""
Why a gang has no place: one sentence with what it needs, how near the cluster comes, and what would let it start.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from heapq import nsmallest

from astra_gang import ranks as rank_order
from astra_gang.engine import Machine
from astra_gang.fit import (
    OPEN_ETHERNET,
    PORT_TIERS,
    Request,
    Tier,
    could_fit,
    domain,
    fits,
    lack,
    nearness,
    tier_name,
    tiers,
    usable,
)
from astra_gang.quantities import format_size
from astra_gang.shape import Shape

_NAMED_MAX = 3
"""Machines that the sentence names, of those that fit and of those that nearly do."""


@dataclass(frozen=True, slots=True)
class _Nearest:
    """The domain that comes nearest to holding *shape*, with its machines that fit; no name when no machine fits."""

    shape: Shape
    name: str
    members: list[Machine]


def shortage(
    request: Request,
    machines: Sequence[Machine],
    avoid: Collection[str],
    *,
    more: int = 0,
    tier: Tier | None = None,
    only: str | None = None,
) -> str:
    """
    Args:
        machines: All that may be chosen from.
        more: How many machines a gang that keeps the others is short of; 0 for a whole gang.
        tier, only: The tier and the domain that those must be in; by default any domain of the loosest that will do.
    """
    where = tier or tiers(request)[-1]
    nearest = _nearest(request, machines, avoid, where, only)
    wanted = more or request.wanted(nearest.shape)
    clauses = [
        _needs(request, nearest.shape, wanted, where, only, more=bool(more)),
    ]
    if machines:
        clauses += _has(nearest, wanted, where, only)
        clauses += _never(request, machines, nearest.shape, wanted, where, only)
        clauses += _near_misses(request, machines, nearest, avoid, where, only)
    else:
        clauses.append("no other machine is known" if more else "no machine is known")
    subject = "Gang cannot be placed whole" if more or wanted > 1 else "Cannot be placed"
    return f"{subject}: {'; '.join(clauses)}"


def _nearest(
    request: Request, machines: Sequence[Machine], avoid: Collection[str], tier: Tier, only: str | None
) -> _Nearest:
    best = _Nearest(request.shapes[0], only or "", [])
    for shape in request.shapes:
        found = _members(
            [machine for machine in machines if usable(machine, request.drives, avoid) and fits(machine, shape)],
            request, _tier(shape, tier), only,
        )  # fmt: skip
        for name, members in sorted(found.items(), key=lambda item: rank_order.natural(item[0])):
            if len(members) * request.wanted(best.shape) > len(best.members) * request.wanted(shape):
                best = _Nearest(shape, name, members)
    return best


def _members(machines: Sequence[Machine], request: Request, tier: Tier, only: str | None) -> dict[str, list[Machine]]:
    found: dict[str, list[Machine]] = {}
    for machine in machines:
        name = domain(machine, tier, request.min_gbps)
        if name is not None and only in (None, name):
            found.setdefault(name, []).append(machine)
    return found


def _tier(shape: Shape, loosest: Tier) -> Tier:
    return "machine" if shape.machines == 1 else loosest


def _needs(request: Request, shape: Shape, wanted: int, tier: Tier, only: str | None, *, more: bool) -> str:
    """`needs 4 machines with 8 free GPUs each in one InfiniBand fabric`"""
    machines = f"{wanted} {'more ' if more else ''}{'machine' if wanted == 1 else 'machines'}"
    if request.spares and not more:
        machines += f" ({shape.machines} and {request.spares} spare)"
    parts = []
    if shape.gpus:
        parts.append(f"{shape.gpus} free {'GPU' if shape.gpus == 1 else 'GPUs'}")
    if shape.cpu_cores:
        parts.append(f"{shape.cpu_cores:g} free CPU {'core' if shape.cpu_cores == 1 else 'cores'}")
    if shape.memory_bytes:
        parts.append(f"{format_size(shape.memory_bytes)} of free memory")
    if request.min_gbps and _tier(shape, tier) in PORT_TIERS:
        parts.append(f"a port of {request.min_gbps:g} Gb/s")
    having = f" with {_and(parts)}{' each' if wanted > 1 else ''}" if parts else ""
    return f"needs {machines}{having}{_where(_tier(shape, tier), only)}{_others(request, shape)}"


def _where(tier: Tier, only: str | None) -> str:
    if tier == "machine" or (tier == "ethernet" and only in (None, OPEN_ETHERNET)):
        return ""
    return f" in {tier_name(tier)} {only}" if only else f" in one {tier_name(tier)}"


def _others(request: Request, shape: Shape) -> str:
    if len(request.shapes) < 2:
        return ""
    others = [f"{other.machines} x {other.gpus}" for other in request.shapes if other != shape]
    return f" (or {' or '.join(others[:_NAMED_MAX])} GPUs)"


def _has(nearest: _Nearest, wanted: int, tier: Tier, only: str | None) -> list[str]:
    """`the best, fabric ib-a, has 3 (m-1, m-2, m-3)`, `1 more would do`"""
    if not nearest.members:
        return ["no machine has that now"] if only is None else ["none there has that now"]
    names = _listed(sorted((machine.facts.name for machine in nearest.members), key=rank_order.natural))
    missing = wanted - len(nearest.members)
    if only is not None or (tier == "ethernet" and nearest.name == OPEN_ETHERNET):
        have = f"{len(nearest.members)} {'has' if len(nearest.members) == 1 else 'have'} that ({names})"
    else:
        have = f"the best, {nearest.name}, has {len(nearest.members)} ({names})"
    return [have, f"{missing} more would do"]


def _never(
    request: Request, machines: Sequence[Machine], shape: Shape, wanted: int, tier: Tier, only: str | None
) -> list[str]:
    """Says so when the gang would not fit if nothing else ran: waiting does not help then."""
    able = {other: _able(request, machines, other, tier, only) for other in request.shapes}
    if any(able[other] >= (wanted if other == shape else request.wanted(other)) for other in request.shapes):
        return []
    return [f"even if nothing else ran there would be {able[shape] or 'none'}, so waiting does not help"]


def _able(request: Request, machines: Sequence[Machine], shape: Shape, tier: Tier, only: str | None) -> int:
    """The most machines of one domain that could hold a worker of this shape if they were empty."""
    able = [machine for machine in machines if could_fit(machine, shape, request.drives)]
    if shape.machines == 1 and only is None:
        return min(len(able), 1)
    return max(map(len, _members(able, request, tier, only).values()), default=0)


def _near_misses(
    request: Request,
    machines: Sequence[Machine],
    nearest: _Nearest,
    avoid: Collection[str],
    loosest: Tier,
    only: str | None,
) -> list[str]:
    """What keeps off the machines that come nearest: `next would be m-4 (3 of its 8 GPUs free)`."""
    tier = _tier(nearest.shape, loosest)
    wanted = nearest.name if tier != "machine" else ""
    missed: list[tuple[int, Machine]] = []
    for machine in machines:
        near = nearness(machine, request, nearest.shape, tier, avoid)
        if near is not None and (not wanted or domain(machine, tier, request.min_gbps) in (wanted, None)):
            missed.append((near, machine))
    first = nsmallest(_NAMED_MAX, missed, key=lambda miss: (-miss[0], *_emptiness(miss[1])))
    why: dict[str, list[str]] = {}
    for _, machine in first:
        why.setdefault(lack(machine, request, nearest.shape, tier, avoid), []).append(machine.facts.name)
    listed = [f"{', '.join(names)} ({text})" for text, names in why.items()]
    return [f"next would be {', '.join(listed)}"] if listed else []


def _emptiness(machine: Machine) -> tuple[int, float, int, rank_order.Natural]:
    return (
        -len(machine.free_gpus),
        -machine.free_cpu_cores,
        -machine.free_memory_bytes,
        rank_order.natural(machine.facts.name),
    )


def _listed(names: list[str]) -> str:
    shown = ", ".join(names[:_NAMED_MAX])
    return shown if len(names) <= _NAMED_MAX else f"{shown} and {len(names) - _NAMED_MAX} more"


def _and(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
