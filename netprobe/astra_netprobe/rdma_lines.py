"""Which RDMA port of each machine is measured with which of the others. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from astra_netprobe.messages import RDMA_PORTS_MAX, RdmaPort


@dataclass(frozen=True, slots=True)
class Line:
    """One port of each machine, by the machine's name."""

    number: int
    ports: Mapping[str, RdmaPort]


def lines(ports: Mapping[str, Sequence[RdmaPort]]) -> tuple[list[Line], dict[str, str]]:
    """
    Ports of the same name belong together; where no name is on all machines, those of the same place in order. With a
    port that is out on one machine its others do not move up: on many networks each has a switch of its own.

    Returns: The lines, and, by machine, a sentence on the ports that belong to none.
    """
    named = {machine: {name(port): port for port in of_machine} for machine, of_machine in ports.items()}
    if not named:
        return [], {}
    first = next(iter(named.values()))
    common = [known for known in first if all(known in of_machine for of_machine in named.values())]
    found: list[dict[str, RdmaPort]]
    if common:
        found = [{machine: of_machine[known] for machine, of_machine in named.items()} for known in common]
    else:
        found = [dict(zip(ports, place, strict=True)) for place in zip(*ports.values(), strict=False)]
    chosen = [Line(number, line) for number, line in enumerate(found[:RDMA_PORTS_MAX])]
    left = {}
    for machine, of_machine in named.items():
        taken = [name(line.ports[machine]) for line in chosen]
        if spare := [known for known in of_machine if known not in taken]:
            left[machine] = f"RDMA of {machine}'s {', '.join(spare)} is not measured: not all machines have such a port"
    return chosen, left


def name(port: RdmaPort) -> str:
    """`mlx5_0`; with the number of the port where a device has several, as `ib_write_bw` counts them."""
    return port.device if port.port == 1 else f"{port.device}/{port.port}"
