"""
Leases: what is made under one is kept from containerd's collector until it ends, or until it expires by itself when the
agent dies in the middle.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta

from astra_agent.containerd.client import Client
from astra_agent.containerd.proto import leases_pb2
from astra_agent.containerd.services import LEASE_CREATE, LEASE_DELETE
from astra_agent.errors import AstraError

_LONGEST = timedelta(hours=24)


async def create(client: Client, purpose: str) -> str:
    """A new lease's ID."""
    lease = f"astra-{purpose}-{secrets.token_hex(8)}"
    # Expires by the wall clock, which is containerd's; a day is far longer than any clock is wrong.
    expires = datetime.now(UTC) + _LONGEST
    labels = {"containerd.io/gc.expire": expires.isoformat(timespec="seconds").replace("+00:00", "Z")}
    await client.call(LEASE_CREATE, leases_pb2.CreateRequest(id=lease, labels=labels))
    return lease


async def end(client: Client, lease: str) -> None:
    """Idempotent. Never raises: a lease that can't be ended now expires."""
    with suppress(AstraError):
        await client.call(LEASE_DELETE, leases_pb2.DeleteRequest(id=lease, sync=True))


@asynccontextmanager
async def leased(client: Client, purpose: str) -> AsyncIterator[str]:
    """A lease for the block."""
    lease = await create(client, purpose)
    try:
        yield lease
    finally:
        await asyncio.shield(end(client, lease))
