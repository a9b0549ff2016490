"""
The root file systems of containers: what a `PreparedImage.handle` says, as a value.

A handle is `host`, or `<snapshotter>:<chain ID of the image's topmost layer>`; both mean the same after any restart.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HostRoot:
    """The machine's own root file system, copy-on-write."""


@dataclass(frozen=True, slots=True)
class SnapshotRoot:
    """A committed snapshot, to be prepared anew for each container."""

    snapshotter: str
    chain: str


Root = HostRoot | SnapshotRoot


def handle_of(root: Root) -> str:
    return "host" if isinstance(root, HostRoot) else f"{root.snapshotter}:{root.chain}"


def root_of(handle: str) -> Root:
    """The reverse of `handle_of`. Raises: ValueError for what is no handle."""
    if handle == "host":
        return HostRoot()
    snapshotter, colon, chain = handle.partition(":")
    if not (snapshotter and colon and chain):
        raise ValueError(f"{handle!r} is no handle of an image: neither host nor <snapshotter>:<chain ID>")
    return SnapshotRoot(snapshotter, chain)
