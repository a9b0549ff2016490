"""A captured machine that is laid out in a folder reads as the captured one does."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from astra_agent.inventory import CapturedTree, read
from astra_agent.inventory.tree import AbsentError, UnreadableError
from astra_agent.sysfs import DirectoryRoot
from tests.agent.inventory.captured import NAMES, captured, inventory


def lay_out(tree: CapturedTree, folder: Path) -> None:
    """Everything but device nodes, which take root and mknod; a file with an error is left out."""
    for path, content in tree.files.items():
        file = folder / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    for path, target in tree.links.items():
        link = folder / path.lstrip("/")
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(target)


@pytest.mark.skipif(os.geteuid() != 0, reason="makes device nodes, which takes root")
@pytest.mark.parametrize("name", NAMES)
def test_a_machine_in_a_folder_reads_as_the_same_machine_in_memory(name: str, tmp_path: Path) -> None:
    tree, library = captured(name)
    lay_out(tree, tmp_path)
    try:
        for path, (major, minor) in tree.devices.items():
            node = tmp_path / path.lstrip("/")
            node.parent.mkdir(parents=True, exist_ok=True)
            os.mknod(node, 0o20666, os.makedev(major, minor))
    except PermissionError:
        pytest.skip("this root may not make device nodes")
    found = read(DirectoryRoot(tmp_path), library)
    assert replace(found, findings=()) == replace(inventory(name), findings=())


def test_links_stay_inside_the_folder(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "file").write_text("inside\n")
    (tmp_path / "absolute").symlink_to("/real/file")
    (tmp_path / "upwards").symlink_to("../../../real/file")
    root = DirectoryRoot(tmp_path)
    assert root.read("/absolute") == b"inside\n"
    assert root.read("/upwards") == b"inside\n"
    assert root.resolve("/absolute") == "/real/file"


def test_absent_and_unreadable_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "loop").symlink_to("loop")
    root = DirectoryRoot(tmp_path)
    with pytest.raises(AbsentError):
        root.read("/nothing")
    with pytest.raises(AbsentError):
        root.read("/folder/nothing/below")
    with pytest.raises(UnreadableError, match="EISDIR"):
        root.read("/folder")
    with pytest.raises(UnreadableError, match="ELOOP"):
        root.read("/loop")
    assert root.names("/nothing") == ()
    assert root.device("/folder") is None


def test_this_machine_can_be_read_whatever_it_is() -> None:
    found = read(DirectoryRoot(), captured("vm-siw")[1])
    assert found.machine
    assert found.numa
