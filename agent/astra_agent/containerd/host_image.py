"""
The image `host`: the machine's own root file system, copy-on-write, a fresh copy for each container. What that is made
of says `host_layout`; here the machine is looked at, and folders are made and removed.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from astra_agent.containerd import mountinfo
from astra_agent.containerd.host_layout import DEFAULT_MASKED_PATHS, HostRoot, Layout, layout, root
from astra_agent.containerd.private_mounts import mount_tmpfs, with_mounts
from astra_agent.containerd.proto.types_pb2 import Mount
from astra_agent.errors import HostFault
from astra_agent.runtime import ImageConfig

CONFIG = ImageConfig(env={"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"})
"""What the image brings along."""

_TRASH, _TRIAL = ".trash-", ".trial-"


class HostImage:
    """
    Args:
        state_dir: The agent's own folder. What containers write goes below `<state_dir>/host`, which becomes a tmpfs
            (of half of the memory) where the disk can't carry an overlay, such as one that is an overlay itself.
        masked_paths: Hidden from containers, beside *state_dir* and the default ones.
        shown_paths: Folders, beside the system's own, whose file systems containers see.
    """

    def __init__(self, state_dir: Path, masked_paths: Iterable[Path] = (), shown_paths: Iterable[Path] = ()) -> None:
        self._scratch = state_dir.absolute() / "host"
        self._masked = (*DEFAULT_MASKED_PATHS, str(state_dir.absolute()), *map(str, masked_paths))
        self._shown = tuple(map(str, shown_paths))
        self._lock = asyncio.Lock()
        self._is_ready = False

    async def prepare(self) -> None:
        """
        See that containers can be made here. Idempotent; takes milliseconds the first time.

        Raises:
            HostFault: No overlay can be mounted over `/`, with the changes neither on the disk nor in memory.
        """
        async with self._lock:
            if not self._is_ready:
                await asyncio.to_thread(_make_scratch, self._scratch)
                self._is_ready = True

    async def create(self, container: str) -> HostRoot:
        """
        What *container* is created with; its folders are made. A second time for the same container is the same again.

        Raises:
            HostFault: As `prepare`; or the disk is full.
        """
        await self.prepare()
        return await asyncio.to_thread(self._create, container)

    async def remove(self, container: str) -> None:
        """Remove all that the container wrote. It must have ended. Idempotent."""
        await asyncio.to_thread(_remove, self._scratch, container)

    def view(self) -> dict[str, str | None]:
        """What a container sees beside the root file system: from path to place, None for an empty folder."""
        plan = self.layout()
        hidden = dict.fromkeys((*plan.unseen, *plan.masked))
        return {**hidden, **{shown.path: shown.path for shown in plan.shown}}

    def layout(self) -> Layout:
        """As the machine is mounted at this moment. Blocking, and quick."""
        mounts = mountinfo.parse(Path("/proc/self/mountinfo").read_text())
        masked = {os.path.realpath(path) for path in self._masked if os.path.lexists(path)}
        return layout(mounts, masked, self._shown, _files(mount.path for mount in mounts))

    def _create(self, container: str) -> HostRoot:
        plan = self.layout()
        made = root(plan, str(self._scratch / container), _files(plan.masked))
        try:
            for folder in made.folders:
                path, like = Path(folder.path), Path(folder.like).stat()
                path.mkdir(parents=True, exist_ok=True)
                os.chown(path, like.st_uid, like.st_gid)
                path.chmod(like.st_mode & 0o7777)
        except OSError as error:
            raise HostFault(f"image host: {error.filename} can't be made: {error.strerror}") from error
        return made


def _files(paths: Iterable[str]) -> frozenset[str]:
    return frozenset(path for path in paths if not Path(path).is_dir())


def _make_scratch(scratch: Path) -> None:
    scratch.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        if _carries_overlay(scratch) is None:
            return
        mount_tmpfs(scratch)
        failure = _carries_overlay(scratch)
    except OSError as error:
        failure = error
    if failure is not None:
        raise HostFault(f"image host: no overlay over / with its changes in {scratch}: {failure}") from failure


def _carries_overlay(scratch: Path) -> OSError | None:
    """None when it does; found out by trying, since file systems differ by kernel and version."""
    trial = scratch / f"{_TRIAL}{secrets.token_hex(8)}"
    try:
        for name in ("upper", "work", "merged"):
            (trial / name).mkdir(parents=True)
        options = ["lowerdir=/", f"upperdir={trial}/upper", f"workdir={trial}/work"]
        with_mounts([Mount(type="overlay", source="overlay", options=options)], trial / "merged", lambda: None).result()
    except OSError as error:
        return error
    finally:
        shutil.rmtree(trial, ignore_errors=True)
    return None


def _remove(scratch: Path, container: str) -> None:
    """Renamed first: the next container of that name starts afresh. What a kill left of earlier ones goes as well."""
    with suppress(FileNotFoundError):
        (scratch / container).rename(scratch / f"{_TRASH}{secrets.token_hex(8)}")
    for trash in scratch.glob(f"{_TRASH}*"):
        shutil.rmtree(trash, ignore_errors=True)
