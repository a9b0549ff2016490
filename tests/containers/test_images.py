"""Archives, `host` and the look into an image, on a real containerd and the real kernel."""

from __future__ import annotations

import asyncio
import itertools
import os
import subprocess
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from astra_agent import init, namespaces
from astra_agent.containerd.client import Client
from astra_agent.containerd.containers import ContainerdContainers
from astra_agent.containerd.host_image import HostImage
from astra_agent.containerd.images import ContainerdImages
from astra_agent.containerd.private import PrivateContainerd
from astra_agent.containerd.proto import leases_pb2
from astra_agent.containerd.registry_hosts import RegistryConfig
from astra_agent.containerd.services import LEASE_LIST
from astra_agent.errors import HostFault, InvalidRequest
from astra_agent.runtime import BindMount, ContainerPlan, ExitStatus, ImageConfig, PreparedImage
from tests.containers.images import File, Folder, Image, Link
from tests.containers.small_disk import small_disk

pytestmark = pytest.mark.containers

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
CGROUP_PARENT = "/astraeus-images"
_numbers = itertools.count()

TOOLS = (
    Image()
    .with_programs("/bin/sh", "/bin/cat")
    .layer(
        {
            "etc/passwd": File(b"root:x:0:0::/:/bin/sh\nworker:x:1000:1000::/:/bin/sh\n"),
            "etc/group": File(b"root:x:0:\nworker:x:1000:\nvideo:x:44:worker\n"),
            "x.sh": File(b"#!/bin/sh\n", 0o644),
            "run.sh": File(b"#!/bin/sh\necho $0\n", 0o755),
            "python.sh": File(b"#!/usr/bin/python3\n", 0o755),
            "closed": Folder(0o700),
            "closed/run": Link("/run.sh"),
        }
    )
    .config(Cmd=["/bin/sh"], Env=[f"PATH={PATH}"])
)


@pytest.fixture(scope="module")
def containerd() -> Iterator[PrivateContainerd]:
    # Not in pytest's own folder: the path of a socket has at most 107 characters.
    with tempfile.TemporaryDirectory(prefix="astra-", ignore_cleanup_errors=True) as folder:
        private = PrivateContainerd(Path(folder))
        yield private
        asyncio.run(private.clean())


class Machine:
    """An agent's two adapters on one containerd, and the sentences that it said."""

    def __init__(
        self,
        client: Client,
        containerd: PrivateContainerd,
        state_dir: Path,
        shown_paths: tuple[Path, ...] = (),
        **images: Any,
    ) -> None:
        self.client = client
        self.state_dir = state_dir
        self.said: list[str] = []
        self.host = HostImage(state_dir, shown_paths=shown_paths)
        registry = RegistryConfig(docker_configs=())
        self.images = ContainerdImages(client, state_dir=state_dir, host=self.host, registry=registry, **images)
        self.containers = ContainerdContainers(
            client,
            state_dir=state_dir,
            cgroup_parent=CGROUP_PARENT,
            init_path=init.program(),
            logger_path=init.logger(),
            host_image=self.host,
            runc_root=containerd.runc_root,
        )

    async def prepare(self, image: str) -> PreparedImage:
        return await self.images.prepare(image, None, self.said.append)

    async def check(self, image: PreparedImage, *args: str, user: str = "", **changes: Any) -> tuple[int, int, Any]:
        wanted = {"path": PATH, "working_dir": "/", **changes}
        return await self.images.check_command(image, args, user=user, **wanted)

    async def refusal(self, image: PreparedImage, *args: str, **changes: Any) -> str:
        with pytest.raises(InvalidRequest) as raised:
            await self.check(image, *args, **changes)
        return str(raised.value)

    async def run(self, image: PreparedImage, *args: str, **changes: Any) -> tuple[ExitStatus, str]:
        """Its exit, and what it said."""
        name = f"images-{next(_numbers)}-a0"
        log = self.state_dir / "logs" / name
        plan = ContainerPlan(
            id=name,
            labels={},
            image=image,
            args=args,
            env={"PATH": PATH},
            working_dir="/",
            hostname="worker-0",
            log_path=str(log),
            netns=str(namespaces.own_path()),
            cgroup_path=f"{CGROUP_PARENT}/{name}",
            **changes,
        )
        try:
            await self.containers.create(plan)
            await self.containers.start(name)
            async with asyncio.timeout(30):
                ended = await self.containers.wait(name)
        finally:
            await self.containers.remove(name)
        return ended, log.read_text()


