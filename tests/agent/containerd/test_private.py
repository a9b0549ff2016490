"""A containerd of our own comes, goes, and leaves nothing."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from astra_agent import init
from astra_agent.containerd import proc
from astra_agent.containerd.client import Client
from astra_agent.containerd.containers import ContainerdContainers
from astra_agent.containerd.private import PrivateContainerd
from astra_agent.runtime import ContainerPlan, ImageConfig, PreparedImage

pytestmark = pytest.mark.containers

CGROUP = "/astraeus-private"


@pytest.fixture
async def containerd(tmp_path: Path) -> AsyncIterator[PrivateContainerd]:
    containerd = PrivateContainerd(tmp_path / "containerd")
    await containerd.start()
    yield containerd
    await containerd.clean()
    proc.Cgroups.of_this_machine().remove(CGROUP)


async def run_one(containerd: PrivateContainerd, container: str) -> int:
    """A running container; the process ID of its first process."""
    plan = ContainerPlan(
        id=container,
        labels={},
        image=PreparedImage("host", "host", ImageConfig()),
        args=("sleep", "1000"),
        env={"PATH": "/usr/bin:/bin"},
        working_dir="/",
        hostname="one",
        log_path=str(containerd.root / "log"),
        netns="/proc/self/ns/net",
        cgroup_path=f"{CGROUP}/{container}",
    )
    async with Client(containerd.socket, "private") as client:
        containers = ContainerdContainers(
            client,
            state_dir=containerd.root.parent / "agent",
            cgroup_parent=CGROUP,
            init_path=init.program(),
            logger_path=init.logger(),
            runc_root=containerd.runc_root,
        )
        await containers.create(plan)
        await containers.start(container)
        return (await containers.status(container)).pid


def lives(pid: int) -> bool:
    """A zombie does not: whoever adopted it reaps it when he likes."""
    return not proc.status(pid).get("State", "Z").startswith("Z")


def mounts_below(folder: Path) -> list[str]:
    points = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return [point for point in points if Path(point).is_relative_to(folder)]


async def test_it_is_found_again_by_its_folder(containerd: PrivateContainerd) -> None:
    other = PrivateContainerd(containerd.root)
    await other.start()
    assert other.pid == containerd.pid


async def test_it_is_in_no_process_group_of_ours(containerd: PrivateContainerd) -> None:
    assert os.getpgid(containerd.pid) == containerd.pid
    assert proc.session(containerd.pid) != os.getsid(0)


async def test_its_containers_outlive_it_and_it_comes_back_to_them(containerd: PrivateContainerd) -> None:
    pid = await run_one(containerd, "one")
    containerd.kill()
    assert containerd.pid == 0
    assert proc.is_init(pid)
    await containerd.start()
    async with Client(containerd.socket, "private") as client:
        assert await client.healthy()
    assert proc.is_init(pid)


@pytest.mark.parametrize("kills", ["nothing", "containerd", "containerd and its shims"])
async def test_cleaning_leaves_nothing_whatever_was_killed_before(containerd: PrivateContainerd, kills: str) -> None:
    pid = await run_one(containerd, "one")
    shim = int(proc.status(pid)["PPid"])
    if kills != "nothing":
        containerd.kill()
    if "shims" in kills:
        os.kill(shim, signal.SIGKILL)
    await containerd.clean()
    assert containerd.pid == 0
    assert not lives(pid)
    assert not lives(shim)
    assert mounts_below(containerd.root) == []
    assert proc.Cgroups.of_this_machine().directories(f"{CGROUP}/one") == []
    assert not containerd.socket.exists()
    assert not containerd.runc_root.exists()
    await containerd.clean()


async def test_one_that_does_not_start_says_why(tmp_path: Path) -> None:
    containerd = PrivateContainerd(tmp_path / "containerd")
    containerd.socket.mkdir(parents=True)
    with pytest.raises(Exception, match=r"containerd ended while it started: .*containerd\.log"):
        await containerd.start()
