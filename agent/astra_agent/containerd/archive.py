"""
Images in a tar on the machine: an OCI image layout (`oci-archive:`), or what `docker save` writes (`docker-archive:`).
Both offer what `RegistryImage` offers.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Iterable
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from astra_agent.containerd.oci import (
    OCI_CONFIG,
    OCI_LAYER,
    OCI_MANIFEST,
    Choice,
    Descriptor,
    Manifest,
    Platform,
    choose,
    digest_of,
    is_index,
    media_type_of,
    parse_configuration,
    parse_index,
    parse_manifest,
)
from astra_agent.containerd.reference import Archive
from astra_agent.containerd.tar_file import TarFile
from astra_agent.errors import InvalidRequest

_LAYER_COMPRESSIONS = {b"\x1f\x8b": "+gzip", b"\x28\xb5": "+zstd"}


def stamp(archive: Archive) -> str:
    """
    Changes when the file does.

    Raises:
        InvalidRequest: There is no such file.
    """
    try:
        found = Path(archive.path).stat()
    except OSError as error:
        raise InvalidRequest(
            f'image "{archive}": {archive.path} can\'t be read on this machine: {error.strerror}', "image"
        ) from error
    return f"{found.st_dev}-{found.st_ino}-{found.st_size}-{found.st_mtime_ns}"


async def open_archive(archive: Archive, platform: Platform) -> OciArchive | DockerArchive:
    """
    Raises:
        InvalidRequest: It is no tar that can be read.
    """
    tar = await TarFile.open(archive.path, str(archive))
    if archive.kind == "oci-archive":
        return OciArchive(tar, archive.name, platform)
    return DockerArchive(tar, archive.name)


class OciArchive:
    """An OCI image layout: `index.json`, and `blobs/<algorithm>/<digest>`."""

    def __init__(self, tar: TarFile, name: str | None, platform: Platform) -> None:
        self._tar = tar
        self._name = name
        self._platform = platform

    async def manifest(self) -> Manifest:
        """
        Raises:
            InvalidRequest: There is none for this machine, none of that name, or it is no such archive at all.
        """
        if not self._tar.has("index.json"):
            raise _other_kind(self._tar, "manifest.json", "an OCI image layout", "docker-archive")
        entry = self._entry(parse_index(await self._tar.small("index.json"), self._tar.image))
        raw = await self.small(entry)
        media_type = entry.media_type or media_type_of(raw, self._tar.image)
        if is_index(media_type):
            entry = choose(parse_index(raw, self._tar.image), self._platform, self._tar.image)
            raw = await self.small(entry)
            media_type = entry.media_type or media_type_of(raw, self._tar.image)
        return parse_manifest(raw, media_type, self._tar.image)

    async def small(self, descriptor: Descriptor) -> bytes:
        """A blob that is read at once. Raises: InvalidRequest when its bytes are not what its digest says."""
        name = _blob_name(descriptor)
        raw = await self._tar.small(name)
        if digest_of(raw, descriptor.digest) != descriptor.digest:
            raise InvalidRequest(f'image "{self._tar.image}" is broken: its {name} was changed', "image")
        return raw

    def blob(self, descriptor: Descriptor, offset: int) -> AsyncGenerator[bytes, None]:
        """The bytes from *offset* to the end. Raises: InvalidRequest when the file has another size."""
        name = _blob_name(descriptor)
        if self._tar.size(name) != descriptor.size:
            raise InvalidRequest(f'image "{self._tar.image}" is broken: its {name} has another size', "image")
        return self._tar.read(name, offset)

    def _entry(self, entries: tuple[Choice, ...]) -> Descriptor:
        found = [entry for entry in entries if self._name is None or entry.name == self._name]
        if len(found) == 1:
            return found[0].descriptor
        # One image for several kinds of machines may lie side by side here, as well as in an index of its own.
        if found and all(entry.platform for entry in found) and len({entry.name for entry in found}) == 1:
            return choose(found, self._platform, self._tar.image)
        raise _not_one(self._tar, (entry.name for entry in entries))


class _Saved(BaseModel):
    """An entry of docker save's manifest.json."""

    model_config = ConfigDict(extra="ignore", frozen=True)
    config: str = Field(alias="Config")
    tags: tuple[str, ...] | None = Field(default=None, alias="RepoTags")
    layers: tuple[str, ...] = Field(alias="Layers")


