"""
The dev cluster's network as values: which interfaces are made in which namespace, and how links are shaped.

One hub namespace holds a bridge; each machine is a namespace with one end of a veth pair, `eth0`. The other end is in
the hub, on the bridge. This machine's own network has no part in it, not even for a moment: pairs are made in the hub.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from astra_agent.errors import InvalidRequest
from astra_cli.dev.plan import HUB_ADDRESS, PREFIX_LEN, ClusterPlan, Layout, address
from astra_cli.dev.topology import MachinePlan

BRIDGE = "br0"
UPLINK = "eth0"

_RATES = {"kbit": 10**3, "mbit": 10**6, "gbit": 10**9}


@dataclass(frozen=True, slots=True)
class Batch:
    """Lines for `ip -batch` in one namespace, in order."""

    netns: str
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Link:
    """A machine's link: *rate_bit_s* 0 is unshaped."""

    rate_bit_s: int = 0
    up: bool = True


def hub_end(machine: MachinePlan) -> str:
    """The interface on the hub's side; interface names end at 15 characters, machines' names do not."""
    return f"to-m{machine.number}"


def batches(plan: ClusterPlan, layout: Layout) -> tuple[Batch, ...]:
    """Everything, in namespaces that exist and are empty."""
    hub = [
        "link set lo up",
        f"link add {BRIDGE} type bridge stp_state 0 forward_delay 0",
        f"address add {HUB_ADDRESS}/{PREFIX_LEN} dev {BRIDGE}",
        f"link set {BRIDGE} up",
    ]
    for machine in plan.machines:
        end = hub_end(machine)
        hub += [
            f"link add {end} type veth peer name {UPLINK} netns {layout.netns(machine.name)}",
            f"link set {end} master {BRIDGE}",
            f"link set {end} up",
        ]
    machines = (_machine_batch(machine, plan, layout) for machine in plan.machines)
    return (Batch(str(layout.hub), tuple(hub)), *machines)


def _machine_batch(machine: MachinePlan, plan: ClusterPlan, layout: Layout) -> Batch:
    """With addresses of their own, slots are ports of the machine's bridge, as is its uplink."""
    lines = ["link set lo up"]
    device = UPLINK
    if plan.slot_network == "own":
        device = BRIDGE
        lines += [
            f"link add {BRIDGE} type bridge stp_state 0 forward_delay 0",
            f"link set {UPLINK} master {BRIDGE}",
            f"link set {BRIDGE} up",
        ]
    lines += [f"address add {address(machine)}/{PREFIX_LEN} dev {device}", f"link set {UPLINK} up"]
    return Batch(str(layout.netns(machine.name)), tuple(lines))


def shape(machine: MachinePlan, layout: Layout, before_bit_s: int, rate_bit_s: int) -> tuple[tuple[str, str], ...]:
    """
    Arguments of `tc` with their namespaces: the rate holds in both directions, so each end of the link has it.

    The burst lets one timer tick (4 ms) of the rate through, and never less than a few full packets.
    """
    if before_bit_s == rate_bit_s:
        return ()
    ends = ((str(layout.hub), hub_end(machine)), (str(layout.netns(machine.name)), UPLINK))
    if not rate_bit_s:
        return tuple((netns, f"qdisc del dev {end} root") for netns, end in ends)
    tbf = f"tbf rate {rate_bit_s}bit burst {max(16 * 1024, rate_bit_s // 8 // 250)}b latency 50ms"
    return tuple((netns, f"qdisc replace dev {end} root {tbf}") for netns, end in ends)


def parse_rate(text: str) -> int:
    """`200mbit`, `1.5gbit`, `64kbit`; `0` or `none`: 0, unshaped. Raises: InvalidRequest."""
    if text in ("0", "none"):
        return 0
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(kbit|mbit|gbit)", text)
    rate = int(float(match[1]) * _RATES[match[2]]) if match else 0
    if not 8000 <= rate <= 100 * 10**9:
        raise InvalidRequest(
            f"--rate must be from 8kbit to 100gbit, such as 200mbit, or none to take it away, not {text!r}", "--rate"
        )
    return rate


def rate_text(rate_bit_s: int) -> str:
    """`200mbit`; `unshaped` for 0."""
    for unit, size in (("gbit", 10**9), ("mbit", 10**6), ("kbit", 10**3)):
        if rate_bit_s >= size:
            return f"{rate_bit_s / size:g}{unit}"
    return "unshaped"
