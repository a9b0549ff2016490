"""
Manifests, indexes and configurations of images, in OCI's and in Docker's clothes: parse, choose, compute. Pure.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from astra_agent.errors import InvalidRequest
from astra_agent.runtime import ImageConfig

OCI_INDEX = "application/vnd.oci.image.index.v1+json"
DOCKER_INDEX = "application/vnd.docker.distribution.manifest.list.v2+json"
OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
OCI_CONFIG = "application/vnd.oci.image.config.v1+json"
DOCKER_CONFIG = "application/vnd.docker.container.image.v1+json"
OCI_LAYER = "application/vnd.oci.image.layer.v1.tar"

ACCEPTED_MANIFESTS = (OCI_INDEX, DOCKER_INDEX, OCI_MANIFEST, DOCKER_MANIFEST)
LARGEST_MANIFEST_BYTES = 4 * 1024 * 1024
"""What the distribution specification lets a registry refuse; larger ones do not exist in practice."""

_SCHEMA_1 = "application/vnd.docker.distribution.manifest.v1"
_LAYERS = frozenset(
    base + compression
    for base, compressions in (
        (OCI_LAYER, ("", "+gzip", "+zstd")),
        ("application/vnd.oci.image.layer.nondistributable.v1.tar", ("", "+gzip", "+zstd")),
        ("application/vnd.docker.image.rootfs.diff.tar", ("", ".gzip", ".zstd")),
        ("application/vnd.docker.image.rootfs.foreign.diff.tar", ("", ".gzip", ".zstd")),
    )
    for compression in compressions
)

# A machine runs images that name no variant, and those of the baseline of its architecture.
_VARIANTS = {"amd64": ("", "v1"), "arm64": ("v8", "")}
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass(frozen=True, slots=True)
class Platform:
    os: str
    architecture: str
    variant: str = ""

    def __str__(self) -> str:
        return "/".join(part for part in (self.os, self.architecture, self.variant) if part)


@dataclass(frozen=True, slots=True)
class Descriptor:
    media_type: str
    digest: str
    size: int


@dataclass(frozen=True, slots=True)
class Choice:
    """An entry of an index."""

    descriptor: Descriptor
    platform: Platform | None
    name: str | None
    """What the entry is called, in the index of an archive."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """One image for one platform."""

    descriptor: Descriptor
    raw: bytes
    config: Descriptor
    layers: tuple[Descriptor, ...]

    @property
    def size(self) -> int:
        """Bytes of all layers, as they are kept."""
        return sum(layer.size for layer in self.layers)


@dataclass(frozen=True, slots=True)
class Configuration:
    raw: bytes
    platform: Platform
    diff_ids: tuple[str, ...]
    """Digests of the uncompressed layers, the lowest first."""
    image: ImageConfig


class _Json(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", populate_by_name=True)


Digest = Annotated[str, Field(pattern=r"^(sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128})$")]


class _PlatformJson(_Json):
    os: str = ""
    architecture: str = ""
    variant: str = ""

    def value(self) -> Platform:
        return Platform(self.os, self.architecture, self.variant)


class _DescriptorJson(_Json):
    media_type: str = Field(default="", alias="mediaType")
    digest: Digest
    size: int = Field(ge=0)
    platform: _PlatformJson | None = None
    annotations: dict[str, str] | None = None

    def value(self) -> Descriptor:
        return Descriptor(self.media_type, self.digest, self.size)

    def choice(self) -> Choice:
        names = self.annotations or {}
        name = names.get("io.containerd.image.name") or names.get("org.opencontainers.image.ref.name")
        return Choice(self.value(), self.platform.value() if self.platform else None, name)


class _IndexJson(_Json):
    manifests: tuple[_DescriptorJson, ...]


class _ManifestJson(_Json):
    config: _DescriptorJson
    layers: tuple[_DescriptorJson, ...]


class _RunJson(_Json):
    env: tuple[str, ...] | None = Field(default=None, alias="Env")
    entrypoint: tuple[str, ...] | None = Field(default=None, alias="Entrypoint")
    command: tuple[str, ...] | None = Field(default=None, alias="Cmd")
    working_dir: str | None = Field(default=None, alias="WorkingDir")
    user: str | None = Field(default=None, alias="User")


class _RootfsJson(_Json):
    diff_ids: tuple[Digest, ...] | None = None


class _ConfigurationJson(_PlatformJson):
    config: _RunJson | None = None
    rootfs: _RootfsJson


def digest_of(data: bytes, like: str = "sha256:") -> str:
    """The digest of *data*, by the algorithm of *like*."""
    algorithm = like.partition(":")[0]
    return f"{algorithm}:{hashlib.new(algorithm, data).hexdigest()}"


def machine_platform(machine: str) -> Platform:
    """*machine* as `uname -m` prints it."""
    architecture = _ARCHITECTURES.get(machine, machine)
    return Platform("linux", architecture, "v8" if architecture == "arm64" else "")


def is_index(media_type: str) -> bool:
    return media_type in (OCI_INDEX, DOCKER_INDEX)


def parse_index(raw: bytes, image: str) -> tuple[Choice, ...]:
    """
    Raises:
        InvalidRequest: It is none.
    """
    try:
        return tuple(entry.choice() for entry in _IndexJson.model_validate_json(raw).manifests)
    except ValidationError as error:
        raise _broken(image, "index", error) from error


def choose(choices: Iterable[Choice], wanted: Platform, image: str) -> Descriptor:
    """
    The entry for *wanted*, the machine's platform.

    Raises:
        InvalidRequest: There is none; the sentence names the platforms that there are.
    """
    found = [choice for choice in choices if choice.platform is not None]
    for variant in _VARIANTS.get(wanted.architecture, (wanted.variant,)):
        for choice in found:
            if choice.platform == Platform(wanted.os, wanted.architecture, variant):
                return choice.descriptor
    # Attestations lie in the index as images for the platform unknown/unknown.
    there = sorted({str(choice.platform) for choice in found if choice.platform and choice.platform.os != "unknown"})
    raise wrong_platform(image, ", ".join(there) or "no platform that it names", wanted)


def wrong_platform(image: str, there: str, wanted: Platform) -> InvalidRequest:
    return InvalidRequest(f'image "{image}" is for {there}; this machine is {wanted}', "image")


def parse_manifest(raw: bytes, media_type: str, image: str) -> Manifest:
    """
    Raises:
        InvalidRequest: It is no manifest of a container image, or one in a form that nobody runs any more.
    """
    if media_type.startswith(_SCHEMA_1):
        raise InvalidRequest(
            f'image "{image}" is in Docker\'s form of before 2016 (schema 1): push it again with a current tool',
            "image",
        )
    if media_type not in (OCI_MANIFEST, DOCKER_MANIFEST):
        raise InvalidRequest(f'image "{image}" is no container image: the registry has a "{media_type}" there', "image")
    try:
        parsed = _ManifestJson.model_validate_json(raw)
    except ValidationError as error:
        raise _broken(image, "manifest", error) from error
    if parsed.config.media_type not in (OCI_CONFIG, DOCKER_CONFIG):
        raise InvalidRequest(
            f'image "{image}" is no container image, but an artifact of the type "{parsed.config.media_type}"', "image"
        )
    layers = tuple(layer.value() for layer in parsed.layers)
    for layer in layers:
        if layer.media_type not in _LAYERS:
            raise InvalidRequest(f'image "{image}" has a layer of the unknown type "{layer.media_type}"', "image")
    return Manifest(Descriptor(media_type, digest_of(raw), len(raw)), raw, parsed.config.value(), layers)


def media_type_of(raw: bytes, image: str) -> str:
    """What a manifest says of itself, for where nobody else does: a registry's header and an index may be silent."""

    class Says(_Json):
        media_type: str = Field(default="", alias="mediaType")
        manifests: tuple[object, ...] | None = None

    try:
        says = Says.model_validate_json(raw)
    except ValidationError as error:
        raise _broken(image, "manifest", error) from error
    return says.media_type or (OCI_MANIFEST if says.manifests is None else OCI_INDEX)