Make = Callable[..., Awaitable[Machine]]


@pytest_asyncio.fixture
async def make_machine(containerd: PrivateContainerd, tmp_path: Path) -> AsyncIterator[Make]:
    await containerd.start()
    async with Client(containerd.socket, f"images-{next(_numbers)}") as client:

        async def make(state_dir: Path = tmp_path / "state", **images: Any) -> Machine:
            machine = Machine(client, containerd, state_dir, **images)
            await machine.containers.probe()
            return machine

        yield make


@pytest_asyncio.fixture
async def machine(make_machine: Make) -> Machine:
    return await make_machine()


@pytest_asyncio.fixture
async def tools(machine: Machine, tmp_path: Path) -> PreparedImage:
    TOOLS.write_oci_archive(tmp_path / "tools.tar")
    return await machine.prepare(f"oci-archive:{tmp_path}/tools.tar")


def mount_points() -> set[str]:
    return {line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()}


# Archives -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["oci-archive", "docker-archive"])
async def test_a_program_runs_from_an_archive(machine: Machine, tmp_path: Path, kind: str) -> None:
    write = TOOLS.write_oci_archive if kind == "oci-archive" else TOOLS.write_docker_archive
    write(tmp_path / "x.tar", "tools:1")

    prepared = await machine.prepare(f"{kind}:{tmp_path}/x.tar:tools:1")

    assert prepared.config == ImageConfig(env={"PATH": PATH}, command=("/bin/sh",))
    assert await machine.run(prepared, "/run.sh") == (ExitStatus(0), "/run.sh\n")


async def test_an_archive_is_read_once_and_again_when_it_changed(machine: Machine, tmp_path: Path) -> None:
    name = f"oci-archive:{tmp_path}/x.tar"
    TOOLS.write_oci_archive(tmp_path / "x.tar")
    first = await machine.prepare(name)
    assert machine.said[0] == f"Reading {name}"
    machine.said.clear()

    assert await machine.prepare(name) == first
    assert machine.said == []

    TOOLS.layer({"new": File(b"1")}).write_oci_archive(tmp_path / "x.tar")
    second = await machine.prepare(name)

    assert second.handle != first.handle
    assert (await machine.run(second, "cat", "/new"))[1] == "1"
    assert (await machine.run(first, "cat", "/run.sh"))[0] == ExitStatus(0), "a slot of the old one goes on"


async def test_an_archive_outside_of_the_image_folders_is_refused(make_machine: Make, tmp_path: Path) -> None:
    for folder in ("in", "out"):
        (tmp_path / folder).mkdir()
        TOOLS.write_oci_archive(tmp_path / folder / "x.tar")
    (tmp_path / "in" / "link.tar").symlink_to(tmp_path / "out" / "x.tar")
    machine = await make_machine(image_dirs=(tmp_path / "in",))

    await machine.prepare(f"oci-archive:{tmp_path}/in/x.tar")
    for path in ("out/x.tar", "in/../out/x.tar", "in/link.tar"):
        with pytest.raises(InvalidRequest, match=rf"archives on this machine lie in {tmp_path}/in \(image_dirs\)"):
            await machine.prepare(f"oci-archive:{tmp_path}/{path}")


async def test_a_layer_that_is_no_tar_is_told(machine: Machine, tmp_path: Path) -> None:
    broken = Image(layers=(TOOLS.layers[0], type(TOOLS.layers[0])(b"no tar" * 1000, compressed=False)))
    broken.write_oci_archive(tmp_path / "x.tar")

    with pytest.raises(HostFault, match=r'image "oci-archive:.*": its layer sha256:.* can\'t be unpacked'):
        await machine.prepare(f"oci-archive:{tmp_path}/x.tar")


