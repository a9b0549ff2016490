"""
Between the spec, the core and the engine: how many workers a run has, where they go, and what an engine is asked for.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from dataclasses import replace as replace_fields
from typing import get_args

from astra_agent import wire
from astra_agent.wire import MachineFacts, RunRef, SlotRequest
from astra_gang import shape as shapes
from astra_gang.core.decisions import Place
from astra_gang.core.events import NotPlaced, Placed
from astra_gang.core.state import SPARE, Assignment, RunState, StartPolicy, Worker
from astra_gang.engine import Machine, SlotOffer
from astra_gang.fit import Request, Tier, could_fit
from astra_gang.placement import NotPlaceable, Placement, Within, place, replace
from astra_gang.shape import Shape
from astra_gang.spec import SPARE_SUFFIX, Spec


def choose_machines(spec: Spec, machines: Sequence[Machine]) -> int:
    """
    How many workers the run has: what the spec says or, where it leaves that open, what has room on *machines* now,
    else what would have room if they were empty, else the fewest. May be asked again until the run holds machines.
    """
    allowed = tuple(shapes.shapes(spec.resources, machines_max=spec.machines_max))
    if len(allowed) == 1:
        return allowed[0].machines
    request = _request(spec, allowed)
    for cluster in (machines, [_emptied(machine) for machine in machines]):
        found = place(request, cluster)
        if isinstance(found, Placement):
            return found.shape.machines
    return allowed[0].machines


def where(spec: Spec, machines: Sequence[Machine]) -> Placement | NotPlaceable:
    """Where the run would go now. Nothing is held by that."""
    return place(_request(spec, tuple(shapes.shapes(spec.resources, machines_max=spec.machines_max))), machines)


def workers(spec: Spec, count: int) -> tuple[Worker, ...]:
    """The run's workers in order of rank, without slots."""
    return tuple(Worker(rank=rank, name=f"{spec.name}-{rank}") for rank in range(count))


def answer(
    asked: Place, run: RunState, spec: Spec, machines: Sequence[Machine], taken: Collection[tuple[str, int]] = ()
) -> Placed | NotPlaced:
    """
    What the core hears on its `Place`: a whole gang in any shape that the spec allows when nothing is kept, else
    machines in the rest's domain.

    Args:
        taken: NVLink domains and IMEX channels in them that other runs have.
    """
    if asked.keep:
        request = _request(spec, (_shape(run, spec),))
        within = Within(tier=_tier(run.tier), domain=run.domain)
        found = replace(request, machines, ranks=asked.ranks, keep=asked.keep, within=within, avoid=asked.avoid)
    else:
        request = _request(spec, tuple(shapes.shapes(spec.resources, machines_max=spec.machines_max)))
        found = place(request, machines, avoid=asked.avoid)
    if isinstance(found, NotPlaceable):
        return NotPlaced(reservation=asked.reservation, reason=found.reason + _spread(spec, machines))
    channel = run.channel if asked.keep else _channel(found, machines, taken)
    if channel is None:
        reason = f"Every IMEX channel of NVLink domain {found.domain} is taken; it can start when a run there has ended"
        return NotPlaced(reservation=asked.reservation, reason=reason)
    return Placed(
        reservation=asked.reservation,
        assignments=found.assignments,
        tier=found.tier,
        domain=found.domain,
        why=found.why,
        channel=channel,
    )


@dataclass(frozen=True, slots=True)
class Seat:
    """A slot that is there already. *ref*: what the engine calls it."""

    facts: MachineFacts
    gpus: tuple[int, ...]
    slot: str
    ref: str


def seated(
    asked: Place, run: RunState, spec: Spec, seats: Sequence[Seat], taken: Collection[tuple[str, int]] = ()
) -> Placed | NotPlaced:
    """As `answer` for a whole gang whose machines have been chosen by others: who gets which rank, on which tier."""
    by_machine = {seat.facts.name: seat for seat in seats}
    machines = [_emptied(Machine(seat.facts, 0.0, 0, (), (), True)) for seat in seats]
    found = place(_request(spec, (_shape(run, spec),)), machines)
    if isinstance(found, NotPlaceable):
        return NotPlaced(reservation=asked.reservation, reason=found.reason)
    channel = _channel(found, machines, taken)
    if channel is None:
        return NotPlaced(asked.reservation, f"Every IMEX channel of NVLink domain {found.domain} is taken")
    chosen = [(assignment, by_machine[assignment.machine]) for assignment in found.assignments]
    return Placed(
        reservation=asked.reservation,
        assignments=tuple(replace_fields(one, gpus=seat.gpus, slot=seat.slot, ref=seat.ref) for one, seat in chosen),
        tier=found.tier,
        domain=found.domain,
        why=f"{len(seats)} machines that the job was placed on",
        channel=channel,
    )


