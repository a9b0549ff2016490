"""
The port `Images` on containerd.

Pull policy is `if-not-present`: an image that is on this machine under its name is taken as it is, and no registry is
asked, whoever brought it. A tag that should be looked up anew is asked for by digest, or gets a new name. An archive is
read again when its file has changed.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from astra_agent.containerd import archive, host_image
from astra_agent.containerd.client import Client
from astra_agent.containerd.command_check import CommandCheck
from astra_agent.containerd.host_image import HostImage
from astra_agent.containerd.oci import machine_platform
from astra_agent.containerd.progress import Progress
from astra_agent.containerd.puller import Puller, Unpacked
from astra_agent.containerd.reference import Archive, Host, Reference, parse_image
from astra_agent.containerd.registry import RegistryImage
from astra_agent.containerd.registry_hosts import RegistryConfig
from astra_agent.containerd.rootfs import HostRoot, SnapshotRoot, handle_of
from astra_agent.errors import InvalidRequest
from astra_agent.runtime import BindMount, PreparedImage

_ARCHIVE_LABEL = "astraeus/archive"
_ARCHIVE_NAME = "astraeus/archive"

Auth = tuple[str, str] | None


@dataclass(slots=True)
class _Preparing:
    """One image that is on its way, for all who want it. *task* ends with the last of them."""

    listeners: list[Callable[[str], None]] = field(default_factory=list)
    last: str = ""
    task: asyncio.Task[PreparedImage] | None = None

    def tell(self, sentence: str) -> None:
        self.last = sentence
        for listener in self.listeners:
            listener(sentence)


class ContainerdImages:
    """
    Args:
        state_dir: The agent's own folder.
        host: The image `host`, shared with what makes containers.
        image_dirs: Where archives may lie; empty: anywhere on this machine.
    """

    def __init__(
        self,
        client: Client,
        *,
        state_dir: Path,
        host: HostImage,
        registry: RegistryConfig | None = None,
        image_dirs: tuple[Path, ...] = (),
        snapshotter: str = "overlayfs",
    ) -> None:
        self._registry = registry or RegistryConfig()
        self._image_dirs = image_dirs
        self._snapshotter = snapshotter
        self._host = host
        self._platform = machine_platform(os.uname().machine)
        self._puller = Puller(client, snapshotter, self._platform, self._registry.concurrent_layers)
        self._check = CommandCheck(client, host, state_dir)
        self._preparing: dict[tuple[str, Auth], _Preparing] = {}

    async def look(self, reference: str, auth: Auth, progress: Callable[[str], None]) -> int:
        """As the port says."""
        parsed = parse_image(reference)
        if isinstance(parsed, Host):
            return 0
        if isinstance(parsed, Archive):
            self._check_folder(parsed, reference)
            if await self._puller.find(str(parsed), reference, {_ARCHIVE_LABEL: archive.stamp(parsed)}) is not None:
                return 0
            return (await (await archive.open_archive(parsed, self._platform)).manifest()).size
        if await self._puller.find(parsed.name, reference, {}) is not None:
            return 0
        async with RegistryImage(parsed, reference, auth, self._platform, self._registry, progress) as origin:
            return (await origin.manifest()).size

    async def prepare(self, reference: str, auth: Auth, progress: Callable[[str], None]) -> PreparedImage:
        """
        As the port says. Several that want one image with the same credentials wait for one pull; it is cancelled with
        the last of them.
        """
        parsed = parse_image(reference)
        if isinstance(parsed, Host):
            await self._host.prepare()
            return PreparedImage(reference, handle_of(HostRoot()), host_image.CONFIG)
        key = (reference, auth)
        shared = self._preparing.get(key)
        if shared is None:
            shared = self._preparing[key] = _Preparing()
            shared.task = asyncio.create_task(self._prepare(parsed, reference, auth, shared.tell))
        return await self._wait(key, shared, progress)

    async def check_command(
        self,
        image: PreparedImage,
        args: tuple[str, ...],
        path: str,
        working_dir: str,
        user: str,
        mounts: tuple[BindMount, ...] = (),
    ) -> tuple[int, int, tuple[int, ...]]:
        """As the port says."""
        found = await self._check.check(image, args, path, working_dir, user, mounts)
        return found.uid, found.gid, found.groups

    async def _wait(self, key: tuple[str, Auth], shared: _Preparing, progress: Callable[[str], None]) -> PreparedImage:
        assert shared.task is not None
        shared.listeners.append(progress)
        if shared.last:
            progress(shared.last)
        try:
            return await asyncio.shield(shared.task)
        finally:
            shared.listeners.remove(progress)
            if not shared.listeners:
                if self._preparing.get(key) is shared:
                    del self._preparing[key]
                await _end(shared.task)

    async def _prepare(
        self, parsed: Archive | Reference, image: str, auth: Auth, tell: Callable[[str], None]
    ) -> PreparedImage:
        if isinstance(parsed, Archive):
            unpacked = await self._from_archive(parsed, image, tell)
        else:
            unpacked = await self._from_registry(parsed, image, auth, tell)
        return PreparedImage(image, handle_of(SnapshotRoot(self._snapshotter, unpacked.chain)), unpacked.config)

    async def _from_registry(
        self, reference: Reference, image: str, auth: Auth, tell: Callable[[str], None]
    ) -> Unpacked:
        found = await self._puller.find(reference.name, image, {})
        if found is not None:
            return found
        progress = Progress(image, "Pulling", tell)
        async with RegistryImage(reference, image, auth, self._platform, self._registry, progress.waits) as origin:
            digest_name = f"{reference.registry}/{reference.repository}"
            return await self._puller.bring(origin, reference.name, digest_name, image, {}, progress)

    async def _from_archive(self, parsed: Archive, image: str, tell: Callable[[str], None]) -> Unpacked:
        self._check_folder(parsed, image)
        labels = {_ARCHIVE_LABEL: archive.stamp(parsed)}
        found = await self._puller.find(str(parsed), image, labels)
        if found is not None:
            return found
        progress = Progress(image, "Reading", tell)
        origin = await archive.open_archive(parsed, self._platform)
        return await self._puller.bring(origin, str(parsed), _ARCHIVE_NAME, image, labels, progress)

    def _check_folder(self, parsed: Archive, image: str) -> None:
        path = Path(parsed.path).resolve()
        if self._image_dirs and not any(path.is_relative_to(folder.resolve()) for folder in self._image_dirs):
            folders = " or ".join(map(str, self._image_dirs))
            raise InvalidRequest(f'image "{image}": archives on this machine lie in {folders} (image_dirs)', "image")


async def _end(task: asyncio.Task[PreparedImage]) -> None:
    """Cancel it, unless it has ended, and wait until it is over. Its outcome is nobody's any more."""
    task.cancel()
    with suppress(asyncio.CancelledError):
        await asyncio.wait([task])
    if task.done() and not task.cancelled():
        task.exception()
