"""What a machine's resolv.conf says, and which of its servers may be asked. Text in, values out."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from ipaddress import ip_address

STUBS = frozenset({"127.0.0.53", "127.0.0.54"})
"""Where systemd-resolved listens; the servers that it asks itself are in a file of its own."""


@dataclass(frozen=True, slots=True)
class ResolvConf:
    """*servers* may have a zone (`fe80::1%eth0`). The later of `search` and `domain` counts, as in glibc."""

    servers: tuple[str, ...] = ()
    search: tuple[str, ...] = ()


def parse(text: str) -> ResolvConf:
    """What is no address, and every line that is none of the three, is read over."""
    servers: list[str] = []
    search: tuple[str, ...] = ()
    for line in text.splitlines():
        word, *values = line.partition("#")[0].partition(";")[0].split() or [""]
        if word == "nameserver" and values and _is_address(values[0]) and values[0] not in servers:
            servers.append(values[0])
        elif word == "search":
            search = tuple(values)
        elif word == "domain" and values:
            search = (values[0],)
    return ResolvConf(tuple(servers), search)


def upstreams(machine: str, resolved: str, own: Collection[str]) -> tuple[str, ...]:
    """
    Servers to forward to, in order; none when the machine names none.

    Args:
        machine: Text of /etc/resolv.conf.
        resolved: Text of systemd-resolved's own list of servers; empty when there is none.
        own: Our own addresses: whoever forwards to itself never stops.
    """
    servers = parse(machine).servers
    behind = parse(resolved).servers
    if behind and STUBS.intersection(servers):
        servers = (*behind, *(server for server in servers if server not in STUBS and server not in behind))
    return tuple(server for server in servers if server not in own)


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True
