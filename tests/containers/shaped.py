"""
Machines as network namespaces on a switch of their own, with links that can be shaped, cut, and made to lie.

    m-0 eth0 ─── p0 ┐
    m-1 eth0 ─── p1 ┼ br0 ─(uplink)─ br1 ┼ p2 ─── eth0 m-2
                                         └ p3 ─── eth0 m-3
"""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from astra_agent import namespaces
from astra_netprobe import channel
from astra_netprobe.channel import Endpoint, ProcessChannel

SUBNET = "10.93.0"
_LATENCY = "50ms"
_BURST = "128kb"
"""More than the largest packet that the kernel hands on whole: tbf would cut it up, for eight times the work."""
CONGESTION = "reno"
"""Always allowed in a namespace. Under BBR, which some hosts choose, a shaped line is filled to a third of its rate."""
_COMMAND_S = 20


class Lab:
    """
    Args:
        folder: Where the namespaces are kept.
        rate: Of each link in both directions, as `tc` writes it; "" for no shaping.
        halves: Machines of the second half are on a switch of their own, behind an uplink.
    """

    def __init__(
        self, folder: Path, count: int, *, rate: str = "1gbit", halves: bool = False, uplink: str = "", mtu: int = 1500
    ) -> None:
        self.names = tuple(f"m-{i}" for i in range(count))
        self._folder = folder
        self._rate = rate
        self._halves = halves
        self._uplink = uplink
        self._mtu = mtu
        self._made: list[Path] = []

    def build(self) -> None:
        self._make("switch")
        for bridge in ("br0", "br1"):
            self.ip("switch", f"link add {bridge} type bridge", f"link set {bridge} mtu {self._mtu} up")
        if self._halves:
            self.ip("switch", "link add up0 type veth peer name up1")
            for i in (0, 1):
                self.ip("switch", f"link set up{i} mtu {self._mtu} master br{i} up")
                self.shape("switch", f"up{i}", self._uplink)
        for i, name in enumerate(self.names):
            self._plug(i, name)

    def remove(self) -> None:
        for path in self._made:
            namespaces.remove(path)

    def address(self, name: str) -> str:
        return f"{SUBNET}.{self.names.index(name) + 1}"

    def netns(self, name: str) -> Path:
        return self._folder / f"{name}.net"

    # What can be wrong with it ----------------------------------------------------------------------------------------

    def slow_sender(self, name: str, rate: str) -> None:
        self.shape(name, "eth0", rate)

    def slow_receiver(self, name: str, rate: str) -> None:
        self.shape("switch", self.port(name), rate)

    def slow_way(self, sender: str, receiver: str, rate: str) -> None:
        """What *sender* sends to *receiver* goes another, slower way than what comes back."""
        path = self.netns(receiver)
        self.ip(sender, "link add way type veth peer name way0", f"link set way0 netns {path}", "link set way up")
        self.ip(receiver, "link set way0 up")
        self.shape(sender, "way", rate)
        self.ip(sender, f"route add {self.address(receiver)}/32 dev way src {self.address(sender)}")

    def cut(self, name: str) -> None:
        self.ip("switch", f"link set {self.port(name)} down")

    def mend(self, name: str) -> None:
        self.ip("switch", f"link set {self.port(name)} up")

    def firewall(self, name: str, *rules: str) -> None:
        """nftables *rules* for what comes in to *name*."""
        self._nft(name, "add table inet probe; add chain inet probe input { type filter hook input priority 0; }")
        for rule in rules:
            self._nft(name, f"add rule inet probe input {rule}")

    def redirect(self, name: str, towards: str, port: int, *, mark: int) -> None:
        """What *name* sends to *towards* goes to *port* of its own, but what carries *mark*."""
        self._nft(name, "add table ip relay; add chain ip relay output { type nat hook output priority -100; }")
        address = self.address(towards)
        self._nft(
            name, f"add rule ip relay output meta mark != {mark} ip daddr {address} ip protocol tcp redirect to :{port}"
        )

    def port(self, name: str) -> str:
        """The switch's side of a machine's link."""
        return f"p{self.names.index(name)}"

    def shape(self, where: str, device: str, rate: str) -> None:
        if rate:
            self._run(where, "tc", "qdisc", "replace", "dev", device, "root", "tbf", "rate", rate, "burst", _BURST,
                      "latency", _LATENCY)  # fmt: skip

    def ip(self, where: str, *commands: str) -> None:
        for command in commands:
            self._run(where, "ip", *command.split())

    def _plug(self, i: int, name: str) -> None:
        self._make(name)
        port, bridge = f"p{i}", f"br{int(self._halves and i >= len(self.names) // 2)}"
        self.ip("switch", f"link add {port} mtu {self._mtu} type veth peer name v{i} mtu {self._mtu}")
        self.ip("switch", f"link set v{i} netns {self.netns(name)} name eth0", f"link set {port} master {bridge} up")
        self._run(name, "sysctl", "-qw", f"net.ipv4.tcp_congestion_control={CONGESTION}")
        self.ip(name, "link set lo up", f"address add {self.address(name)}/24 dev eth0", "link set eth0 up")
        self.shape(name, "eth0", self._rate)
        self.shape("switch", port, self._rate)

    def _make(self, name: str) -> None:
        namespaces.make(self.netns(name))
        self._made.append(self.netns(name))

    def _nft(self, name: str, text: str) -> None:
        self._run(name, "nft", text)

    def _run(self, where: str, *command: str) -> None:
        done = subprocess.run(
            ["nsenter", f"--net={self.netns(where)}", *command],
            capture_output=True, text=True, timeout=_COMMAND_S, check=False,
        )  # fmt: skip
        if done.returncode != 0:
            raise AssertionError(f"{' '.join(command)} in {where}: {done.stderr.strip()}")


@asynccontextmanager
async def members(lab: Lab, bounds: Mapping[str, float] | None = None) -> AsyncIterator[list[Endpoint]]:
    """A member on each machine; they end with the block. *bounds*: what some send at most, bits per second."""
    channels: list[ProcessChannel] = []
    try:
        for name in lab.names:
            channels.append(await channel.start(lab.netns(name), (bounds or {}).get(name, 0.0)))
        yield [Endpoint(name, lab.address(name), open_) for name, open_ in zip(lab.names, channels, strict=True)]
    finally:
        await asyncio.gather(*(open_.close() for open_ in channels))