class DockerArchive:
    """docker save's form: `manifest.json` names a configuration and layers. A manifest is made for them."""

    def __init__(self, tar: TarFile, name: str | None) -> None:
        self._tar = tar
        self._name = name
        self._files: dict[str, str] = {}

    async def manifest(self) -> Manifest:
        """Raises: as `OciArchive.manifest`."""
        if not self._tar.has("manifest.json"):
            raise _other_kind(self._tar, "index.json", "an archive of docker save", "oci-archive")
        saved = self._entry(await self._tar.small("manifest.json"))
        raw = await self._tar.small(saved.config)
        diff_ids = parse_configuration(raw, len(saved.layers), self._tar.image).diff_ids
        config = Descriptor(OCI_CONFIG, digest_of(raw), len(raw))
        self._files[config.digest] = saved.config
        layers = [await self._layer(name, diff_id) for name, diff_id in zip(saved.layers, diff_ids, strict=True)]
        return _manifest_of(config, layers, self._tar.image)

    async def small(self, descriptor: Descriptor) -> bytes:
        return await self._tar.small(self._files[descriptor.digest])

    def blob(self, descriptor: Descriptor, offset: int) -> AsyncGenerator[bytes, None]:
        return self._tar.read(self._files[descriptor.digest], offset)

    def _entry(self, raw: bytes) -> _Saved:
        try:
            images = TypeAdapter(tuple[_Saved, ...]).validate_json(raw)
        except ValidationError as error:
            raise InvalidRequest(f'image "{self._tar.image}" is broken: its manifest.json is none', "image") from error
        found = [image for image in images if self._name is None or self._name in (image.tags or ())]
        if len(found) != 1:
            raise _not_one(self._tar, (tag for image in images for tag in image.tags or ()))
        return found[0]

    async def _layer(self, name: str, diff_id: str) -> Descriptor:
        """An uncompressed layer's digest is its diff ID; a compressed one has to be read for its own."""
        compression = _LAYER_COMPRESSIONS.get(await self._tar.start(name, 2), "")
        digest = await self._tar.digest(name) if compression else diff_id
        self._files[digest] = name
        return Descriptor(OCI_LAYER + compression, digest, self._tar.size(name))


def _blob_name(descriptor: Descriptor) -> str:
    return f"blobs/{descriptor.digest.replace(':', '/')}"


def _manifest_of(config: Descriptor, layers: list[Descriptor], image: str) -> Manifest:
    entries = [{"mediaType": part.media_type, "digest": part.digest, "size": part.size} for part in (config, *layers)]
    made = {"schemaVersion": 2, "mediaType": OCI_MANIFEST, "config": entries[0], "layers": entries[1:]}
    return parse_manifest(json.dumps(made, sort_keys=True).encode(), OCI_MANIFEST, image)


def _other_kind(tar: TarFile, sign: str, expected: str, other: str) -> InvalidRequest:
    hint = f"; write {other}:{tar.path}" if tar.has(sign) else ""
    return InvalidRequest(f'image "{tar.image}": {tar.path} is not {expected}{hint}', "image")


def _not_one(tar: TarFile, names: Iterable[str | None]) -> InvalidRequest:
    known = sorted({name for name in names if name})
    if not known:
        return InvalidRequest(f'image "{tar.image}": {tar.path} holds not one image but several without names', "image")
    return InvalidRequest(
        f'image "{tar.image}": which of them? {tar.path} holds {", ".join(known)}; append one, as in …:{known[0]}',
        "image",
    )
