"""Images from a real registry on loopback into a real containerd: what goes well, and all the ways to fail."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import os
import ssl
import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from astra_agent.containerd.client import Client
from astra_agent.containerd.host_image import HostImage
from astra_agent.containerd.images import ContainerdImages
from astra_agent.containerd.private import PrivateContainerd
from astra_agent.containerd.proto import images_pb2, leases_pb2, namespaces_pb2, snapshots_pb2, types_pb2
from astra_agent.containerd.proto.content_pb2 import ListStatusesRequest
from astra_agent.containerd.registry_hosts import RegistryConfig
from astra_agent.containerd.rootfs import SnapshotRoot, root_of
from astra_agent.containerd.services import (
    CONTENT_STATUSES,
    IMAGE_CREATE,
    IMAGE_DELETE,
    LEASE_LIST,
    NAMESPACE_CREATE,
    SNAPSHOT_REMOVE,
    SNAPSHOT_STAT,
)
from astra_agent.errors import HostFault, InvalidRequest, NotFound, Unavailable
from astra_agent.runtime import PreparedImage
from tests.containers.images import ARCHITECTURE, File, Image, digest, push, push_index
from tests.containers.registry import DebianRegistry, Gate, certificate, free_port, silent_server

pytestmark = pytest.mark.containers

_numbers = itertools.count()
QUICK = RegistryConfig(
    docker_configs=(), certs_dirs=(), connect_timeout_s=2, read_timeout_s=2, tries=4, backoff_first_s=0.1
)
HELLO = (
    Image()
    .layer({"bin/hello": File(b"#!/bin/hello\n", 0o755), "etc/passwd": File(b"worker:x:1000:1000::/:/bin/hello\n")})
    .layer({"etc/motd": File(b"hello\n")})
    .config(Cmd=["/bin/hello"], Env=["PATH=/bin", "A=1"], WorkingDir="/work", User="worker")
)


@pytest.fixture(scope="module")
def containerd() -> Iterator[PrivateContainerd]:
    with tempfile.TemporaryDirectory(prefix="astra-", ignore_cleanup_errors=True) as folder:
        private = PrivateContainerd(Path(folder))
        asyncio.run(private.start())
        yield private
        asyncio.run(private.clean())


@pytest_asyncio.fixture
async def client(containerd: PrivateContainerd) -> AsyncIterator[Client]:
    """In a namespace of its own. What other tests pulled is there all the same, underneath: content is shared."""
    name = f"test-{next(_numbers)}"
    async with Client(containerd.socket, name) as client:
        namespace = namespaces_pb2.Namespace(name=name)
        await client.call(NAMESPACE_CREATE, namespaces_pb2.CreateNamespaceRequest(namespace=namespace))
        yield client


@pytest_asyncio.fixture
async def registry(tmp_path: Path) -> AsyncIterator[DebianRegistry]:
    async with DebianRegistry(tmp_path / "registry").running() as registry:
        yield registry


class Machine:
    """Images of one agent, and the sentences that it said."""

    def __init__(self, client: Client, state_dir: Path, config: RegistryConfig = QUICK) -> None:
        self.client = client
        self.said: list[str] = []
        self.images = ContainerdImages(client, state_dir=state_dir, host=HostImage(state_dir), registry=config)

    async def prepare(self, image: str, auth: tuple[str, str] | None = None) -> PreparedImage:
        async with asyncio.timeout(60):
            return await self.images.prepare(image, auth, self.said.append)

    async def has(self, prepared: PreparedImage) -> bool:
        root = root_of(prepared.handle)
        assert isinstance(root, SnapshotRoot)
        try:
            request = snapshots_pb2.StatSnapshotRequest(snapshotter=root.snapshotter, key=root.chain)
            await self.client.call(SNAPSHOT_STAT, request)
        except NotFound:
            return False
        return True


@pytest.fixture
def machine(client: Client, tmp_path: Path) -> Machine:
    return Machine(client, tmp_path / "state")


def unique(image: Image) -> Image:
    """With a layer that no other test has: content is shared between namespaces."""
    return image.layer({"unique": File(os.urandom(16))})


def large() -> Image:
    """A layer of 8 MB that no other test has, and a small one."""
    return unique(Image().layer({"data": File(os.urandom(8_000_000))}, compressed=False)).config(Cmd=["/data"])


async def test_a_pulled_image_is_unpacked_and_its_configuration_known(
    registry: DebianRegistry, machine: Machine
) -> None:
    await push(HELLO, registry.url, "team/hello", "1")

    prepared = await machine.prepare(f"{registry.host}/team/hello:1")

    assert await machine.has(prepared)
    assert prepared.config.command == ("/bin/hello",)
    assert prepared.config.env == {"PATH": "/bin", "A": "1"}
    assert (prepared.config.working_dir, prepared.config.user) == ("/work", "worker")


async def test_progress_says_how_much_of_how_much_and_then_that_it_unpacks(
    registry: DebianRegistry, machine: Machine
) -> None:
    await push(large(), registry.url, "team/large", "1")

    await machine.prepare(f"{registry.host}/team/large:1")

    image = f"{registry.host}/team/large:1"
    assert machine.said[0] == f"Pulling {image}"
    assert machine.said[-1] == f"Unpacking {image}: layer 2 of 2"
    assert len(machine.said) == len(set(machine.said))


async def test_an_image_that_is_there_needs_no_registry(registry: DebianRegistry, machine: Machine) -> None:
    await push(HELLO, registry.url, "team/hello", "1")
    image = f"{registry.host}/team/hello:1"
    first = await machine.prepare(image)
    registry.kill()
    machine.said.clear()

    assert await machine.prepare(image) == first
    assert machine.said == []


async def test_a_digest_is_taken_by_its_word(registry: DebianRegistry, machine: Machine) -> None:
    manifest = await push(HELLO, registry.url, "team/hello", "1")

    prepared = await machine.prepare(f"{registry.host}/team/hello@{manifest}")

    assert await machine.has(prepared)


async def test_of_several_platforms_this_machines_is_chosen(registry: DebianRegistry, machine: Machine) -> None:
    foreign = replace(unique(HELLO), architecture="s390x")
    await push_index(registry.url, "team/many", "1", foreign, HELLO)

    prepared = await machine.prepare(f"{registry.host}/team/many:1")

    assert prepared.handle == (await machine.prepare(f"{registry.host}/team/many:1-1")).handle


async def test_an_image_for_other_machines_only_is_refused_by_their_names(
    registry: DebianRegistry, machine: Machine
) -> None:
    foreign = [replace(HELLO, architecture=name) for name in ("s390x", "riscv64")]
    await push_index(registry.url, "team/foreign", "1", *foreign)

    with pytest.raises(
        InvalidRequest, match=rf"is for linux/riscv64, linux/s390x; this machine is linux/{ARCHITECTURE}"
    ):
        await machine.prepare(f"{registry.host}/team/foreign:1")
    with pytest.raises(InvalidRequest, match=r"is for linux/s390x; this machine is"):
        await machine.prepare(f"{registry.host}/team/foreign:1-0")


async def test_a_tag_that_does_not_exist_is_named(registry: DebianRegistry, machine: Machine) -> None:
    await push(HELLO, registry.url, "team/hello", "1")

    with pytest.raises(
        InvalidRequest, match=r'team/hello:2" does not exist: registry .* has no tag "2" of "team/hello"'
    ):
        await machine.prepare(f"{registry.host}/team/hello:2")


async def test_a_repository_that_does_not_exist_is_named(registry: DebianRegistry, machine: Machine) -> None:
    with pytest.raises(InvalidRequest, match=r'no/such:1" does not exist: registry 127.0.0.1:\d+ has no'):
        await machine.prepare(f"{registry.host}/no/such:1")


async def test_a_port_where_nobody_listens_is_said_to_refuse(machine: Machine) -> None:
    host = f"127.0.0.1:{free_port()}"

    with pytest.raises(
        Unavailable,
        match=rf"registry {host} does not answer: asked 4 times in \d+ s for the manifest of "
        rf'"{host}/team/x:1", the last time: .*refused',
    ):
        await machine.prepare(f"{host}/team/x:1")


async def test_a_registry_that_accepts_and_never_answers_is_given_up(client: Client, tmp_path: Path) -> None:
    machine = Machine(client, tmp_path, replace(QUICK, read_timeout_s=0.2, tries=3))
    async with silent_server() as host:
        with pytest.raises(Unavailable, match=rf"registry {host} does not answer: asked 3 times .*: silence for 0.2 s"):
            await machine.prepare(f"{host}/team/x:1")


async def test_a_pull_that_waits_for_its_registry_says_so(client: Client, tmp_path: Path) -> None:
    machine = Machine(client, tmp_path, replace(QUICK, tries=2))
    host = f"127.0.0.1:{free_port()}"

    with pytest.raises(Unavailable):
        await machine.prepare(f"{host}/team/x:1")
    assert machine.said == [
        f"Pulling {host}/team/x:1",
        f"Pulling {host}/team/x:1: registry {host} does not answer (connection refused), trying again",
    ]


async def test_a_name_without_an_address_is_said_to_have_none(client: Client, tmp_path: Path) -> None:
    machine = Machine(client, tmp_path, replace(QUICK, tries=1))

    with pytest.raises(Unavailable, match=r"registry nowhere.invalid does not answer: .*no address is known for"):
        await machine.prepare("nowhere.invalid/team/x:1")


# Credentials --------------------------------------------------------------------------------------------------------


@pytest_asyncio.fixture
async def private_registry(tmp_path: Path) -> AsyncIterator[DebianRegistry]:
    async with DebianRegistry(tmp_path / "private", users={"ada": "sesame"}).running() as registry:
        await push(HELLO, registry.url, "team/hello", "1", auth=("ada", "sesame"))
        yield registry


def docker_config(path: Path, content: object) -> tuple[Path, ...]:
    path.write_text(json.dumps(content))
    return (path,)


async def test_credentials_of_the_run_let_it_in(private_registry: DebianRegistry, machine: Machine) -> None:
    prepared = await machine.prepare(f"{private_registry.host}/team/hello:1", ("ada", "sesame"))

    assert await machine.has(prepared)


async def test_credentials_of_a_docker_configuration_let_it_in(
    private_registry: DebianRegistry, client: Client, tmp_path: Path
) -> None:
    auth = base64.b64encode(b"ada:sesame").decode()
    files = docker_config(tmp_path / "config.json", {"auths": {private_registry.host: {"auth": auth}}})
    machine = Machine(client, tmp_path, replace(QUICK, docker_configs=files))

    assert await machine.has(await machine.prepare(f"{private_registry.host}/team/hello:1"))


async def test_no_credentials_are_said_to_be_missing(private_registry: DebianRegistry, machine: Machine) -> None:
    with pytest.raises(InvalidRequest, match=r"gives image .*team/hello:1. to nobody without credentials") as raised:
        await machine.prepare(f"{private_registry.host}/team/hello:1")
    assert raised.value.field == "registry_auth"


async def test_wrong_credentials_are_said_to_be_refused_and_are_not_told(
    private_registry: DebianRegistry, machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    with pytest.raises(InvalidRequest, match=r"refuses the credentials of the run for image") as raised:
        await machine.prepare(f"{private_registry.host}/team/hello:1", ("ada", "wrong-word"))
    assert "wrong-word" not in f"{raised.value} {caplog.text}"


async def test_wrong_credentials_of_one_slot_do_not_spoil_the_pull_of_another(
    private_registry: DebianRegistry, machine: Machine
) -> None:
    image = f"{private_registry.host}/team/hello:1"

    wrong, right = await asyncio.gather(
        machine.prepare(image, ("ada", "wrong")), machine.prepare(image, ("ada", "sesame")), return_exceptions=True
    )

    assert isinstance(wrong, InvalidRequest)
    assert isinstance(right, PreparedImage)


# TLS ----------------------------------------------------------------------------------------------------------------


@pytest_asyncio.fixture
async def tls_registry(tmp_path: Path) -> AsyncIterator[tuple[DebianRegistry, Path]]:
    ca, pair = certificate(tmp_path / "authority")
    async with DebianRegistry(tmp_path / "tls", tls=pair).running() as registry:
        trusting = ssl.create_default_context(cafile=ca)
        trusting.verify_flags &= ~ssl.VERIFY_X509_STRICT
        await push(HELLO, registry.url, "team/hello", "1", ssl=trusting)
        yield registry, ca


async def test_a_private_authority_is_trusted_when_its_certificate_is_in_the_folder(
    tls_registry: tuple[DebianRegistry, Path], client: Client, tmp_path: Path
) -> None:
    registry, ca = tls_registry
    folder = tmp_path / "certs.d" / registry.host
    folder.mkdir(parents=True)
    (folder / "ca.crt").write_bytes(ca.read_bytes())
    machine = Machine(client, tmp_path, replace(QUICK, certs_dirs=(tmp_path / "certs.d",)))

    assert await machine.has(await machine.prepare(f"{registry.host}/team/hello:1"))


async def test_a_certificate_that_is_not_trusted_is_said_with_where_to_put_its_authority(
    tls_registry: tuple[DebianRegistry, Path], client: Client, tmp_path: Path
) -> None:
    registry, _ = tls_registry
    folder = tmp_path / "certs.d" / registry.host
    folder.mkdir(parents=True)
    machine = Machine(client, tmp_path, replace(QUICK, certs_dirs=(tmp_path / "certs.d",)))

    with pytest.raises(HostFault, match=rf"does not trust its certificate .* into {folder}/ca.crt"):
        await machine.prepare(f"{registry.host}/team/hello:1")


async def test_a_registry_with_tls_asked_without_is_said_to_speak_it(
    tls_registry: tuple[DebianRegistry, Path], machine: Machine
) -> None:
    with pytest.raises(HostFault, match=r"speaks TLS where plain HTTP is expected"):
        await machine.prepare(f"{tls_registry[0].host}/team/hello:1")


async def test_a_registry_without_tls_asked_with_it_is_said_to_speak_plain_http(
    registry: DebianRegistry, client: Client, tmp_path: Path
) -> None:
    (tmp_path / "certs.d" / registry.host).mkdir(parents=True)
    machine = Machine(client, tmp_path, replace(QUICK, certs_dirs=(tmp_path / "certs.d",)))

    with pytest.raises(HostFault, match=r"speaks plain HTTP where TLS is expected: name it in plain_http_registries"):
        await machine.prepare(f"{registry.host}/team/hello:1")


# In the middle ------------------------------------------------------------------------------------------------------


async def test_a_layer_goes_on_where_the_registry_died(
    registry: DebianRegistry, client: Client, tmp_path: Path
) -> None:
    image = large()
    await push(image, registry.url, "team/large", "1")
    machine = Machine(client, tmp_path, replace(QUICK, tries=20))
    async with Gate(registry.host).serving() as gate:
        gate.stop_after(3_000_000)
        pull = asyncio.create_task(machine.prepare(f"{gate.host}/team/large:1"))
        await asyncio.wait_for(gate.stopped.wait(), 30)
        registry.kill()
        gate.open()
        await asyncio.sleep(0.3)
        await registry.start()

        assert await machine.has(await pull)
        assert gate.passed_bytes < 1.5 * len(image.layers[0].blob)


async def test_a_pull_that_was_given_up_goes_on_where_it_was_for_the_next_one_who_wants_it(
    registry: DebianRegistry, client: Client, tmp_path: Path
) -> None:
    image = large()
    await push(image, registry.url, "team/large", "1")
    async with Gate(registry.host).serving() as gate:
        gate.stop_after(5_000_000)
        agent = Machine(client, tmp_path)
        pull = asyncio.create_task(agent.prepare(f"{gate.host}/team/large:1"))
        await until_received(client, 4_000_000)
        pull.cancel()
        await asyncio.wait([pull])
        gate.open()
        await unrelated_delete(client)

        next_agent = Machine(client, tmp_path)

        assert await next_agent.has(await next_agent.prepare(f"{gate.host}/team/large:1"))
        assert gate.passed_bytes < 1.5 * len(image.layers[0].blob)


async def until_received(client: Client, size_bytes: int) -> None:
    """Of a blob that is under way, so much is in the store."""
    async with asyncio.timeout(30):
        while True:
            statuses = (await client.call(CONTENT_STATUSES, ListStatusesRequest())).statuses
            if any(status.offset >= size_bytes for status in statuses):
                return
            await asyncio.sleep(0.02)


async def test_a_containerd_that_dies_in_the_middle_is_waited_for(
    registry: DebianRegistry, containerd: PrivateContainerd, machine: Machine
) -> None:
    await push(large(), registry.url, "team/large", "1")
    async with Gate(registry.host).serving() as gate:
        gate.stop_after(4_000_000)
        pull = asyncio.create_task(machine.prepare(f"{gate.host}/team/large:1"))
        await until_received(machine.client, 3_000_000)
        containerd.kill()
        gate.open()
        await containerd.start()

        assert await machine.has(await pull)


async def test_a_corrupted_layer_is_never_unpacked(registry: DebianRegistry, machine: Machine) -> None:
    image = large()
    await push(image, registry.url, "team/large", "1")
    blob = digest(image.layers[0].blob)
    file = registry.blob_file(blob)
    whole = file.read_bytes()
    file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))

    with pytest.raises(Unavailable, match=rf"what came for {blob} is corrupted: its digest is sha256:"):
        await machine.prepare(f"{registry.host}/team/large:1")

    file.write_bytes(whole)
    assert await machine.has(await machine.prepare(f"{registry.host}/team/large:1"))


async def test_a_layer_that_is_shorter_than_its_manifest_says_is_no_layer(
    registry: DebianRegistry, client: Client, tmp_path: Path
) -> None:
    machine = Machine(client, tmp_path, replace(QUICK, tries=2))
    image = large()
    await push(image, registry.url, "team/large", "1")
    file = registry.blob_file(digest(image.layers[0].blob))
    file.write_bytes(file.read_bytes()[:-5])

    with pytest.raises(Unavailable, match=r"does not answer: asked .*"):
        await machine.prepare(f"{registry.host}/team/large:1")


# Together -----------------------------------------------------------------------------------------------------------


async def test_two_pulls_of_one_image_at_once_are_one(registry: DebianRegistry, machine: Machine) -> None:
    image = large()
    await push(image, registry.url, "team/large", "1")
    name = f"{registry.host}/team/large:1"

    first, second = await asyncio.gather(machine.prepare(name), machine.prepare(name))

    assert first == second
    assert registry.asked(digest(image.layers[0].blob)) == 1


async def test_two_images_with_a_layer_in_common_fetch_it_once(registry: DebianRegistry, machine: Machine) -> None:
    base = large()
    for tag in "12":
        await push(base.layer({"tag": File(tag.encode())}), registry.url, "team/large", tag)

    both = await asyncio.gather(*(machine.prepare(f"{registry.host}/team/large:{tag}") for tag in "12"))

    assert [await machine.has(prepared) for prepared in both] == [True, True]
    assert registry.asked(digest(base.layers[0].blob)) == 1


async def test_two_agents_on_one_containerd_pull_at_the_same_time(
    registry: DebianRegistry, client: Client, tmp_path: Path
) -> None:
    await push(large(), registry.url, "team/large", "1")
    agents = [Machine(client, tmp_path / name) for name in "ab"]

    both = await asyncio.gather(*(agent.prepare(f"{registry.host}/team/large:1") for agent in agents))

    assert both[0] == both[1]


async def test_a_pull_goes_on_when_one_of_two_who_wait_gives_up(registry: DebianRegistry, machine: Machine) -> None:
    await push(large(), registry.url, "team/large", "1")
    async with Gate(registry.host).serving() as gate:
        gate.stop_after(2_000_000)
        name = f"{gate.host}/team/large:1"
        impatient, patient = (asyncio.create_task(machine.prepare(name)) for _ in range(2))
        await asyncio.wait_for(gate.stopped.wait(), 30)
        impatient.cancel()
        gate.open()

        assert await machine.has(await patient)
        assert impatient.cancelled()


async def test_a_pull_that_all_gave_up_leaves_no_task(registry: DebianRegistry, machine: Machine) -> None:
    await push(large(), registry.url, "team/large", "1")
    async with Gate(registry.host).serving() as gate:
        gate.stop_after(2_000_000)
        pull = asyncio.create_task(machine.prepare(f"{gate.host}/team/large:1"))
        await asyncio.wait_for(gate.stopped.wait(), 30)
        before = asyncio.all_tasks() - {pull}
        pull.cancel()
        await asyncio.wait([pull])

        assert not [task for task in asyncio.all_tasks() - {asyncio.current_task()} if "_prepare" in repr(task)]
        assert before


# What is kept -------------------------------------------------------------------------------------------------------


async def unrelated_delete(client: Client) -> None:
    """Makes the collector run, and waits for it."""
    target = types_pb2.Descriptor(media_type="application/octet-stream", digest=f"sha256:{'0' * 64}", size=1)
    image = images_pb2.Image(name="unrelated", target=target)
    await client.call(IMAGE_CREATE, images_pb2.CreateImageRequest(image=image))
    await client.call(IMAGE_DELETE, images_pb2.DeleteImageRequest(name="unrelated", sync=True))


async def test_the_collector_takes_nothing_of_a_pulled_image(registry: DebianRegistry, machine: Machine) -> None:
    await push(large(), registry.url, "team/large", "1")
    name = f"{registry.host}/team/large:1"
    prepared = await machine.prepare(name)

    for _ in range(5):
        await unrelated_delete(machine.client)
    registry.kill()

    assert await machine.has(prepared)
    assert await machine.prepare(name) == prepared
    assert await leases(machine.client) == []
    statuses = await machine.client.call(CONTENT_STATUSES, ListStatusesRequest())
    assert list(statuses.statuses) == []


async def test_a_snapshot_that_was_lost_is_unpacked_again(registry: DebianRegistry, machine: Machine) -> None:
    await push(HELLO, registry.url, "team/hello", "1")
    name = f"{registry.host}/team/hello:1"
    prepared = await machine.prepare(name)
    root = root_of(prepared.handle)
    assert isinstance(root, SnapshotRoot)
    remove = snapshots_pb2.RemoveSnapshotRequest(snapshotter=root.snapshotter, key=root.chain)
    await machine.client.call(SNAPSHOT_REMOVE, remove)

    assert await machine.prepare(name) == prepared
    assert await machine.has(prepared)


async def leases(client: Client) -> list[str]:
    return [lease.id for lease in (await client.call(LEASE_LIST, leases_pb2.ListRequest())).leases]


# Mirrors ------------------------------------------------------------------------------------------------------------


async def test_a_mirror_is_asked_first(registry: DebianRegistry, client: Client, tmp_path: Path) -> None:
    await push(HELLO, registry.url, "library/hello", "1")
    machine = Machine(client, tmp_path, replace(QUICK, mirrors={"docker.io": (registry.url,)}))

    assert await machine.has(await machine.prepare("hello:1"))


async def test_a_mirror_that_is_away_is_passed_over(registry: DebianRegistry, client: Client, tmp_path: Path) -> None:
    await push(HELLO, registry.url, "team/hello", "1")
    away = f"http://127.0.0.1:{free_port()}"
    machine = Machine(client, tmp_path, replace(QUICK, mirrors={registry.host: (away,)}))

    assert await machine.has(await machine.prepare(f"{registry.host}/team/hello:1"))
