"""
What a run's `image` may be, parsed: `host`, an archive on the machine, or a reference to a registry. Pure.

| text | meaning |
|---|---|
| `host` | the machine's own root file system, copy-on-write |
| `oci-archive:/path.tar[:name]` | a tar of an OCI image layout; *name* chooses one of several images |
| `docker-archive:/path.tar[:name]` | what `docker save` writes |
| `busybox`, `busybox:1.36`, `ghcr.io/a/b@sha256:…`, `localhost:5000/a:1` | a registry's image, as Docker reads it |
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from astra_agent.errors import InvalidRequest

DOCKER_HUB = "docker.io"

# The grammar of github.com/distribution/reference, which every registry and client keeps to.
_COMPONENT = re.compile(r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*")
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?"
_REGISTRY = re.compile(rf"(?:{_LABEL}(?:\.{_LABEL})*|\[[0-9a-fA-F:]+\])(?::[0-9]{{1,5}})?")
_TAG = re.compile(r"\w[\w.-]{0,127}", re.ASCII)
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128}")
_LONGEST_REPOSITORY = 255


@dataclass(frozen=True, slots=True)
class Host:
    """The machine's own root file system."""


@dataclass(frozen=True, slots=True)
class Archive:
    kind: Literal["oci-archive", "docker-archive"]
    path: str
    """Absolute."""
    name: str | None = None
    """Which of several images; None: the only one."""

    def __str__(self) -> str:
        return f"{self.kind}:{self.path}" + (f":{self.name}" if self.name else "")


@dataclass(frozen=True, slots=True)
class Reference:
    """An image of a registry. At least one of *tag* and *digest* is set; with both, the digest decides."""

    registry: str
    """`docker.io`, `ghcr.io`, `localhost:5000`."""
    repository: str
    """`library/busybox`."""
    tag: str | None
    digest: str | None

    @property
    def name(self) -> str:
        """The one full name: equal for all texts that mean the same, and what containerd's own clients call it."""
        repository = f"{self.registry}/{self.repository}"
        return f"{repository}@{self.digest}" if self.digest else f"{repository}:{self.tag}"

    @property
    def version(self) -> str:
        """What the registry is asked for: the digest, else the tag."""
        return self.digest or self.tag or "latest"


def parse_image(text: str) -> Host | Archive | Reference:
    """
    Raises:
        InvalidRequest: It is none of the forms above; the sentence names the part that is wrong.
    """
    if text == "host":
        return Host()
    kind, colon, rest = text.partition(":")
    if colon and kind in ("oci-archive", "docker-archive"):
        return _archive(text, "oci-archive" if kind == "oci-archive" else "docker-archive", rest)
    return parse_reference(text)


def parse_reference(text: str) -> Reference:
    """
    Raises:
        InvalidRequest: It is no image reference.
    """
    if not text:
        raise InvalidRequest('image is empty: name an image such as "busybox:1.36", or "host"', "image")
    if text != text.strip() or any(c.isspace() for c in text):
        raise _wrong(text, "it has white space in it")
    if "://" in text:
        raise _wrong(text, f"it is a URL; leave out {text.partition('://')[0]}://")
    rest, at, digest = text.partition("@")
    if at and not _DIGEST.fullmatch(digest):
        raise _wrong(text, f'"{digest}" is no digest; one is sha256: and 64 hexadecimal digits')
    rest, tag = _split_tag(rest)
    if tag is not None and not _TAG.fullmatch(tag):
        raise _wrong(text, f'"{tag}" is no tag; one has up to 128 letters, digits, "_", "." and "-"')
    registry, repository = _split_registry(text, rest)
    _check_repository(text, registry, repository)
    return Reference(registry, repository, tag or (None if digest else "latest"), digest or None)


def _archive(text: str, kind: Literal["oci-archive", "docker-archive"], rest: str) -> Archive:
    path, _, name = rest.partition(":")
    if not path.startswith("/"):
        raise InvalidRequest(
            f'image "{text}": the path of an archive is absolute, such as {kind}:/images/train.tar', "image"
        )
    return Archive(kind, path, name or None)


def _split_tag(rest: str) -> tuple[str, str | None]:
    """A colon after the last slash is a tag's; one before it is a port's."""
    head, slash, last = rest.rpartition("/")
    last, colon, tag = last.partition(":")
    return f"{head}{slash}{last}", tag if colon else None


def _split_registry(text: str, rest: str) -> tuple[str, str]:
    first, slash, repository = rest.partition("/")
    named = bool(slash) and ("." in first or ":" in first or first == "localhost" or first != first.lower())
    if not named:
        return DOCKER_HUB, rest if slash else f"library/{rest}"
    if not _REGISTRY.fullmatch(first):
        raise _wrong(text, f'"{first}" is no registry; one is a host name with or without a port')
    if first in (DOCKER_HUB, "index.docker.io"):
        return DOCKER_HUB, repository if "/" in repository else f"library/{repository}"
    return first, repository


def _check_repository(text: str, registry: str, repository: str) -> None:
    for component in repository.split("/"):
        if _COMPONENT.fullmatch(component):
            continue
        if component != component.lower() and _COMPONENT.fullmatch(component.lower()):
            raise _wrong(text, f'"{component}" must be lower case: "{component.lower()}"')
        raise _wrong(text, f"\"{component}\" can't be part of an image's name")
    if len(registry) + 1 + len(repository) > _LONGEST_REPOSITORY:
        raise _wrong(text, f"its name is longer than {_LONGEST_REPOSITORY} characters")


def _wrong(text: str, why: str) -> InvalidRequest:
    return InvalidRequest(f'image "{text}" is no image reference such as "busybox:1.36": {why}', "image")
