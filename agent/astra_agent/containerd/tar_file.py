"""
An uncompressed tar, read in place: where its files lie, and their bytes. Blocking work happens in threads.
"""

from __future__ import annotations

import asyncio
import hashlib
import posixpath
import tarfile
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path

from astra_agent.containerd.oci import LARGEST_MANIFEST_BYTES
from astra_agent.errors import HostFault, InvalidRequest

_CHUNK_BYTES = 1024 * 1024
_COMPRESSIONS = ((b"\x1f\x8b", "gzip"), (b"\x28\xb5\x2f\xfd", "zstd"), (b"BZh", "bzip2"), (b"\xfd7zXZ", "xz"))


@dataclass(frozen=True, slots=True)
class _Place:
    offset: int
    size: int


class TarFile:
    """*image* is what the user wrote, for sentences: every error is an InvalidRequest that begins with it."""

    def __init__(self, path: str, image: str, places: dict[str, _Place]) -> None:
        self.path = path
        self.image = image
        self._places = places

    @staticmethod
    async def open(path: str, image: str) -> TarFile:
        """
        Raises:
            InvalidRequest: It can't be read, is compressed, or no tar.
        """
        try:
            return TarFile(path, image, await asyncio.to_thread(_places, path, image))
        except tarfile.TarError as error:
            raise InvalidRequest(f'image "{image}": {path} is no tar: {error}', "image") from error
        except OSError as error:
            raise InvalidRequest(
                f'image "{image}": {path} can\'t be read on this machine: {error.strerror}', "image"
            ) from error

    def has(self, name: str) -> bool:
        return name in self._places

    def size(self, name: str) -> int:
        return self._place(name).size

    async def small(self, name: str) -> bytes:
        """A file that is read at once."""
        size = self.size(name)
        if size > LARGEST_MANIFEST_BYTES:
            raise InvalidRequest(f'image "{self.image}" is broken: its {name} has {size} bytes', "image")
        return await self.start(name, size)

    async def start(self, name: str, size: int) -> bytes:
        """The first *size* bytes of a file, or all that it has."""
        place = self._place(name)
        return await asyncio.to_thread(self._read, place.offset, min(size, place.size))

    async def digest(self, name: str) -> str:
        place = self._place(name)
        return await asyncio.to_thread(self._digest, place)

    async def read(self, name: str, offset: int) -> AsyncGenerator[bytes, None]:
        """A file's bytes from *offset* on."""
        place = self._place(name)
        at, end = place.offset + offset, place.offset + place.size
        while at < end:
            chunk = await asyncio.to_thread(self._read, at, min(_CHUNK_BYTES, end - at))
            at += len(chunk)
            yield chunk

    def _place(self, name: str) -> _Place:
        try:
            return self._places[posixpath.normpath(name)]
        except KeyError:
            raise InvalidRequest(f'image "{self.image}" is incomplete: there is no {name} in it', "image") from None

    def _read(self, offset: int, size: int) -> bytes:
        try:
            with Path(self.path).open("rb", buffering=0) as file:
                file.seek(offset)
                chunk = file.read(size)
        except OSError as error:
            raise HostFault(f'image "{self.image}": {self.path} can\'t be read: {error.strerror}') from error
        if not chunk and size:
            raise InvalidRequest(f'image "{self.image}": {self.path} is cut off', "image")
        return chunk

    def _digest(self, place: _Place) -> str:
        digest = hashlib.sha256()
        at, end = place.offset, place.offset + place.size
        while at < end:
            chunk = self._read(at, min(_CHUNK_BYTES, end - at))
            digest.update(chunk)
            at += len(chunk)
        return f"sha256:{digest.hexdigest()}"


def _places(path: str, image: str) -> dict[str, _Place]:
    with Path(path).open("rb") as file:
        start = file.read(6)
    for magic, name in _COMPRESSIONS:
        if start.startswith(magic):
            raise InvalidRequest(f'image "{image}": {path} is compressed with {name}: decompress it first', "image")
    places: dict[str, _Place] = {}
    links: dict[str, str] = {}
    with tarfile.open(path, "r:") as tar:
        for member in tar:
            name = posixpath.normpath(member.name)
            if member.isreg():
                places[name] = _Place(member.offset_data, member.size)
            elif member.issym():
                # docker save writes a layer that two images share once, and a link for the other.
                links[name] = posixpath.normpath(posixpath.join(posixpath.dirname(name), member.linkname))
            elif member.islnk():
                links[name] = posixpath.normpath(member.linkname)
    return places | {name: places[target] for name, target in links.items() if target in places}
