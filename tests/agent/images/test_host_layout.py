"""What a container of the image `host` is made of, by what the machine has mounted."""

from __future__ import annotations

from astra_agent.containerd.host_layout import Layout, Shown, layout, root
from astra_agent.containerd.mountinfo import Mount

MACHINE = (
    Mount("/", "ext4"),
    Mount("/proc", "proc"),
    Mount("/run", "tmpfs"),
    Mount("/tmp", "tmpfs"),
    Mount("/usr", "ext4"),
    Mount("/usr/local", "xfs"),
    Mount("/home", "nfs4"),
    Mount("/opt/data", "fuse.sshfs"),
    Mount("/mnt/disk", "ext4"),
    Mount("/mnt/disk/usr", "ext4"),
    Mount("/var/lib/docker/overlay2/x/merged", "overlay"),
    Mount("/etc/resolv.conf", "ext4"),
    Mount("/usr/lib/libcuda.so", "ext4"),
)
FILES = frozenset({"/etc/resolv.conf", "/usr/lib/libcuda.so"})


def test_the_systems_file_systems_are_seen_and_others_are_not() -> None:
    plan = layout(MACHINE, ["/var/lib/docker"], [], FILES)

    assert plan.shown == (
        Shown("/home", "bind"),
        Shown("/usr", "overlay"),
        Shown("/opt/data", "bind"),
        Shown("/usr/local", "overlay"),
        Shown("/usr/lib/libcuda.so", "bind"),
    )
    assert plan.unseen == ("/proc", "/run", "/tmp", "/etc/resolv.conf", "/mnt/disk")


def test_a_folder_that_is_asked_for_is_seen_too() -> None:
    plan = layout(MACHINE, [], ["/mnt/disk"], FILES)

    assert Shown("/mnt/disk", "overlay") in plan.shown
    assert Shown("/mnt/disk/usr", "overlay") in plan.shown


def test_folders_of_the_agent_are_masked_unless_nobody_sees_them_anyway() -> None:
    plan = layout(MACHINE, ["/var/lib/astraeus", "/var/lib/astraeus/agent", "/run/containerd", "/usr/x"], [], FILES)

    assert plan.masked == ("/usr/x", "/var/lib/astraeus")


def test_each_container_writes_into_folders_of_its_own() -> None:
    plan = Layout((Shown("/usr", "overlay"), Shown("/home", "bind")), ("/var/lib/nomad", "/etc/secret"), ())

    made = root(plan, "/s/llama-0-a1", frozenset({"/etc/secret"}))

    assert made.rootfs.options == (
        "lowerdir=/",
        "upperdir=/s/llama-0-a1/root/upper",
        "workdir=/s/llama-0-a1/root/work",
    )
    assert [(mount.type, mount.source, mount.destination) for mount in made.mounts] == [
        ("overlay", "overlay", "/usr"),
        ("bind", "/home", "/home"),
        ("tmpfs", "tmpfs", "/var/lib/nomad"),
        ("bind", "/dev/null", "/etc/secret"),
    ]
    assert all(folder.path.startswith("/s/llama-0-a1/") for folder in made.folders)
    assert {folder.like for folder in made.folders} == {"/", "/usr"}
    assert "ro" in made.mounts[1].options


def test_a_name_that_mount_options_can_not_hold_is_bound() -> None:
    plan = layout((Mount("/", "ext4"), Mount("/opt/a,b", "ext4")), [], [], frozenset())

    assert plan.shown == (Shown("/opt/a,b", "bind"),)
