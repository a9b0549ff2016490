"""
What a conductor asks of a machine that takes part in a probe, and what it answers: one JSON document each.

One question at a time; a new probe begins with `Open`. A machine knows others by number, address and port, and
names nobody. Durations are seconds, sizes bytes, rates bits per second. Unknown fields are refused, so a newer or older
peer is found out at the first message: `Open` and `Opened` have `PROTOCOL`, which is looked at before the rest is read.
`Failed`, which refuses them, stays as it is in every protocol.
"""

from __future__ import annotations

import json
from typing import Annotated, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

PROTOCOL = 3
"""Of all that crosses the network in a probe: these documents, and the greetings between machines."""
MESSAGE_MAX = 1 << 20
"""Bytes of one document; one with 4,096 peers has about 300,000."""
SIZE_MAX = 1 << 30
SECONDS_MAX = 600.0
RDMA_PORTS_MAX = 32
"""Of one machine, at the same time: each is a process."""

Rank = Annotated[int, Field(ge=0, lt=32768)]
Port = Annotated[int, Field(ge=0, lt=65536)]
Tag = Annotated[int, Field(ge=0, lt=1 << 32)]
Seconds = Annotated[float, Field(gt=0, le=SECONDS_MAX)]
Streams = Annotated[int, Field(ge=1, le=64)]


