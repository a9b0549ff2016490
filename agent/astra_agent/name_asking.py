"""Asking the machine's name server by its control socket, beside whoever tells it names. Blocks, within bounds."""

from __future__ import annotations

import time
from pathlib import Path

from astra_agent import wire
from astra_agent.errors import HostFault
from astra_dns import lookup
from astra_dns.client import Client
from astra_dns.query import MalformedError


def ask(control: Path, workspace: str, server: str, name: str, rtype: wire.RecordType) -> wire.Lookup:
    """What *workspace* would be answered at *server*. Raises: HostFault."""
    began = time.monotonic()
    try:
        with Client(control) as client:
            packet = client.query(workspace, lookup.question(name, rtype))
        if packet is None:
            raise HostFault(f"the name server has no answer about {name}; see names.log in the agent's state_dir")
        reply = lookup.read(packet)
    except (OSError, MalformedError) as error:
        raise HostFault(f"the name server can't be asked: {getattr(error, 'strerror', None) or error!r}") from error
    took_s = time.monotonic() - began
    records = tuple(
        wire.LookupRecord(name=one.name, type=one.type, ttl_s=one.ttl_s, data=one.data) for one in reply.records
    )
    return wire.Lookup(server=server, rcode=reply.rcode, took_s=took_s, records=records)


def metrics(control: Path) -> str:
    """Its counters. Raises: HostFault."""
    try:
        with Client(control) as client:
            return str(client.show()["metrics"])
    except OSError as error:
        raise HostFault(f"the name server can't be asked: {error.strerror or error!r}") from error
