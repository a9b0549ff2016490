"""What a name server has been told and what it should know, and how one becomes the other. Blocks, within bounds."""

from __future__ import annotations

from dataclasses import dataclass, field

from astra_dns import records as dns
from astra_dns.client import Client


@dataclass(frozen=True, slots=True)
class Told:
    """What a server has been told: sockets with our handles, runs with their names (None: whatever was said before)."""

    sockets: dict[str, int]
    runs: dict[dns.RunKey, dns.RunNames | None]
    workspaces: dict[str, str] = field(default_factory=dict)


def tell(client: Client, told: Told, wanted: Told) -> Told:
    """Names first, then who may ask for them. Blocks. Raises: OSError."""
    for key in told.runs.keys() - wanted.runs.keys():
        client.drop(key)
    for key, run in wanted.runs.items():
        if run is not None and told.runs.get(key) != run:
            client.put(run)
    client.publish()
    for name in told.sockets.keys() - wanted.sockets.keys():
        client.unlisten(name)
    for name, descriptor in wanted.sockets.items():
        if told.sockets.get(name) != descriptor:
            client.listen(name, wanted.workspaces[name], descriptor)
    return wanted