class Message(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Peer(Message):
    rank: Rank
    address: str
    port: Port
    packet_port: Port = 0


class RdmaPort(Message):
    """An active RDMA port. *gid*: the one to use over Ethernet; None: the tool's own choice."""

    device: str
    port: int = Field(default=1, ge=1, le=255)
    link_layer: str = ""
    rate_bps: float = 0.0
    gid: int | None = None


# Questions -----------------------------------------------------------------------------------------------------------


class Open(Message):
    """Take part as *rank*: listen on *address*, for those who know *secret*. Ends whatever went on before."""

    kind: Literal["open"] = "open"
    protocol: int = PROTOCOL
    rank: Rank
    secret: str = Field(pattern=r"^[0-9a-f]{32}$")
    address: str
    max_bps: float = Field(default=0.0, ge=0)
    """What this machine may send to a peer; 0: as much as goes."""
    device: str = Field(default="", pattern=r"^[^\s/]{0,15}$")
    """A network port whose address takes the place of *address*."""


class FindPeers(Message):
    """Connect to each, all at once."""

    kind: Literal["find_peers"] = "find_peers"
    peers: tuple[Peer, ...]
    limit_s: Seconds


class SendPackets(Message):
    """To each a small packet and one of the port's whole MTU, not to be fragmented."""

    kind: Literal["send_packets"] = "send_packets"
    peers: tuple[Peer, ...]
    limit_s: Seconds


class JoinRing(Message):
    """Connect to the next position and wait for the previous one. *order*: ranks by position."""

    kind: Literal["join_ring"] = "join_ring"
    tag: Tag
    position: Rank
    count: Rank
    next: Peer
    previous: Rank
    streams: Streams = 1
    limit_s: Seconds


class JoinDoubling(Message):
    """*peers* are the positions of `doubling.peers`, those to connect to with an address, the others with port 0."""

    kind: Literal["join_doubling"] = "join_doubling"
    tag: Tag
    position: Rank
    count: Rank
    peers: tuple[tuple[Rank, Peer], ...]
    limit_s: Seconds


class AllReduce(Message):
    """Over the ring, or the connections for doubling, that was joined as *tag*. One iteration more goes first."""

    kind: Literal["all_reduce"] = "all_reduce"
    tag: Tag
    algorithm: Literal["ring", "doubling"]
    size_bytes: int = Field(ge=4, le=SIZE_MAX)
    iterations: int = Field(ge=1, le=100_000)
    stall_s: Seconds
    limit_s: Seconds


class Leave(Message):
    """Close what was joined as *tag*."""

    kind: Literal["leave"] = "leave"
    tag: Tag


class Transfer(Message):
    """Send to *to* for *seconds*, receive from *from_rank* until it is done, or both."""

    kind: Literal["transfer"] = "transfer"
    tag: Tag
    to: Peer | None = None
    from_rank: Rank | None = None
    seconds: Seconds
    streams: Streams = 1
    stall_s: Seconds
    limit_s: Seconds


class RoundTrips(Message):
    """Ping *to*, or answer *from_rank*."""

    kind: Literal["round_trips"] = "round_trips"
    tag: Tag
    to: Peer | None = None
    from_rank: Rank | None = None
    count: int = Field(default=1000, ge=1, le=1_000_000)
    seconds: Seconds
    limit_s: Seconds


class CountErrors(Message):
    """Of the port, since `Open`."""

    kind: Literal["count_errors"] = "count_errors"


class RdmaWrite(Message):
    """One side of `ib_write_bw`: without *to* be called on TCP port *listen*, with it, an address, call and send."""

    device: str = Field(pattern=r"^[A-Za-z0-9_.]{1,64}$")
    port: int = Field(default=1, ge=1, le=255)
    gid: int | None = Field(default=None, ge=0, le=65535)
    listen: int = Field(ge=1024, lt=65536)
    to: str | None = Field(default=None, pattern=r"^[0-9A-Fa-f.:]{2,45}$")
    seconds: Seconds
    limit_s: Seconds


class RdmaWrites(Message):
    """All at the same time; each on a *listen* of its own."""

    kind: Literal["rdma_writes"] = "rdma_writes"
    writes: tuple[RdmaWrite, ...] = Field(min_length=1, max_length=RDMA_PORTS_MAX)


Question: TypeAlias = (
    Open | FindPeers | SendPackets | JoinRing | JoinDoubling | AllReduce | Leave | Transfer | RoundTrips | RdmaWrites
    | CountErrors
)  # fmt: skip

# Answers -------------------------------------------------------------------------------------------------------------


class Opened(Message):
    kind: Literal["opened"] = "opened"
    protocol: int = PROTOCOL
    port: Port
    packet_port: Port
    device: str = ""
    driver: str = ""
    mtu: int = 0
    speed_bps: float = 0.0
    duplex: Literal["", "half", "full"] = ""
    rdma: tuple[RdmaPort, ...] = ()
    address: str = ""
    """What peers reach this machine at, of the port that was asked for; empty: what the conductor knows."""
    max_bps: float = Field(default=0.0, ge=0)
    """What this machine sends to a peer at most by its own setting, whatever it was asked for; 0: as much as goes."""
    no_rdma: str = ""
    """Why RDMA can't be measured here; empty when it can, or when nobody looked."""


class PeersFound(Message):
    kind: Literal["peers_found"] = "peers_found"
    outcomes: dict[int, Literal["reached", "refused", "rejected", "no_neighbour", "silent", "stranger"]]


class PacketsSent(Message):
    kind: Literal["packets_sent"] = "packets_sent"
    mtu: int
    small: tuple[int, ...]
    """Ranks where the small packet arrived."""
    large: tuple[int, ...]


class Sent(Message):
    """As `readings.Sending`."""

    seconds: float
    acked_bytes: int
    busy_s: float
    window_s: float
    retransmits: int
    rtt_s: float
    cwnd: int = 0
    """Packets that may be under way at once, at the end."""
    lost: int = 0
    """Packets that are taken for lost at the end, and are not sent again yet."""
    is_stuck: bool = False
    """Data is under way and nothing was acknowledged for a while."""


class Reduced(Message):
    """*times_s* has what was done when *broken*, a sentence, is not empty."""

    kind: Literal["reduced"] = "reduced"
    times_s: tuple[float, ...]
    first_s: float
    wrong: dict[int, int]
    """Elements, by the rank that they came from."""
    sent: Sent | None = None
    processor: float
    """Share of the time that this process ran or wanted to, 0 to 1."""
    broken: str = ""


class Transferred(Message):
    kind: Literal["transferred"] = "transferred"
    sent: Sent | None = None
    received_bytes: int = 0
    received_s: float = 0.0
    wrong: int = 0
    processor: float
    broken: str = ""


class RoundTripsDone(Message):
    kind: Literal["round_trips_done"] = "round_trips_done"
    times_s: tuple[float, ...]
    broken: str = ""


class ErrorsCounted(Message):
    kind: Literal["errors_counted"] = "errors_counted"
    errors: int = Field(ge=0)


class RdmaDone(Message):
    """*reason*: why there is no rate."""

    rate_bps: float = 0.0
    link: str = ""
    mtu: int = 0
    reason: str = ""


class RdmaWritesDone(Message):
    """In the order of the question."""

    kind: Literal["rdma_writes_done"] = "rdma_writes_done"
    done: tuple[RdmaDone, ...]


class Done(Message):
    kind: Literal["done"] = "done"


class Failed(Message):
    """*rank*: the peer that did not take its part; None: this machine itself."""

    kind: Literal["failed"] = "failed"
    sentence: str
    rank: int | None = None


Answer: TypeAlias = (
    Opened
    | PeersFound
    | PacketsSent
    | Reduced
    | Transferred
    | RoundTripsDone
    | RdmaWritesDone
    | ErrorsCounted
    | Done
    | Failed
)

QUESTION: TypeAdapter[Question] = TypeAdapter(Annotated[Question, Field(discriminator="kind")])
ANSWER: TypeAdapter[Answer] = TypeAdapter(Annotated[Answer, Field(discriminator="kind")])


def other_protocol(document: str | bytes) -> int | None:
    """The protocol that *document* names, when it is not ours; None as well for what is no document at all."""
    try:
        said = json.loads(document)
    except (ValueError, RecursionError):
        return None
    named = said.get("protocol") if isinstance(said, dict) else None
    return named if type(named) is int and named != PROTOCOL else None
