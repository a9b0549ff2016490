"""
`Images.check_command`: looks into an image, or over the machine for `host`, before a container of it is made.
"""

from __future__ import annotations

import asyncio
import os
import posixpath
import secrets
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from astra_agent.containerd.client import Client
from astra_agent.containerd.host_image import HostImage
from astra_agent.containerd.inside import Inside
from astra_agent.containerd.leases import leased
from astra_agent.containerd.passwd import Identity, resolve
from astra_agent.containerd.private_mounts import with_mounts
from astra_agent.containerd.program import Wanted, check_program, runs_foreign_formats
from astra_agent.containerd.proto import snapshots_pb2
from astra_agent.containerd.proto.types_pb2 import Mount
from astra_agent.containerd.rootfs import HostRoot, SnapshotRoot, root_of
from astra_agent.containerd.services import SNAPSHOT_REMOVE, SNAPSHOT_VIEW
from astra_agent.errors import AstraError, HostFault, InvalidRequest
from astra_agent.runtime import BindMount, PreparedImage

_REMEMBERED = 256
_LONGEST_LOOK_S = 30.0
_USER_FILES = ("/etc/passwd", "/etc/group")
_LARGEST_FILE_BYTES = 4 * 1024 * 1024
"""Of /etc/passwd and /etc/group."""


class CommandCheck:
    """
    Remembers what was found good, by image and everything that was asked: a later attempt of a slot costs nothing. The
    image `host` and mounts change under us, so that programs there are looked at every time.

    Args:
        state_dir: The agent's own folder, for an empty one to mount on.
    """

    def __init__(self, client: Client, host: HostImage, state_dir: Path) -> None:
        self._client = client
        self._host = host
        self._view = state_dir.absolute() / "view"
        self._good: OrderedDict[tuple[object, ...], Identity] = OrderedDict()

    async def check(
        self,
        image: PreparedImage,
        args: tuple[str, ...],
        path: str,
        working_dir: str,
        user: str,
        mounts: tuple[BindMount, ...],
    ) -> Identity:
        """As `Images.check_command`."""
        if not args or not args[0]:
            raise InvalidRequest(f'image "{image.reference}" has no command of its own: give one', "command")
        look = partial(_look, image.reference, args[0], path, working_dir, user, mounts)
        root = root_of(image.handle)
        if isinstance(root, HostRoot):
            return await _bounded([], Path("/"), lambda: look("/", self._host.view()), image.reference)
        key = (image.handle, args[0], path, working_dir, user, mounts)
        if key not in self._good:
            self._good[key] = await self._in_snapshot(root, lambda: look(str(self._view), {}), image.reference)
            while len(self._good) > _REMEMBERED:
                self._good.popitem(last=False)
        self._good.move_to_end(key)
        return self._good[key]

    async def _in_snapshot(self, root: SnapshotRoot, look: Callable[[], Identity], image: str) -> Identity:
        async with leased(self._client, "view") as lease:
            key = f"view-{secrets.token_hex(8)}"
            request = snapshots_pb2.ViewSnapshotRequest(snapshotter=root.snapshotter, key=key, parent=root.chain)
            mounts = list((await self._client.call(SNAPSHOT_VIEW, request, lease=lease)).mounts)
            try:
                self._view.mkdir(mode=0o700, parents=True, exist_ok=True)
                return await _bounded(mounts, self._view, look, image)
            finally:
                await asyncio.shield(self._remove(root.snapshotter, key))

    async def _remove(self, snapshotter: str, key: str) -> None:
        # What can't be removed now goes with its lease.
        with suppress(AstraError):
            request = snapshots_pb2.RemoveSnapshotRequest(snapshotter=snapshotter, key=key)
            await self._client.call(SNAPSHOT_REMOVE, request)


async def _bounded(mounts: Sequence[Mount], target: Path, look: Callable[[], Identity], image: str) -> Identity:
    """A drive whose file server is away holds up the thread for ever, but nobody else."""
    try:
        async with asyncio.timeout(_LONGEST_LOOK_S):
            return await asyncio.wrap_future(with_mounts(mounts, target, look))
    except TimeoutError as error:
        raise HostFault(
            f'image "{image}": looking for the command did not end within {_LONGEST_LOOK_S:g} s: '
            f"a drive of the slot, or the disk, does not answer"
        ) from error
    except OSError as error:
        raise HostFault(f'image "{image}" can\'t be looked into: {error.strerror}') from error


def _look(
    image: str,
    command: str,
    path: str,
    working_dir: str,
    user: str,
    mounts: tuple[BindMount, ...],
    root: str,
    below: dict[str, str | None],
) -> Identity:
    """Blocking. *below* is mounted in *root* before *mounts* are."""
    files = Inside(root, {**below, **{mount.target: os.path.realpath(mount.source) for mount in mounts}}, working_dir)
    passwd, group = (files.read(file, _LARGEST_FILE_BYTES).decode(errors="replace") for file in _USER_FILES)
    identity = resolve(user, passwd, group, image)
    drives = frozenset(posixpath.normpath(mount.target) for mount in mounts)
    wanted = Wanted(command, path, working_dir, identity, image, os.uname().machine, drives)
    check_program(wanted, files, runs_foreign_formats())
    return identity
