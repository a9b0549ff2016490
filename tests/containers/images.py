"""
Images for tests, made of files: layers, configuration, archives in both forms, and a push to a registry.

    image = Image().layer({"bin/hello": File(b"#!/bin/sh\\necho hello\\n", 0o755)}).config(Cmd=["/bin/hello"])
    image.write_oci_archive(path)
    await push(image, "http://127.0.0.1:5000", "team/hello", "1")

`Image.with_programs("/bin/sh", …)` takes programs of this machine with the libraries they need.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import shutil
import subprocess
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import aiohttp

OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
OCI_INDEX = "application/vnd.oci.image.index.v1+json"
_CONFIG = "application/vnd.oci.image.config.v1+json"
_LAYER = "application/vnd.oci.image.layer.v1.tar"
ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}.get(os.uname().machine, os.uname().machine)


@dataclass(frozen=True, slots=True)
class File:
    content: bytes
    mode: int = 0o644
    uid: int = 0


@dataclass(frozen=True, slots=True)
class Link:
    target: str


@dataclass(frozen=True, slots=True)
class Folder:
    mode: int = 0o755
    uid: int = 0


Entries = Mapping[str, File | Link | Folder]


@dataclass(frozen=True, slots=True)
class Layer:
    tar: bytes
    compressed: bool

    @property
    def blob(self) -> bytes:
        return gzip.compress(self.tar, compresslevel=1, mtime=0) if self.compressed else self.tar

    @property
    def media_type(self) -> str:
        return f"{_LAYER}+gzip" if self.compressed else _LAYER


@dataclass(frozen=True, slots=True)
class Image:
    """An image for one platform; each method returns a new one."""

    layers: tuple[Layer, ...] = ()
    run: Mapping[str, Any] = field(default_factory=dict)
    architecture: str = ARCHITECTURE
    variant: str = ""

    def layer(self, entries: Entries, *, compressed: bool = True) -> Self:
        return replace(self, layers=(*self.layers, Layer(tar_of(entries), compressed)))

    def with_programs(self, *programs: str) -> Self:
        """A layer with these programs of this machine, at their own paths."""
        entries: dict[str, File | Link | Folder] = {}
        for program in programs:
            path = shutil.which(program) or program
            for file in (path, *_libraries(path)):
                entries[file.lstrip("/")] = File(Path(file).read_bytes(), 0o755)
        return self.layer(entries)

    def config(self, **run: Any) -> Self:
        """`Env`, `Entrypoint`, `Cmd`, `WorkingDir`, `User`."""
        return replace(self, run=run)

    @property
    def configuration(self) -> bytes:
        return _json(
            {
                "architecture": self.architecture,
                "os": "linux",
                **({"variant": self.variant} if self.variant else {}),
                "config": dict(self.run),
                "rootfs": {"type": "layers", "diff_ids": [digest(layer.tar) for layer in self.layers]},
            }
        )

    @property
    def manifest(self) -> bytes:
        return _json(
            {
                "schemaVersion": 2,
                "mediaType": OCI_MANIFEST,
                "config": descriptor(self.configuration, _CONFIG),
                "layers": [descriptor(layer.blob, layer.media_type) for layer in self.layers],
            }
        )

    @property
    def blobs(self) -> tuple[bytes, ...]:
        """All but the manifest."""
        return (self.configuration, *(layer.blob for layer in self.layers))

    @property
    def platform(self) -> dict[str, str]:
        return {"os": "linux", "architecture": self.architecture, **({"variant": self.variant} if self.variant else {})}

    def write_oci_archive(self, path: Path, *names: str) -> None:
        """With a name for each of *names*, or with one entry without a name."""
        entry = descriptor(self.manifest, OCI_MANIFEST)
        named = [{**entry, "annotations": {"org.opencontainers.image.ref.name": name}} for name in names]
        files = {f"blobs/{digest(blob).replace(':', '/')}": blob for blob in (*self.blobs, self.manifest)}
        files["oci-layout"] = _json({"imageLayoutVersion": "1.0.0"})
        files["index.json"] = _json({"schemaVersion": 2, "manifests": named or [entry]})
        path.write_bytes(tar_of({name: File(content) for name, content in files.items()}))

    def write_docker_archive(self, path: Path, *tags: str) -> None:
        layers = {f"{number}/layer.tar": layer.blob for number, layer in enumerate(self.layers)}
        saved = [{"Config": "config.json", "RepoTags": list(tags), "Layers": list(layers)}]
        files = {"config.json": self.configuration, "manifest.json": _json(saved), **layers}
        path.write_bytes(tar_of({name: File(content) for name, content in files.items()}))


def index_of(*images: Image) -> bytes:
    """A manifest list over images that are pushed already."""
    entries = [{**descriptor(image.manifest, OCI_MANIFEST), "platform": image.platform} for image in images]
    return _json({"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": entries})


async def push(
    image: Image,
    registry: str,
    repository: str,
    tag: str,
    *,
    auth: tuple[str, str] | None = None,
    ssl: Any = True,
) -> str:
    """Push to *registry*, a URL; gives the manifest's digest."""
    basic = {"Authorization": aiohttp.encode_basic_auth(*auth)} if auth else {}
    async with aiohttp.ClientSession(f"{registry}/", headers=basic, connector=aiohttp.TCPConnector(ssl=ssl)) as http:
        for blob in image.blobs:
            async with http.post(f"/v2/{repository}/blobs/uploads/") as answer:
                answer.raise_for_status()
                place = answer.headers["Location"]
            mark = "&" if "?" in place else "?"
            async with http.put(f"{place}{mark}digest={digest(blob)}", data=io.BytesIO(blob)) as answer:
                answer.raise_for_status()
        await _put_manifest(http, repository, tag, image.manifest, OCI_MANIFEST)
    return digest(image.manifest)


