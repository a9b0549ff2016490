"""
From where an image is (a registry, an archive) to snapshots on this machine, by way of containerd's content store.

What is made is kept by a lease until the image's name and its labels keep it: the manifest refers to the configuration
and the layers, the configuration to the snapshots. Each image has two names, its own and its digest's, so that a name
that moves on takes nothing from a slot that was prepared with the old one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

from astra_agent.containerd import leases
from astra_agent.containerd.client import Client
from astra_agent.containerd.content import Content, Source
from astra_agent.containerd.oci import (
    LARGEST_MANIFEST_BYTES,
    Configuration,
    Descriptor,
    Manifest,
    Platform,
    chain_ids,
    check_platform,
    choose,
    is_index,
    parse_configuration,
    parse_index,
    parse_manifest,
)
from astra_agent.containerd.progress import Progress
from astra_agent.containerd.proto import images_pb2, types_pb2
from astra_agent.containerd.services import IMAGE_CREATE, IMAGE_GET, IMAGE_UPDATE
from astra_agent.containerd.unpack import Layer, Unpacker
from astra_agent.errors import Conflict, HostFault, NotFound, first_of
from astra_agent.runtime import ImageConfig


class Origin(Protocol):
    """Where an image is: `RegistryImage`, `OciArchive`, `DockerArchive`."""

    async def manifest(self) -> Manifest: ...

    async def small(self, descriptor: Descriptor) -> bytes: ...

    def blob(self, descriptor: Descriptor, offset: int) -> AsyncGenerator[bytes, None]: ...


@dataclass(frozen=True, slots=True)
class Unpacked:
    chain: str
    """Of the topmost layer: the name of the whole file system."""
    config: ImageConfig


_KNOWN_MAX = 256
"""Configurations of images that are kept in memory, some kilobytes each: a slot's start does not wait to read them."""