async def test_a_full_disk_is_told_as_one(tmp_path: Path) -> None:
    large = Image().layer({"data": File(os.urandom(24_000_000))}, compressed=False)
    large.write_oci_archive(tmp_path / "x.tar")
    with tempfile.TemporaryDirectory(prefix="astra-") as folder, small_disk(Path(folder), 16):
        containerd = PrivateContainerd(Path(folder, "containerd"))
        await containerd.start()
        async with Client(containerd.socket, "full") as client:
            machine = Machine(client, containerd, tmp_path / "state")
            with pytest.raises(HostFault, match="the disk with containerd's folder is full: free space on it"):
                await machine.prepare(f"oci-archive:{tmp_path}/x.tar")
        await containerd.clean()


# Commands -----------------------------------------------------------------------------------------------------------


async def test_commands_and_users_are_looked_up_in_the_image(machine: Machine, tools: PreparedImage) -> None:
    assert await machine.check(tools, "sh") == (0, 0, ())
    assert await machine.check(tools, "/run.sh", user="worker") == (1000, 1000, (44,))
    assert await machine.check(tools, "./run.sh", user="7:8") == (7, 8, ())

    assert await machine.refusal(tools, "nosuch", path="/bin:/usr/bin") == (
        f'command "nosuch" is not in image "{tools.reference}" (searched /bin:/usr/bin)'
    )
    assert (await machine.refusal(tools, "/x.sh")).endswith(
        "is not executable: chmod +x it, or run it with its interpreter"
    )
    assert 'needs the interpreter "/usr/bin/python3"' in await machine.refusal(tools, "/python.sh")
    assert "the directory /closed is closed to it (mode 0700)" in await machine.refusal(
        tools, "/closed/run", user="worker"
    )
    assert f'user "nobody" is not in image "{tools.reference}"' in await machine.refusal(tools, "sh", user="nobody")
    assert "has no command of its own: give one" in await machine.refusal(tools)


async def test_what_is_told_beforehand_is_what_happens(machine: Machine, tools: PreparedImage) -> None:
    """Each that is let through starts, each that is refused would not."""
    for command in ("sh", "cat", "/run.sh", "./run.sh", "run.sh", "/x.sh", "/python.sh", "/etc", "/closed/run"):
        for uid in (0, 1000):
            try:
                await machine.check(tools, command, user=str(uid))
                told = True
            except InvalidRequest:
                told = False
            code = (await machine.run(tools, command, "-c", "exit 0", uid=uid, gid=uid))[0].code
            started = code not in (126, 127)
            assert (command, uid, told) == (command, uid, started)


