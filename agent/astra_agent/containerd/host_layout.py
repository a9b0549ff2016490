"""
What a container of the image `host` is made of, computed. Pure; `host_image` reads the machine and makes the folders.

The root is an overlay over `/`, which is that one file system and none that is mounted below it. Of those:

| mounted | a container gets |
|---|---|
| from a disk, in one of the system's folders or of the shown paths | an overlay of its own |
| there, over a network or FUSE; or a single file | a read-only bind |
| anywhere else (data disks, `/run`, a `/tmp` of its own, …) | an empty folder |

Folders of the agent, of containerd and of Nomad are hidden under empty ones, or their secrets were in every container.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from astra_agent.containerd.mountinfo import Mount, is_under

DEFAULT_MASKED_PATHS = (
    "/etc/astraeus",
    "/etc/consul.d",
    "/etc/nomad.d",
    "/etc/vault.d",
    "/opt/consul",
    "/opt/nomad",
    "/opt/vault",
    "/run/astraeus",
    "/run/containerd",
    "/run/docker",
    "/run/docker.sock",
    "/var/lib/astraeus",
    "/var/lib/containerd",
    "/var/lib/containers",
    "/var/lib/docker",
    "/var/lib/kubelet",
    "/var/lib/nomad",
)

_SYSTEM = frozenset(
    f"/{name}"
    for name in "bin etc gnu home lib lib32 lib64 libx32 nix opt root sbin srv usr var".split()  # noqa: SIM905
)
_DISKS = frozenset(
    ("bcachefs", "btrfs", "erofs", "ext2", "ext3", "ext4", "f2fs", "jfs", "overlay", "squashfs", "xfs", "zfs")
)
_NETWORKS = frozenset(
    ("9p", "beegfs", "ceph", "cifs", "gpfs", "lustre", "nfs", "nfs4", "smb3", "virtiofs", "wekafs")
)  # fmt: skip
# The agent writes these for every container.
_AGENTS_OWN = frozenset(("/etc/hostname", "/etc/hosts", "/etc/resolv.conf"))
_BUNDLES = "/io.containerd.runtime."
"""In the path of every running container's root, wherever its containerd has its folders: they come and go."""


@dataclass(frozen=True, slots=True)
class Shown:
    """A file system below `/` that containers see as well."""

    path: str
    how: Literal["overlay", "bind"]


@dataclass(frozen=True, slots=True)
class Layout:
    shown: tuple[Shown, ...]
    """The outer ones first."""
    masked: tuple[str, ...]
    """Without those inside others, and without those that containers do not see anyway."""
    unseen: tuple[str, ...]
    """Mounted on the machine, an empty folder in containers."""


@dataclass(frozen=True, slots=True)
class SpecMount:
    """A mount of the OCI spec."""

    type: str
    source: str
    destination: str
    options: tuple[str, ...]

    def as_json(self) -> dict[str, object]:
        return {
            "type": self.type,
            "source": self.source,
            "destination": self.destination,
            "options": list(self.options),
        }


@dataclass(frozen=True, slots=True)
class Folder:
    """To be made first, with the owner and the mode of *like*: an overlay shows those of its upper folder."""

    path: str
    like: str


@dataclass(frozen=True, slots=True)
class HostRoot:
    """What one container of this image is created with."""

    rootfs: SpecMount
    """The only mount of the task's root file system; its destination means nothing."""
    mounts: tuple[SpecMount, ...]
    """Of the spec, parents before what lies in them; whatever else is mounted comes later than its equals here."""
    folders: tuple[Folder, ...]


def layout(
    mounts: Iterable[Mount], masked_paths: Iterable[str], shown_paths: Iterable[str], files: frozenset[str]
) -> Layout:
    """
    Args:
        masked_paths: Absolute, without links; only such as exist.
        shown_paths: Folders beside the system's own whose file systems containers see.
        files: Those mount points that are no directories.
    """
    masks = _outermost(masked_paths)
    trees = _SYSTEM.union(shown_paths)
    shown: list[Shown] = []
    unseen: list[str] = []
    for mount in sorted(mounts, key=lambda mount: (mount.path.count("/"), mount.path)):
        if mount.path == "/" or _in_one_of(mount.path, masks):
            continue
        wanted = _in_one_of(mount.path, trees)
        how = _how(mount, mount.path in files) if wanted else None
        # Inside one that is not seen there is nothing to mount it on.
        if how is None or _in_one_of(mount.path, unseen):
            unseen.append(mount.path)
        else:
            shown.append(Shown(mount.path, how))
    seen = tuple(mask for mask in masks if _sees(mask, shown, unseen))
    return Layout(tuple(shown), seen, _outermost(unseen))


def root(plan: Layout, scratch: str, files: frozenset[str]) -> HostRoot:
    """
    Args:
        scratch: The container's own folder for what it writes; itself on no overlay.
        files: Those of the masked paths that are no directories.
    """
    folders: list[Folder] = []

    def overlay(name: str, path: str) -> SpecMount:
        upper, work = f"{scratch}/{name}/upper", f"{scratch}/{name}/work"
        folders.extend((Folder(upper, path), Folder(work, path)))
        return SpecMount("overlay", "overlay", path, (f"lowerdir={path}", f"upperdir={upper}", f"workdir={work}"))

    rootfs = overlay("root", "/")
    mounts = [
        overlay(str(number), shown.path)
        if shown.how == "overlay"
        else SpecMount("bind", shown.path, shown.path, ("bind", "ro", "nosuid", "nodev"))
        for number, shown in enumerate(plan.shown)
    ]
    mounts += [_mask(path, path in files) for path in plan.masked]
    return HostRoot(rootfs, tuple(mounts), tuple(folders))


def _mask(path: str, is_file: bool) -> SpecMount:
    if is_file:
        return SpecMount("bind", "/dev/null", path, ("bind", "ro"))
    return SpecMount("tmpfs", "tmpfs", path, ("ro", "nosuid", "nodev", "noexec", "size=4k", "mode=0755"))


def _how(mount: Mount, is_file: bool) -> Literal["overlay", "bind"] | None:
    """None: not to be seen, such as a kernel's own file system or one in memory."""
    if mount.path in _AGENTS_OWN or _BUNDLES in mount.path:
        return None
    if mount.fs_type in _NETWORKS or mount.fs_type.startswith("fuse"):
        return "bind"
    if mount.fs_type not in _DISKS:
        return None
    # A path with one of these would need more escaping than all kernels understand.
    return "bind" if is_file or any(letter in mount.path for letter in ',:\\"') else "overlay"


def _sees(path: str, shown: Iterable[Shown], unseen: Iterable[str]) -> bool:
    """By the innermost file system that *path* lies on."""
    on = max((s.path for s in shown if is_under(path, s.path)), key=len, default="/")
    return not any(is_under(path, hidden) and len(hidden) > len(on) for hidden in unseen)


def _in_one_of(path: str, folders: Iterable[str]) -> bool:
    return any(is_under(path, folder) for folder in folders)


def _outermost(paths: Iterable[str]) -> tuple[str, ...]:
    kept: list[str] = []
    for path in sorted(set(paths), key=lambda path: (path.count("/"), path)):
        if not _in_one_of(path, kept):
            kept.append(path)
    return tuple(kept)
