"""
Both implementations of the port to containers, behind one bench: the one in memory, and containerd where it can run.

The real one is a containerd of the test run's own, killed and started again by the tests as they like.
"""

from __future__ import annotations

import asyncio
import subprocess
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from astra_agent import init
from astra_agent.containerd import proc
from astra_agent.containerd.client import Client
from astra_agent.containerd.containers import ContainerdContainers
from astra_agent.containerd.private import PrivateContainerd
from astra_agent.runtime import ContainerPlan, Containers, ImageConfig, PreparedImage
from tests.fakes.runtime import FakeContainers

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
CGROUP_PARENT = "/astraeus-contract"


class RuntimeBench(ABC):
    """
    What a test of the port works with.

    Attributes:
        containers: The port.
        folder: For the test's own files.
    """

    containers: Containers
    folder: Path
    netns: Path

    def plan(self, container: str, script: str = "sleep 1000", **changes: Any) -> ContainerPlan:
        """*script* for `sh -c`; or whole `args` among the changes."""
        wanted: dict[str, Any] = {
            "id": container,
            "labels": {"slot": container.rpartition("-a")[0]},
            "image": PreparedImage("host", "host", ImageConfig()),
            "args": ("sh", "-c", script),
            "env": {"PATH": PATH},
            "working_dir": "/",
            "hostname": "worker-0",
            "log_path": str(self.folder / "logs" / container),
            "netns": str(self.netns),
            "cgroup_path": f"{CGROUP_PARENT}/{container}",
        }
        return ContainerPlan(**{**wanted, **changes})

    def log(self, container: str) -> str:
        return (self.folder / "logs" / container).read_text()

    async def run(self, container: str, script: str = "sleep 1000", **changes: Any) -> None:
        """Create and start."""
        await self.containers.create(self.plan(container, script, **changes))
        await self.containers.start(container)

    @abstractmethod
    async def go_down(self) -> None:
        """The runtime stops answering, without a word to anybody; containers run on."""

    @abstractmethod
    async def come_back(self) -> None: ...


class FakeBench(RuntimeBench):
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.netns = folder / "netns"
        self.containers = self.fake = FakeContainers()

    async def go_down(self) -> None:
        self.fake.go_down()

    async def come_back(self) -> None:
        self.fake.come_back()


class ContainerdBench(RuntimeBench):
    def __init__(self, folder: Path, netns: Path, containerd: PrivateContainerd, client: Client) -> None:
        self.folder = folder
        self.netns = netns
        self.containerd = containerd
        self.client = client
        self.containers = self.again()

    def again(self) -> ContainerdContainers:
        """The adapter of an agent that has just started on what is there."""
        return ContainerdContainers(
            self.client,
            state_dir=self.folder / "agent",
            cgroup_parent=CGROUP_PARENT,
            init_path=init.program(),
            logger_path=init.logger(),
            runc_root=self.containerd.runc_root,
        )

    def processes(self, container: str) -> list[int]:
        """What is in the container's cgroup, as the machine sees it."""
        return proc.Cgroups.of_this_machine().processes(f"{CGROUP_PARENT}/{container}")

    async def go_down(self) -> None:
        self.containerd.kill()

    async def come_back(self) -> None:
        await self.containerd.start()


@pytest.fixture(scope="session")
def private_containerd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrivateContainerd]:
    containerd = PrivateContainerd(tmp_path_factory.mktemp("containerd"))
    yield containerd
    asyncio.run(containerd.clean())
    proc.Cgroups.of_this_machine().remove(CGROUP_PARENT)


@pytest.fixture(scope="session")
def netns(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A network namespace of the tests' own, with nothing in it."""
    path = tmp_path_factory.mktemp("netns") / "empty"
    path.touch()
    subprocess.run(["unshare", f"--net={path}", "true"], check=True)
    yield path
    subprocess.run(["umount", str(path)], check=True)


@pytest.fixture
async def containerd_bench(
    private_containerd: PrivateContainerd, netns: Path, tmp_path: Path
) -> AsyncIterator[ContainerdBench]:
    await private_containerd.start()
    async with Client(private_containerd.socket, "contract") as client:
        bench = ContainerdBench(tmp_path, netns, private_containerd, client)
        yield bench
        await private_containerd.start()
        for found in await bench.containers.list():
            await bench.containers.remove(found.id)


@pytest.fixture(params=["memory", pytest.param("containerd", marks=pytest.mark.containers)])
def runtime(request: pytest.FixtureRequest, tmp_path: Path) -> RuntimeBench:
    bench: RuntimeBench = (
        FakeBench(tmp_path) if request.param == "memory" else request.getfixturevalue("containerd_bench")
    )
    return bench
