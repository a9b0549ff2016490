"""
What a probe measured, as plain values: who, towards whom, how much. Rates are bits per second, times seconds.

Machines are named, never numbered: a reading makes sense without the round that it came from.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

Outcome = Literal["reached", "refused", "rejected", "no_neighbour", "silent", "stranger"]
"""
How a connection to a peer's port ended: `refused` by a reset, `rejected` at once by somebody on the way, `no_neighbour`
after nobody answered for the address on the local network, `silent` after nothing came back at all, `stranger` when
something answered that is not the peer.
"""


@dataclass(frozen=True, slots=True)
class Sending:
    """
    What the kernel of a sender says about one peer over one round: the sum over its connections to it.

    *busy_s* is the time with data that was not acknowledged yet, *window_s* the part of it in which the receiver's
    program was too slow: the difference is the network's own.
    """

    seconds: float
    acked_bytes: int
    busy_s: float
    window_s: float = 0.0

    @property
    def busy(self) -> float:
        """Share of the round in which the network had something to do, 0 to 1."""
        return min(1.0, self.busy_s / self.seconds) if self.seconds > 0 else 0.0

    @property
    def rate(self) -> float:
        """Bits per second while it had."""
        network_s = max(self.busy_s - self.window_s, 0.1 * self.busy_s)
        return 8 * self.acked_bytes / network_s if network_s > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Hop:
    """One hop of a ring during a ring round; *rtt_s*, *cwnd* and *lost* as TCP has them at its end, in packets."""

    sender: str
    receiver: str
    busy: float
    rate: float
    retransmits: int = 0
    broken: bool = False
    """Data was under way to *receiver* and nothing of it was acknowledged any more."""
    rtt_s: float = 0.0
    cwnd: int = 0
    lost: int = 0


@dataclass(frozen=True, slots=True)
class Flow:
    """
    One direction of a pair during a pair round.

    *rate* is what the network carried while it had something to do, *reached* what came out in the end: they differ
    where a machine was too slow for its network. *both*: the other direction was loaded at the same time. *rtt_s*,
    *cwnd* and *lost* as TCP has them at its end, in packets.
    """

    sender: str
    receiver: str
    rate: float
    both: bool = False
    reached: float = 0.0
    retransmits: int = 0
    wrong: int = 0
    broken: bool = False
    rtt_s: float = 0.0
    cwnd: int = 0
    lost: int = 0


@dataclass(frozen=True, slots=True)
class RoundTrip:
    """Of a small message between two machines."""

    one: str
    other: str
    p50_s: float
    p99_s: float
    max_s: float
    count: int


@dataclass(frozen=True, slots=True)
class Reach:
    source: str
    target: str
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class LargePacket:
    """Whether a packet of the sender's whole MTU, not to be fragmented, arrived where a small one did."""

    sender: str
    receiver: str
    mtu: int
    small_arrived: bool
    large_arrived: bool


@dataclass(frozen=True, slots=True)
class Wrong:
    """Elements that arrived other than they were sent."""

    sender: str
    receiver: str
    elements: int


@dataclass(frozen=True, slots=True)
class Sized:
    """
    All-reduces of one size. *times_s* has one entry for each iteration, that of the slowest rank; the warm-up is apart.
    """

    size_bytes: int
    ranks: int
    algorithm: Literal["ring", "doubling"]
    times_s: tuple[float, ...]
    first_s: float = 0.0
    wrong: int = 0


@dataclass(frozen=True, slots=True)
class Port:
    """The network port that a machine's address is on; 0 and "" where the machine does not say."""

    machine: str
    address: str
    device: str = ""
    driver: str = ""
    mtu: int = 0
    speed_bps: float = 0.0
    duplex: str = ""
    errors: int = 0
    """Errors and drops that the port counted during the probe."""


@dataclass(frozen=True, slots=True)
class RdmaFlow:
    """
    `ib_write_bw` from one machine's port to another's; *line_bps* is what the slower of the two ports has.

    *line* numbers the ports of a machine, the same of all machines; *together*: its other ports were loaded, too.
    """

    sender: str
    receiver: str
    sending_device: str
    receiving_device: str
    rate: float
    line_bps: float
    reason: str = ""
    """Why there is no rate."""
    line: int = 0
    together: bool = False


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that one probe saw, in the order of its stages."""

    machines: tuple[str, ...]
    ports: tuple[Port, ...] = ()
    reaches: tuple[Reach, ...] = ()
    packets: tuple[LargePacket, ...] = ()
    sizes: tuple[Sized, ...] = ()
    rings: tuple[tuple[Hop, ...], ...] = ()
    rounds: tuple[tuple[Flow, ...], ...] = ()
    trips: tuple[RoundTrip, ...] = ()
    wrongs: tuple[Wrong, ...] = ()
    absent: dict[str, str] = field(default_factory=dict)
    """Machines that did not answer (any more), with a sentence."""
    cpu_bound: tuple[str, ...] = ()
    """Machines whose processor, not the network, was the limit."""
    rdma: tuple[RdmaFlow, ...] = ()
    no_rdma: dict[str, str] = field(default_factory=dict)
    """Machines that RDMA could not be measured on, with the reason; RDMA is measured when there are none."""
    rdma_left: dict[str, str] = field(default_factory=dict)
    """Machines with active RDMA ports that were not measured: which, and why."""
    bounds: dict[str, float] = field(default_factory=dict)
    """What machines send to a peer at most, by a setting of their own; those that have none are not in it."""

    @property
    def flows(self) -> tuple[Flow, ...]:
        return tuple(flow for flows in self.rounds for flow in flows)

    def without(self, name: str) -> Evidence:
        """Of the others alone; all-reduces, in which this machine took part, say nothing of them then."""
        rounds = (tuple(f for f in flows if name not in (f.sender, f.receiver)) for flows in self.rounds)
        return replace(
            self,
            machines=tuple(machine for machine in self.machines if machine != name),
            ports=tuple(port for port in self.ports if port.machine != name),
            reaches=tuple(reach for reach in self.reaches if name not in (reach.source, reach.target)),
            packets=tuple(packet for packet in self.packets if name not in (packet.sender, packet.receiver)),
            sizes=(),
            rings=(),
            rounds=tuple(flows for flows in rounds if flows),
            trips=tuple(trip for trip in self.trips if name not in (trip.one, trip.other)),
            wrongs=tuple(wrong for wrong in self.wrongs if name not in (wrong.sender, wrong.receiver)),
            absent={machine: why for machine, why in self.absent.items() if machine != name},
            cpu_bound=tuple(machine for machine in self.cpu_bound if machine != name),
            rdma=tuple(flow for flow in self.rdma if name not in (flow.sender, flow.receiver)),
            no_rdma={machine: why for machine, why in self.no_rdma.items() if machine != name},
            rdma_left={machine: why for machine, why in self.rdma_left.items() if machine != name},
            bounds={machine: bound for machine, bound in self.bounds.items() if machine != name},
        )
