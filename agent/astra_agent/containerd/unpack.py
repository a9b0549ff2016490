"""
Layers to snapshots: each layer applied on top of the one below, named by its chain ID.

Two that unpack the same layer at once, also two agents, end with one snapshot; whoever is later throws his away.
"""

from __future__ import annotations

import asyncio
import secrets
from contextlib import suppress
from dataclasses import dataclass

from astra_agent.containerd.client import Client
from astra_agent.containerd.content import raise_disk_full
from astra_agent.containerd.oci import Descriptor
from astra_agent.containerd.proto import diff_pb2, snapshots_pb2, types_pb2
from astra_agent.containerd.services import (
    DIFF_APPLY,
    SNAPSHOT_COMMIT,
    SNAPSHOT_PREPARE,
    SNAPSHOT_REMOVE,
    SNAPSHOT_STAT,
)
from astra_agent.errors import AstraError, Conflict, HostFault, InvalidRequest, NotFound

_APPLY_TIMEOUT_S = 3600.0
"""For one layer; the largest ones (tens of GB) take minutes on a slow disk."""


@dataclass(frozen=True, slots=True)
class Layer:
    descriptor: Descriptor
    diff_id: str
    chain: str
    parent: str
    """Chain ID of what is below; empty for the lowest layer."""


class Unpacker:
    def __init__(self, client: Client, snapshotter: str) -> None:
        self._client = client
        self.snapshotter = snapshotter

    async def has(self, chain: str) -> bool:
        request = snapshots_pb2.StatSnapshotRequest(snapshotter=self.snapshotter, key=chain)
        try:
            await self._client.call(SNAPSHOT_STAT, request)
        except NotFound:
            return False
        return True

    async def unpack(self, layer: Layer, image: str, lease: str) -> None:
        """
        Have the snapshot of this layer; its blob and its parent are there. Idempotent. Leaves nothing when cancelled.

        Raises:
            InvalidRequest: The layer is no tar, or another one than the image's configuration says.
            HostFault: The disk is full, or containerd fails.
            NotFound: The blob or the parent is gone.
        """
        if await self.has(layer.chain):
            return
        key = f"extract-{secrets.token_hex(8)} {layer.chain}"
        prepare = snapshots_pb2.PrepareSnapshotRequest(snapshotter=self.snapshotter, key=key, parent=layer.parent)
        try:
            mounts = (await self._client.call(SNAPSHOT_PREPARE, prepare, lease=lease)).mounts
            await self._apply(layer, list(mounts), image, lease)
            commit = snapshots_pb2.CommitSnapshotRequest(snapshotter=self.snapshotter, name=layer.chain, key=key)
            await self._client.call(SNAPSHOT_COMMIT, commit, lease=lease)
        except Conflict:
            # Somebody else was faster; what he made is the same.
            await self._remove(key)
        except AstraError as error:
            await self._remove(key)
            raise_disk_full(error)
            raise
        except asyncio.CancelledError:
            await asyncio.shield(self._remove(key))
            raise

    async def _apply(self, layer: Layer, mounts: list[types_pb2.Mount], image: str, lease: str) -> None:
        blob = layer.descriptor
        diff = types_pb2.Descriptor(media_type=blob.media_type, digest=blob.digest, size=blob.size)
        request = diff_pb2.ApplyRequest(diff=diff, mounts=mounts)
        try:
            answer = await self._client.call(DIFF_APPLY, request, timeout_s=_APPLY_TIMEOUT_S, lease=lease)
        except HostFault as error:
            raise_disk_full(error)
            raise HostFault(f'image "{image}": its layer {blob.digest} can\'t be unpacked: {error}') from error
        if answer.applied.digest != layer.diff_id:
            raise InvalidRequest(
                f'image "{image}" is broken: its layer {blob.digest} unpacks to {answer.applied.digest}, '
                f"its configuration says {layer.diff_id}",
                "image",
            )

    async def _remove(self, key: str) -> None:
        # What can't be removed now goes with the lease.
        with suppress(AstraError):
            request = snapshots_pb2.RemoveSnapshotRequest(snapshotter=self.snapshotter, key=key)
            await self._client.call(SNAPSHOT_REMOVE, request)