async def push_index(registry: str, repository: str, tag: str, *images: Image) -> str:
    for number, image in enumerate(images):
        await push(image, registry, repository, f"{tag}-{number}")
    index = index_of(*images)
    async with aiohttp.ClientSession(f"{registry}/") as http:
        await _put_manifest(http, repository, tag, index, OCI_INDEX)
    return digest(index)


async def _put_manifest(http: aiohttp.ClientSession, repository: str, tag: str, raw: bytes, media_type: str) -> None:
    headers = {"Content-Type": media_type}
    async with http.put(f"/v2/{repository}/manifests/{tag}", data=io.BytesIO(raw), headers=headers) as answer:
        answer.raise_for_status()


def tar_of(entries: Entries) -> bytes:
    """The parents of each entry come before it, by themselves."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        made: set[str] = set()
        for name, entry in entries.items():
            for parent in reversed([str(path) for path in Path(name).parents][:-1]):
                if parent not in made and parent not in entries:
                    _add(tar, parent, Folder())
                    made.add(parent)
            _add(tar, name, entry)
    return buffer.getvalue()


def digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def descriptor(data: bytes, media_type: str) -> dict[str, Any]:
    return {"mediaType": media_type, "digest": digest(data), "size": len(data)}


def _add(tar: tarfile.TarFile, name: str, entry: File | Link | Folder) -> None:
    info = tarfile.TarInfo(name)
    match entry:
        case File(content, mode, uid):
            info.size, info.mode, info.uid = len(content), mode, uid
            tar.addfile(info, io.BytesIO(content))
        case Link(target):
            info.type, info.linkname = tarfile.SYMTYPE, target
            tar.addfile(info)
        case Folder(mode, uid):
            info.type, info.mode, info.uid = tarfile.DIRTYPE, mode, uid
            tar.addfile(info)


def _libraries(program: str) -> list[str]:
    out = subprocess.run(["ldd", program], capture_output=True, text=True, timeout=10, check=False).stdout
    return [word for line in out.splitlines() for word in line.split() if word.startswith("/")]


def _json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True).encode()
