"""
Which machines a gang gets: all of them at once or none, on the tightest tier there is room on.

A pure function of one snapshot of the cluster, and deterministic. Among domains of a tier with room it takes the one
with the fewest fitting machines, and in it the fullest ones, so that large holes stay for large gangs.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from astra_gang import ranks as rank_order
from astra_gang.core.state import SPARE, Assignment
from astra_gang.engine import Machine
from astra_gang.fit import OPEN_ETHERNET, Request, Tier, domain, fits, tier_name, tiers, usable
from astra_gang.shape import Shape
from astra_gang.shortage import shortage


@dataclass(frozen=True, slots=True)
class Within:
    """Where the rest of a gang already is."""

    tier: Tier
    domain: str


@dataclass(frozen=True, slots=True)
class Placement:
    """*assignments* in order of rank, spares at the end; *why* is a sentence for the user."""

    assignments: tuple[Assignment, ...]
    shape: Shape
    tier: Tier
    domain: str
    why: str


@dataclass(frozen=True, slots=True)
class NotPlaceable:
    """*reason* is one sentence: what is missing, and what would let the gang start."""

    reason: str


def place(request: Request, machines: Sequence[Machine], *, avoid: Collection[str] = ()) -> Placement | NotPlaceable:
    """
    Find machines for a whole gang.

    Tiers go first, tightest before looser; within a tier the shapes in their order of preference.

    Args:
        avoid: Names of machines that must not be chosen.
    """
    avoided = frozenset(avoid)
    least = min(shape.gpus for shape in request.shapes)  # asked first: most machines of a busy cluster fail it
    candidates = [m for m in machines if len(m.free_gpus) >= least and usable(m, request.drives, avoided)]
    fitting: dict[Shape, list[Machine]] = {}
    for tier in tiers(request):
        for shape in request.shapes:
            if (tier == "machine") != (shape.machines == 1) or (request.spares and shape.machines == 1):
                continue
            if shape not in fitting:
                fitting[shape] = [machine for machine in candidates if fits(machine, shape)]
            found = _best_domain(fitting[shape], request.wanted(shape), tier, request.min_gbps)
            if found is not None:
                name, members = found
                return _placement(range(shape.machines), shape, tier, name, members, request.spares)
    return NotPlaceable(shortage(request, machines, avoid))


def replace(
    request: Request,
    machines: Sequence[Machine],
    *,
    ranks: Sequence[int],
    keep: Collection[str],
    within: Within,
    avoid: Collection[str] = (),
) -> Placement | NotPlaceable:
    """
    Find machines for some workers of a gang whose others keep theirs, in the same domain.

    Args:
        request: Its first shape is the one that the gang has.
        ranks: Of the workers that need a machine.
        keep: Names of the machines that the others hold.
    """
    shape = request.shapes[0]
    members = [
        machine
        for machine in machines
        if fits(machine, shape)
        and machine.facts.name not in keep
        and usable(machine, request.drives, avoid)
        and domain(machine, within.tier, request.min_gbps) == within.domain
    ]
    if len(members) < len(ranks):
        others = [machine for machine in machines if machine.facts.name not in keep]
        return NotPlaceable(shortage(request, others, avoid, more=len(ranks), tier=within.tier, only=within.domain))
    return _placement(sorted(ranks), shape, within.tier, within.domain, members)


def _best_domain(
    fitting: Sequence[Machine], count: int, tier: Tier, min_gbps: float
) -> tuple[str, list[Machine]] | None:
    """The smallest domain with room for *count* workers, with its fitting machines."""
    if len(fitting) < count:
        return None
    if tier == "machine":
        fullest = min(fitting, key=_fullness)
        return fullest.facts.name, [fullest]
    members: dict[str, list[Machine]] = {}
    for machine in fitting:
        name = domain(machine, tier, min_gbps)
        if name is not None:
            members.setdefault(name, []).append(machine)
    roomy = [name for name, found in members.items() if len(found) >= count]
    if not roomy:
        return None
    best = min(roomy, key=lambda name: (len(members[name]), rank_order.natural(name)))
    return best, members[best]


def _placement(
    ranks: Sequence[int], shape: Shape, tier: Tier, name: str, members: Sequence[Machine], spares: int = 0
) -> Placement:
    chosen = sorted(members, key=_fullness)[: len(ranks) + spares]
    free = {machine.facts.name: machine.free_gpus for machine in chosen}
    ordered = rank_order.order(machine.facts for machine in chosen)
    return Placement(
        assignments=tuple(
            Assignment(rank=rank, machine=facts.name, gpus=tuple(sorted(free[facts.name])[: shape.gpus]))
            for rank, facts in zip((*ranks, *(SPARE,) * spares), ordered, strict=True)
        ),
        shape=shape,
        tier=tier,
        domain=name,
        why=_why(len(ranks), shape, tier, name, spares),
    )


def _fullness(machine: Machine) -> tuple[int, float, int, rank_order.Natural, rank_order.Natural]:
    """The fullest machine first; among equals, neighbours together."""
    return (
        len(machine.free_gpus),
        machine.free_cpu_cores,
        machine.free_memory_bytes,
        rank_order.natural(rank_order.block(machine.facts)),
        rank_order.natural(machine.facts.name),
    )


def _why(count: int, shape: Shape, tier: Tier, name: str, spares: int) -> str:
    gpus = (
        f" with {shape.gpus} {'GPU' if shape.gpus == 1 else 'GPUs'}{' each' if count > 1 else ''}" if shape.gpus else ""
    )
    if tier == "machine":
        return f"one machine{gpus}, the fullest with room: {name}"
    machines = "1 more machine" if count == 1 else f"{count} machines"
    if spares:
        machines = f"{machines} and {spares} spare"
    where = "over Ethernet" if name == OPEN_ETHERNET else f"in {tier_name(tier)} {name}"
    return f"{machines}{gpus} {where}, the tightest network with room"