def _channel(found: Placement, machines: Sequence[Machine], taken: Collection[tuple[str, int]]) -> int | None:
    """
    The lowest that no other run of the domain has, the same on every machine; 0 where they are not the runs' own. None
    when all are taken.
    """
    chosen = {assignment.machine for assignment in found.assignments}
    offered = min((machine.facts.imex_channels for machine in machines if machine.facts.name in chosen), default=0)
    if found.tier != "nvlink" or not offered:
        return 0
    return next((number for number in range(offered) if (found.domain, number) not in taken), None)


def offer(run: RunState, spec: Spec, assignment: Assignment) -> SlotOffer:
    """What the engine hands to the machine's agent for one assignment, whose slot the core has named."""
    shape = _shape(run, spec)
    worker = f"{run.name}{SPARE_SUFFIX}" if assignment.rank == SPARE else run.workers[assignment.rank].name
    request = SlotRequest(
        slot=assignment.slot,
        run=RunRef(workspace=run.workspace, name=run.name, uid=run.uid),
        worker=worker,
        image=spec.image,
        command=spec.command,
        args=spec.args,
        env=spec.env,
        drives=spec.drives,
        cpu_cores=shape.cpu_cores,
        memory_bytes=shape.memory_bytes,
        gpus=assignment.gpus,
        stop_grace_s=run.policy.stop_grace_s,
        engine_ref=assignment.ref,
    )
    return SlotOffer(machine=assignment.machine, request=request)


def example(run: RunState, spec: Spec, machines: Sequence[Machine]) -> SlotOffer | None:
    """A worker of the run on a machine that could have one, whatever runs there now; None when there is none."""
    request, shape = _request(spec, (_shape(run, spec),)), _shape(run, spec)
    for machine in machines:
        if machine.connected and could_fit(machine, shape, request.drives):
            return offer(run, spec, Assignment(rank=0, machine=machine.facts.name, gpus=(), slot="example"))
    return None


def placed(run: RunState, spec: Spec) -> wire.Placed:
    """What each worker's agent is told of where the run was placed."""
    return wire.Placed(tier=_tier(run.tier), domain=run.domain or None, min_gbps=spec.min_gbps, channel=run.channel)


def _shape(run: RunState, spec: Spec) -> Shape:
    return shapes.of(spec.resources, len(run.workers))


def _spread(spec: Spec, machines: Sequence[Machine]) -> str:
    """A hint for a run that would fit no machine, and is held to one only because nobody made it a gang."""
    counts = [len(machine.facts.gpus) for machine in machines]
    if spec.start is StartPolicy.GANG or spec.resources.machines is not None:
        return ""
    if not max(counts, default=0) < spec.resources.gpus <= sum(counts):
        return ""
    return "; set start: Gang to spread it over several machines"


def _request(spec: Spec, allowed: tuple[Shape, ...]) -> Request:
    return Request(
        shapes=allowed,
        interconnect=spec.interconnect,
        min_gbps=spec.min_gbps,
        drives=tuple(dict.fromkeys(drive.name for drive in spec.drives)),
        spares=spec.spares,
    )


def _tier(word: str) -> Tier:
    tier: Tier
    for tier in get_args(Tier):
        if tier == word:
            return tier
    raise ValueError(f"{word!r} is no tier")


def _emptied(machine: Machine) -> Machine:
    """The machine as it would be if nothing ran on it and it were there."""
    facts = machine.facts
    return Machine(
        facts=facts.model_copy(update={"out_of_use": None}),
        free_cpu_cores=facts.cpu_cores,
        free_memory_bytes=facts.memory_bytes,
        free_gpus=tuple(gpu.index for gpu in facts.gpus),
        slots=(),
        connected=True,
    )