async def test_a_drive_provides_the_command(machine: Machine, tools: PreparedImage, tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train").write_text("#!/bin/sh\n")
    mounts = (BindMount(str(tmp_path / "code"), "/code"),)

    assert "on the drive at /code is not executable" in await machine.refusal(tools, "/code/train", mounts=mounts)
    (tmp_path / "code" / "train").chmod(0o755)
    await machine.check(tools, "/code/train", mounts=mounts)


async def test_a_look_leaves_nothing_and_is_remembered(
    machine: Machine, tools: PreparedImage, containerd: PrivateContainerd
) -> None:
    before = mount_points()
    await machine.check(tools, "sh")

    assert mount_points() == before
    assert list((await machine.client.call(LEASE_LIST, leases_pb2.ListRequest())).leases) == []
    containerd.kill()
    assert await machine.check(tools, "sh") == (0, 0, ())


async def test_an_image_of_very_many_layers_is_looked_into(machine: Machine, tmp_path: Path) -> None:
    image = Image().with_programs("/bin/sh")
    for number in range(100):
        image = image.layer({f"layer-{number}": File(b"")}, compressed=False)
    image.write_oci_archive(tmp_path / "x.tar")

    prepared = await machine.prepare(f"oci-archive:{tmp_path}/x.tar")

    await machine.check(prepared, "sh")
    assert (await machine.run(prepared, "sh", "-c", "echo /layer-99"))[1] == "/layer-99\n"


# host ---------------------------------------------------------------------------------------------------------------


async def test_the_machine_itself_is_an_image_that_no_container_changes(machine: Machine, tmp_path: Path) -> None:
    host = await machine.prepare("host")
    secret = machine.state_dir / "secret"
    secret.parent.mkdir(parents=True, exist_ok=True)
    secret.write_text("x")
    script = f"echo changed > /etc/astra-test; cat /etc/astra-test; ls {machine.state_dir} 2>/dev/null || :"

    await machine.check(host, "sh")
    assert await machine.run(host, "sh", "-c", script) == (ExitStatus(0), "changed\n")
    assert not Path("/etc/astra-test").exists()
    assert "/etc/astra-test" in (await machine.run(host, "sh", "-c", "ls /etc/astra-test"))[1], "each has a fresh one"
    assert list((machine.state_dir / "host").iterdir()) == []


async def test_commands_are_looked_for_as_containers_of_the_machine_see_it(machine: Machine, tmp_path: Path) -> None:
    host = await machine.prepare("host")
    hidden = machine.state_dir / "tool"
    hidden.parent.mkdir(parents=True, exist_ok=True)
    hidden.write_bytes(Path("/bin/sh").read_bytes())
    hidden.chmod(0o755)

    assert "is not in image" in await machine.refusal(host, str(hidden))
    assert "is not in image" in await machine.refusal(host, "/proc/self/exe")


@contextmanager
def file_system(at: Path) -> Iterator[Path]:
    """A file system of its own at *at*, of a kind that disks have: an overlay."""
    with tempfile.TemporaryDirectory(prefix="astra-", ignore_cleanup_errors=True) as folder:
        parts = {name: Path(folder) / name for name in ("lower", "upper", "work")}
        for part in (*parts.values(), at):
            part.mkdir(exist_ok=True)
        options = ",".join(f"{name}dir={part}" for name, part in parts.items())
        subprocess.run(["mount", "-t", "overlay", "-o", options, "astra-test", str(at)], check=True)
        try:
            yield at
        finally:
            subprocess.run(["umount", "--recursive", str(at)], check=True)


async def test_another_file_system_is_seen_and_not_changed_when_it_is_asked_for(make_machine: Make) -> None:
    machine = await make_machine()
    # Not below a /tmp that is in memory: nothing there is seen.
    with tempfile.TemporaryDirectory(prefix="astra-disk-", dir="/") as at, file_system(Path(at)) as disk:
        (disk / "there").write_text("there")
        (disk / "run").write_text("#!/bin/sh\n")
        (disk / "run").chmod(0o755)
        disk.chmod(0o751)
        script = f"stat -c %a {disk}; cat {disk}/there; echo; echo changed > {disk}/there && cat {disk}/there"
        host = await machine.prepare("host")
        assert (await machine.run(host, "sh", "-c", f"ls {disk} 2>/dev/null"))[1] == ""
        assert "is not in image" in await machine.refusal(host, f"{disk}/run")

        machine = await make_machine(shown_paths=(disk,))
        await machine.check(host, f"{disk}/run")
        assert (await machine.run(host, "sh", "-c", script))[1] == "751\nthere\nchanged\n"
        assert (disk / "there").read_text() == "there"


async def test_where_the_disk_carries_no_overlay_changes_are_kept_in_memory(make_machine: Make, tmp_path: Path) -> None:
    with file_system(tmp_path / "state") as state_dir:
        machine = await make_machine(state_dir)
        host = await machine.prepare("host")

        assert f"{state_dir}/host" in mount_points()
        assert (await machine.run(host, "sh", "-c", "echo 1 > /etc/astra-test && cat /etc/astra-test"))[1] == "1\n"
        again = await make_machine(state_dir)
        await again.prepare("host")
        assert sum(f" {state_dir}/host " in line for line in Path("/proc/self/mountinfo").read_text().splitlines()) == 1


async def test_what_a_container_wrote_is_removed_with_it(machine: Machine) -> None:
    for name in ("a-a0", "b-a0"):
        await machine.host.create(name)
    (machine.state_dir / "host" / "a-a0").rename(machine.state_dir / "host" / ".trash-killed-in-the-middle")

    await machine.host.remove("b-a0")
    await machine.host.remove("b-a0")

    assert list((machine.state_dir / "host").iterdir()) == []
