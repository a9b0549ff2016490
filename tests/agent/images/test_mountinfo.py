"""Which file systems of a machine can be seen."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from astra_agent.containerd.mountinfo import Mount, is_under, parse

MACHINE = r"""
22 27 0:21 / /proc rw - proc proc rw
24 27 0:6 / /dev rw shared:2 - devtmpfs devtmpfs rw
25 24 0:23 / /dev/shm rw - tmpfs tmpfs rw
27 1 254:0 / / rw shared:1 - ext4 /dev/vda rw
30 25 0:27 / /dev/shm rw - tmpfs second rw
31 27 8:1 / /home rw - xfs /dev/sdb1 rw
32 31 8:2 / /home/data\040set rw - ext4 /dev/sdc1 rw
33 27 8:3 / /srv/deep rw - ext4 /dev/sdd1 rw
34 27 8:4 / /srv rw - btrfs /dev/sde1 rw
35 31 8:5 / /home rw - overlay overlay rw
"""


def test_what_is_covered_can_not_be_seen() -> None:
    seen = {mount.path: mount.fs_type for mount in parse(MACHINE)}

    assert seen == {
        "/": "ext4",
        "/proc": "proc",
        "/dev": "devtmpfs",
        "/dev/shm": "tmpfs",
        "/srv": "btrfs",
        "/home": "overlay",
    }


def test_names_with_spaces_are_read() -> None:
    assert Mount("/home/data set", "ext4") in parse(
        "1 0 8:1 / / rw - ext4 a rw\n2 1 8:2 / /home/data\\040set rw - ext4 b rw"
    )


def test_a_folder_is_no_longer_name() -> None:
    assert is_under("/usr/lib", "/usr")
    assert is_under("/usr", "/usr")
    assert is_under("/usr", "/")
    assert not is_under("/usrlocal", "/usr")


@given(st.text(max_size=200))
def test_any_text_is_read(text: str) -> None:
    parse(text)