def parse_configuration(raw: bytes, manifest_layers: int, image: str) -> Configuration:
    """
    Raises:
        InvalidRequest: It is none, or does not fit its manifest.
    """
    try:
        parsed = _ConfigurationJson.model_validate_json(raw)
    except ValidationError as error:
        raise _broken(image, "configuration", error) from error
    diff_ids = parsed.rootfs.diff_ids or ()
    if len(diff_ids) != manifest_layers:
        raise InvalidRequest(
            f'image "{image}" is broken: its manifest has {manifest_layers} layers, its configuration {len(diff_ids)}',
            "image",
        )
    if not diff_ids:
        raise InvalidRequest(f'image "{image}" has no layers: there is nothing in it to run', "image")
    return Configuration(raw, parsed.value(), diff_ids, _image_config(parsed.config or _RunJson()))


def check_platform(found: Platform, wanted: Platform, image: str) -> None:
    """
    For an image without an index. What a configuration leaves out, it leaves to the machine.

    Raises:
        InvalidRequest: It is for another kind of machine.
    """
    if found.architecture not in ("", wanted.architecture) or found.os not in ("", wanted.os):
        raise wrong_platform(image, str(found), wanted)


def chain_ids(diff_ids: Iterable[str]) -> tuple[str, ...]:
    """One for each layer: the name of the file system made of it and all that are below it."""
    chain: list[str] = []
    for diff_id in diff_ids:
        chain.append(digest_of(f"{chain[-1]} {diff_id}".encode()) if chain else diff_id)
    return tuple(chain)


def _image_config(run: _RunJson) -> ImageConfig:
    env = dict(entry.partition("=")[::2] for entry in run.env or ())
    return ImageConfig(env, run.entrypoint or (), run.command or (), run.working_dir or "/", run.user or "")


def _broken(image: str, part: str, error: ValidationError) -> InvalidRequest:
    first = error.errors()[0]
    where = ".".join(str(step) for step in first["loc"])
    return InvalidRequest(f'image "{image}" is broken: its {part} is wrong at "{where}": {first["msg"]}', "image")
