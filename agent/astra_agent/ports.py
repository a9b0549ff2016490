"""Ports and addresses that nobody else has: chosen by looking at the machine, held in memory while a slot lives."""

from __future__ import annotations

import errno
import ipaddress
import socket
from collections.abc import Collection, Iterator
from pathlib import Path

from astra_agent import namespaces
from astra_agent.config import OwnNetwork
from astra_agent.errors import HostFault

FIRST_PORT = 29500
_LAST_PORT = 32767
"""Below the range that Linux gives to outgoing connections."""


def free_port(netns: Path | None, held: Collection[int]) -> int:
    """
    The first port from 29500 up that is not *held* and that a program could listen on now, by IPv4 and by IPv6.

    Raises: HostFault when there is none.
    """

    def look() -> int | None:
        return next((port for port in range(FIRST_PORT, _LAST_PORT + 1) if port not in held and _is_free(port)), None)

    port = namespaces.inside(netns, look)
    if port is None:
        raise HostFault(f"no TCP port from {FIRST_PORT} to {_LAST_PORT} is free; see what listens there with ss -ltnp")
    return port


def _is_free(port: int) -> bool:
    return all(
        _can_listen(family, host, port) for family, host in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::"))
    )


def _can_listen(family: int, host: str, port: int) -> bool:
    """As a server would do it: with SO_REUSEADDR, so that connections of the last attempt that linger don't count."""
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            probe.bind((host, port))
            probe.listen(1)
    except OSError as error:
        no_ipv6 = family == socket.AF_INET6 and error.errno in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL)
        if no_ipv6:
            return True
        if error.errno in (errno.EADDRINUSE, errno.EACCES):
            return False
        raise HostFault(f"port {port} can't be tried: {error.strerror}") from error
    return True


def free_address(network: OwnNetwork, machine: str, held: Collection[str]) -> str:
    """The first address of the subnet that no slot holds. Raises: HostFault when there is none."""
    for address in _hosts(network.subnet):
        if address not in held and address not in (machine, network.gateway):
            return address
    raise HostFault(f"no address of own_network.subnet {network.subnet} is free: {len(held)} slots hold one each")


def _hosts(subnet: str) -> Iterator[str]:
    return (str(address) for address in ipaddress.ip_network(subnet).hosts())