class Puller:
    """
    Args:
        concurrent_layers: Downloads at the same time, over all images.
    """

    def __init__(self, client: Client, snapshotter: str, platform: Platform, concurrent_layers: int) -> None:
        self._client = client
        self._content = Content(client)
        self._unpacker = Unpacker(client, snapshotter)
        self._platform = platform
        self._downloads = asyncio.Semaphore(concurrent_layers)
        self._kept: dict[str, list[str]] = {}
        self._known: dict[str, Configuration] = {}
        """By the digest of what an image's name points to, so it is never out of date."""

    async def find(self, name: str, image: str, labels: Mapping[str, str]) -> Unpacked | None:
        """The image of that name with those labels, when it is here whole; asks nobody but containerd."""
        try:
            record = (await self._client.call(IMAGE_GET, images_pb2.GetImageRequest(name=name))).image
            if any(record.labels.get(label) != value for label, value in labels.items()):
                return None
            configuration = self._known.get(record.target.digest)
            if configuration is None:
                configuration = await self._configuration(record.target, image)
                self._remember(record.target.digest, configuration)
        except NotFound:
            return None
        chain = chain_ids(configuration.diff_ids)[-1]
        return Unpacked(chain, configuration.image) if await self._unpacker.has(chain) else None

    async def bring(
        self, origin: Origin, name: str, digest_name: str, image: str, labels: Mapping[str, str], progress: Progress
    ) -> Unpacked:
        """
        Have the image here, under *name* with *labels*, and under ``<digest_name>@<digest>``. Idempotent. What was
        received before a failure or a cancellation stays for a day, for the next try to go on from.

        Raises:
            InvalidRequest, Unavailable, HostFault: As `Images.prepare`.
        """
        progress.asks()
        manifest = await origin.manifest()
        raw = await origin.small(manifest.config)
        configuration = parse_configuration(raw, len(manifest.layers), image)
        check_platform(configuration.platform, self._platform, image)
        lease = await leases.create(self._client, "pull")
        try:
            chain = await self._fill(origin, manifest, configuration, image, lease, progress)
            for each, its_labels in ((name, labels), (f"{digest_name}@{manifest.descriptor.digest}", {})):
                await self._name(each, manifest.descriptor, its_labels)
            if not await self._unpacker.has(chain):
                raise HostFault(f'image "{image}": its snapshot was removed while it was prepared; try again')
        except BaseException:
            self._kept.setdefault(name, []).append(lease)
            raise
        for ended in (lease, *self._kept.pop(name, ())):
            await leases.end(self._client, ended)
        return Unpacked(chain, configuration.image)

    async def _fill(
        self,
        origin: Origin,
        manifest: Manifest,
        configuration: Configuration,
        image: str,
        lease: str,
        progress: Progress,
    ) -> str:
        """Content and snapshots, each layer unpacked while the next ones still come."""
        chain = chain_ids(configuration.diff_ids)
        reason: BaseException | None = None
        progress.expect(sum(layer.size for layer in manifest.layers))
        try:
            async with asyncio.TaskGroup() as group:
                downloads = [
                    group.create_task(self._download(origin, layer, diff_id, lease, progress))
                    for layer, diff_id in zip(manifest.layers, configuration.diff_ids, strict=True)
                ]
                for number, (parent, own) in enumerate(pairwise(("", *chain))):
                    await downloads[number]
                    progress.unpacks(number + 1, len(chain))
                    layer = Layer(manifest.layers[number], configuration.diff_ids[number], own, parent)
                    await self._unpacker.unpack(layer, image, lease)
        except BaseExceptionGroup as failures:
            # The others were cancelled by the first, or say the same of another layer.
            reason = first_of(failures)
        if reason is not None:
            raise reason
        await self._write_small(manifest, configuration, chain[-1], lease)
        return chain[-1]

    async def _download(self, origin: Origin, layer: Descriptor, diff_id: str, lease: str, progress: Progress) -> None:
        async with self._downloads:
            labels = {"containerd.io/uncompressed": diff_id}
            await self._content.write(layer, origin.blob, lease=lease, labels=labels, received=progress.receive)

    async def _write_small(self, manifest: Manifest, configuration: Configuration, chain: str, lease: str) -> None:
        """Last: their labels keep everything else."""
        keeps = {f"containerd.io/gc.ref.snapshot.{self._unpacker.snapshotter}": chain}
        await self._content.write(manifest.config, _bytes(configuration.raw), lease=lease, labels=keeps)
        keeps = {f"containerd.io/gc.ref.content.l.{n}": layer.digest for n, layer in enumerate(manifest.layers)}
        keeps["containerd.io/gc.ref.content.config"] = manifest.config.digest
        await self._content.write(manifest.descriptor, _bytes(manifest.raw), lease=lease, labels=keeps)

    async def _name(self, name: str, target: Descriptor, labels: Mapping[str, str]) -> None:
        descriptor = types_pb2.Descriptor(media_type=target.media_type, digest=target.digest, size=target.size)
        record = images_pb2.Image(name=name, labels=labels, target=descriptor)
        try:
            await self._client.call(IMAGE_CREATE, images_pb2.CreateImageRequest(image=record))
        except Conflict:
            await self._client.call(IMAGE_UPDATE, images_pb2.UpdateImageRequest(image=record))

    def _remember(self, digest: str, configuration: Configuration) -> None:
        while len(self._known) >= _KNOWN_MAX:
            del self._known[next(iter(self._known))]
        self._known[digest] = configuration

    async def _configuration(self, target: types_pb2.Descriptor, image: str) -> Configuration:
        """Raises: NotFound when something of it is not in the store."""
        media_type, raw = target.media_type, await self._content.read(target.digest, LARGEST_MANIFEST_BYTES)
        if is_index(media_type):  # brought by somebody else, under this name
            entry = choose(parse_index(raw, image), self._platform, image)
            media_type, raw = entry.media_type, await self._content.read(entry.digest, LARGEST_MANIFEST_BYTES)
        manifest = parse_manifest(raw, media_type, image)
        raw = await self._content.read(manifest.config.digest, LARGEST_MANIFEST_BYTES)
        return parse_configuration(raw, len(manifest.layers), image)


def _bytes(raw: bytes) -> Source:
    async def source(descriptor: Descriptor, offset: int) -> AsyncGenerator[bytes, None]:
        yield raw[offset:]

    return source
