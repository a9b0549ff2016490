"""Whether a container's first program will start, told before there is a container."""

from __future__ import annotations

import os
import struct
from dataclasses import replace
from pathlib import Path

import pytest

from astra_agent.containerd.inside import Inside, Missing
from astra_agent.containerd.passwd import Identity
from astra_agent.containerd.program import Wanted, check_program
from astra_agent.errors import InvalidRequest

ROOT, WORKER = Identity(0, 0), Identity(1000, 100, (44,))
X86_64, AARCH64 = 62, 183


def elf(machine: int = X86_64, linker: str = "") -> bytes:
    """The headers of a program, with a dynamic linker when it has one."""
    name = linker.encode() + b"\0" if linker else b""
    header = (
        b"\x7fELF\x02\x01\x01"
        + bytes(9)
        + struct.pack("<HHIQQQIHHHHHH", 2, machine, 1, 0, 64, 0, 0, 64, 56, 1, 0, 0, 0)
    )
    kind = 3 if linker else 1
    return header + struct.pack("<IIQQQQQQ", kind, 4, 120, 0, 0, len(name), len(name), 1) + name


class Tree:
    """A root file system in a folder of the test."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def file(self, path: str, content: bytes = elf(), mode: int = 0o755) -> Tree:
        place = self.root / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)
        place.chmod(mode)
        return self

    def link(self, path: str, target: str) -> Tree:
        place = self.root / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(target)
        return self

    def check(
        self,
        command: str,
        *,
        mounts: dict[str, str | None] | None = None,
        foreign_formats: bool = False,
        **changes: object,
    ) -> None:
        wanted = Wanted(command, "/bin:/usr/bin", "/srv", ROOT, "busybox:1.36", "x86_64", frozenset(mounts or ()))
        wanted = replace(wanted, **changes)  # type: ignore[arg-type]  # fields of it, by name
        check_program(wanted, Inside(str(self.root), mounts or {}, wanted.working_dir), foreign_formats)

    def refusal(self, command: str, **changes: object) -> str:
        with pytest.raises(InvalidRequest) as raised:
            self.check(command, **changes)  # type: ignore[arg-type]
        assert raised.value.field in ("command", "working_dir")
        return str(raised.value)


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    root = tmp_path / "root"
    root.mkdir()
    return Tree(root).file("/bin/busybox").link("/bin/sh", "/bin/busybox")


def test_a_program_is_found_along_path(tree: Tree) -> None:
    tree.file("/usr/bin/train").check("train")


def test_one_that_is_nowhere_is_told_with_where_it_was_looked_for(tree: Tree) -> None:
    assert tree.refusal("nosuch") == 'command "nosuch" is not in image "busybox:1.36" (searched /bin:/usr/bin)'


def test_an_empty_path_is_told(tree: Tree) -> None:
    assert "(searched nothing: PATH is empty)" in tree.refusal("sh", search="")


def test_a_missing_file_is_told(tree: Tree) -> None:
    assert tree.refusal("/x.sh") == 'command "/x.sh" is not in image "busybox:1.36"'
    assert tree.refusal("/no/x.sh") == 'command "/no/x.sh" is not in image "busybox:1.36"'


def test_a_file_that_is_not_executable_is_told_what_to_do(tree: Tree) -> None:
    tree.file("/x.sh", b"#!/bin/sh\n", 0o644)

    assert tree.refusal("/x.sh") == (
        'command "/x.sh" in image "busybox:1.36" is not executable: chmod +x it, or run it with its interpreter'
    )


def test_one_on_path_that_is_not_executable_is_told_unless_a_later_one_is(tree: Tree) -> None:
    tree.file("/bin/train", mode=0o644)
    assert "is not executable" in tree.refusal("train")

    tree.file("/usr/bin/train").check("train")


def test_a_folder_is_no_program(tree: Tree) -> None:
    assert tree.refusal("/bin") == 'command "/bin" in image "busybox:1.36" is a directory: name a program'


def test_a_relative_program_is_looked_for_from_the_working_dir(tree: Tree) -> None:
    tree.file("/srv/run.sh", b"#!/bin/sh\n").check("./run.sh")

    assert "(looked for /srv/bin/no, from working_dir /srv)" in tree.refusal("bin/no")


def test_links_stay_inside_of_the_image(tree: Tree, tmp_path: Path) -> None:
    (tmp_path / "outside").write_bytes(elf())
    tree.link("/bin/up", "../../outside").link("/bin/abs", f"{tmp_path}/outside").link(
        "/bin/sh2", "../../../bin/busybox"
    )

    tree.check("sh2")
    assert "it is a link to /outside, which is not there" in tree.refusal("/bin/up")
    assert "is not in image" in tree.refusal("/bin/abs")


def test_links_in_a_circle_are_nothing(tree: Tree) -> None:
    tree.link("/a", "/b").link("/b", "/a")

    assert "is not in image" in tree.refusal("/a")


# Scripts and programs -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"#!/bin/bash\n", 'needs the interpreter "/bin/bash", which is not there'),
        (b"#! /usr/bin/env python3\n", 'needs the interpreter "python3", which is not there (searched /bin:/usr/bin)'),
        (b"#!/usr/bin/env -S python3 -u\n", 'needs the interpreter "python3"'),
        (b"#!/bin/sh\r\necho\r\n", "has Windows line ends"),
        (b"#!sh\n", 'has the interpreter "sh", which is no absolute path'),
        (b"#!/plain\n", 'needs the interpreter "/plain", which is not executable'),
        (b"echo hello\n", "is neither a program nor a script with a #! line: run it with its interpreter"),
        (b"", "is neither a program nor a script"),
        (elf(AARCH64), "is a program for aarch64; this machine is x86_64"),
        (
            elf(linker="/lib64/ld-linux-x86-64.so.2"),
            "needs the dynamic linker /lib64/ld-linux-x86-64.so.2, which is not there",
        ),
    ],
)
def test_what_would_not_start_is_told_why(tree: Tree, content: bytes, sentence: str) -> None:
    tree.file("/usr/bin/env").file("/plain", b"", 0o644).file("/x", content)

    assert sentence in tree.refusal("/x")


@pytest.mark.parametrize(
    "content",
    [
        b"#!/bin/sh -e\n",
        b"#!/usr/bin/env sh\n",
        b"#!/usr/bin/env -S A=1 sh -e\n",
        b"#!/usr/bin/env -i sh\n",
        elf(),
        elf(3),
        elf(linker="/bin/busybox"),
        b"\x7fELF",
    ],
)
def test_what_may_start_is_let_through(tree: Tree, content: bytes) -> None:
    content = content if len(content) > 4 else elf()
    tree.file("/usr/bin/env").file("/x", content).check("/x")


def test_a_machine_that_runs_foreign_formats_runs_them(tree: Tree) -> None:
    tree.file("/x", elf(AARCH64)).file("/y", b"MZ")

    tree.check("/x", foreign_formats=True)
    tree.check("/y", foreign_formats=True)


def test_a_script_of_a_script_is_followed(tree: Tree) -> None:
    tree.file("/a", b"#!/b\n").file("/b", b"#!/bin/zsh\n")

    assert 'command "/a" (/b) in image "busybox:1.36" needs the interpreter "/bin/zsh"' in tree.refusal("/a")


# Users --------------------------------------------------------------------------------------------------------------


def test_a_program_of_root_alone_is_told_to_others(tree: Tree) -> None:
    tree.file("/x", mode=0o700)

    tree.check("/x")
    assert "is not executable for user 1000 (mode 0700): chmod a+rx it" in tree.refusal("/x", identity=WORKER)


def test_a_program_in_a_closed_folder_is_told_with_the_folder(tree: Tree) -> None:
    tree.file("/root/venv/bin/python")
    (tree.root / "root").chmod(0o700)

    tree.check("/root/venv/bin/python")
    assert ("is out of reach of user 1000: the directory /root is closed to it (mode 0700)") in tree.refusal(
        "/root/venv/bin/python", identity=WORKER
    )


def test_an_additional_group_lets_in(tree: Tree) -> None:
    tree.file("/x", mode=0o750)
    os.chown(tree.root / "x", 0, 44)

    tree.check("/x", identity=WORKER)


# Mounts -------------------------------------------------------------------------------------------------------------


def test_a_mount_provides_the_program(tree: Tree, tmp_path: Path) -> None:
    Tree(tmp_path / "drive").file("run", b"#!/bin/sh\n").file("plain", b"", 0o644).link("here", "/data/run")
    mounts: dict[str, str | None] = {"/data/code": str(tmp_path / "drive"), "/data/run": str(tmp_path / "drive/run")}

    tree.check("/data/code/run", mounts=mounts)
    tree.check("/data/code/here", mounts=mounts)
    tree.check("../data/code/../run", mounts=mounts)
    assert tree.refusal("/data/code/plain", mounts=mounts).startswith(
        'command "/data/code/plain" on the drive at /data/code is not executable'
    )


def test_what_a_mount_covers_is_not_there(tree: Tree) -> None:
    tree.file("/opt/x")

    tree.check("/opt/x")
    assert "is not in image" in tree.refusal("/opt/x", mounts={"/opt": None})


def test_a_working_dir_must_be_a_folder_or_nothing_yet(tree: Tree) -> None:
    tree.check("sh", working_dir="/not/yet")

    assert 'working_dir "/bin/sh" in image "busybox:1.36" is no directory' in tree.refusal("sh", working_dir="/bin/sh")
    assert 'working_dir "work" is not absolute' in tree.refusal("sh", working_dir="work")


def test_reading_inside_follows_links_inside(tree: Tree) -> None:
    tree.file("/usr/etc/passwd", b"root:x:0:0").link("/etc", "/usr/etc")
    files = Inside(str(tree.root), {})

    assert files.read("/etc/passwd", 6) == b"root:x"
    assert files.read("/etc/group", 6) == b""
    with pytest.raises(Missing):
        files.find("/etc/passwd/x")
