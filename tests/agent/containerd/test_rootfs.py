from __future__ import annotations

import pytest

from astra_agent.containerd.rootfs import HostRoot, Root, SnapshotRoot, handle_of, root_of


@pytest.mark.parametrize("root", [HostRoot(), SnapshotRoot("overlayfs", "sha256:4711")])
def test_a_handle_means_what_it_was_made_of(root: Root) -> None:
    assert root_of(handle_of(root)) == root


@pytest.mark.parametrize("text", ["", "overlayfs", "overlayfs:", ":sha256:4711"])
def test_what_is_no_handle_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no handle"):
        root_of(text)
