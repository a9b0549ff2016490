"""What may be wrong with names on a machine, a sentence each, its fix after the last semicolon. Values in, text out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping


def taken(address: str, port: int, reason: str) -> str:
    """Somebody else has the port where workers would ask."""
    return f"port {port} of {address} can't be had ({reason}); see who has it with ss -ulnp 'sport = :{port}'"


def of_upstreams(upstreams: Mapping[str, bool] | None, loops: Iterable[str]) -> Iterator[str]:
    """
    Args:
        upstreams: The machine's name servers, and whether they answer; None: that is not known.
        loops: Those that send our questions back to us.
    """
    for address in loops:
        yield f"the machine's name server {address} sends our questions back to us; take ours out of its own list"
    if upstreams is None:
        return
    if not upstreams:
        yield "outside names will not resolve in workers: /etc/resolv.conf names no usable server; add one"
    elif not any(upstreams.values()):
        listed = ", ".join(upstreams)
        yield f"outside names will not resolve in workers: no answer from {listed}; correct /etc/resolv.conf"
