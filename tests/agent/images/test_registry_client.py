"""The registry client against a registry that does what the test says: tokens, redirects, ranges, patience."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio
from aiohttp import web

from astra_agent.containerd.oci import Descriptor, Manifest, machine_platform
from astra_agent.containerd.reference import parse_reference
from astra_agent.containerd.registry import RegistryImage
from astra_agent.containerd.registry_auth import parse_challenges
from astra_agent.containerd.registry_hosts import RegistryConfig, endpoints
from astra_agent.errors import InvalidRequest, Unavailable
from tests.agent.images.registry import FakeRegistry
from tests.containers.images import ARCHITECTURE, File, Image

QUICK = RegistryConfig(
    docker_configs=(), certs_dirs=(), read_timeout_s=5, tries=3, backoff_first_s=0.01, backoff_longest_s=0.02
)
IMAGE = Image().layer({"a": File(bytes(range(256)) * 1000)}, compressed=False)
LAYER = IMAGE.layers[0].blob
ADA = ("ada", "sesame")


@pytest_asyncio.fixture
async def registry() -> AsyncIterator[FakeRegistry]:
    async with FakeRegistry(IMAGE).serving() as registry:
        yield registry


def image(registry: FakeRegistry, own: tuple[str, str] | None = None, config: RegistryConfig = QUICK) -> RegistryImage:
    text = f"{registry.host}/a/b:1"
    machine = {"amd64": "x86_64", "arm64": "aarch64"}.get(ARCHITECTURE, ARCHITECTURE)
    return RegistryImage(parse_reference(text), text, own, machine_platform(machine), config)


async def pulled(origin: RegistryImage, offset: int = 0) -> bytes:
    async with origin:
        manifest = await origin.manifest()
        return b"".join([chunk async for chunk in origin.blob(manifest.layers[0], offset)])


async def manifest_of(origin: RegistryImage) -> Manifest:
    async with origin:
        return await origin.manifest()


# Credentials --------------------------------------------------------------------------------------------------------


async def test_a_token_is_fetched_from_where_the_registry_says_and_used_again(registry: FakeRegistry) -> None:
    registry.token = "t1"

    assert await pulled(image(registry)) == LAYER
    assert registry.paths("/token") == ["/token?scope=repository:a/b:pull&service=s#"]


async def test_credentials_go_to_the_token_service_and_the_token_to_the_registry(registry: FakeRegistry) -> None:
    registry.token = "t1"

    await pulled(image(registry, ADA))

    basic = "Basic " + base64.b64encode(b"ada:sesame").decode()
    by_path = {request.path.partition("?")[0]: request.authorization for request in registry.asked}
    assert by_path["/token"] == basic
    assert by_path["/v2/a/b/manifests/1"] == "Bearer t1"


async def test_an_access_token_is_a_token(registry: FakeRegistry) -> None:
    registry.token, registry.token_answer = "t1", {"access_token": "t1", "expires_in": 60}

    assert await pulled(image(registry)) == LAYER


async def test_a_token_that_expired_is_fetched_anew(registry: FakeRegistry) -> None:
    registry.token = "t1"
    async with image(registry) as origin:
        manifest = await origin.manifest()
        registry.token = "t2"

        blob = b"".join([chunk async for chunk in origin.blob(manifest.layers[0], 0)])

    assert blob == LAYER
    assert len(registry.paths("/token")) == 2


async def test_an_identity_token_is_exchanged(registry: FakeRegistry, tmp_path: Path) -> None:
    registry.token = "t1"
    file = tmp_path / "config.json"
    file.write_text(f'{{"auths": {{"{registry.host}": {{"identitytoken": "i"}}}}}}')

    await pulled(image(registry, config=replace(QUICK, docker_configs=(file,))))

    assert "grant_type=refresh_token&refresh_token=i" in registry.paths("/token")[0]


async def test_basic_credentials_are_shown_when_asked_for(registry: FakeRegistry) -> None:
    registry.basic = "Basic " + base64.b64encode(b"ada:sesame").decode()

    assert await pulled(image(registry, ADA)) == LAYER
    assert registry.asked[0].authorization is None


async def test_a_token_service_without_a_token_is_told(registry: FakeRegistry) -> None:
    registry.token, registry.token_answer = "t1", {"token": None}

    with pytest.raises(Unavailable, match=r"its token service 127\.0\.0\.1 answers without a token"):
        await manifest_of(image(registry))


async def test_credentials_are_not_sent_along_a_redirect(registry: FakeRegistry) -> None:
    registry.token = "t1"
    async with FakeRegistry(IMAGE).serving() as elsewhere:
        registry.blobs_at = f"http://{elsewhere.host}/blob"

        assert await pulled(image(registry, ADA)) == LAYER
        assert [request.authorization for request in elsewhere.asked] == [None]


async def test_redirects_without_end_are_given_up(registry: FakeRegistry) -> None:
    registry.failures = [
        web.Response(status=302, headers={"Location": "/v2/a/b/manifests/1"}) for _ in range(6 * QUICK.tries)
    ]

    with pytest.raises(Unavailable, match="it points on and on"):
        await manifest_of(image(registry))


# Patience -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
async def test_a_registry_that_fails_for_a_while_is_asked_again(registry: FakeRegistry, status: int) -> None:
    registry.failures = [web.Response(status=status, headers={"Retry-After": "0"}) for _ in range(2)]

    assert await pulled(image(registry)) == LAYER


async def test_a_registry_that_fails_for_good_is_told_with_what_it_says(registry: FakeRegistry) -> None:
    registry.failures = [web.Response(status=503) for _ in range(3)]

    with pytest.raises(Unavailable, match=r"does not answer: asked 3 times in 0 s .* the last time: HTTP 503"):
        await manifest_of(image(registry))


async def test_a_layer_goes_on_where_the_connection_ended(registry: FakeRegistry) -> None:
    registry.cut_after = len(LAYER) // 3 + 1

    assert await pulled(image(registry)) == LAYER
    assert [request.range for request in registry.asked if "/blobs/" in request.path] == [
        None,
        f"bytes={registry.cut_after}-",
        f"bytes={2 * registry.cut_after}-",
    ]


async def test_a_layer_goes_on_without_ranges_too(registry: FakeRegistry) -> None:
    registry.knows_ranges = False

    assert await pulled(image(registry), offset=1000) == LAYER[1000:]


async def test_progress_makes_patience_start_anew(registry: FakeRegistry) -> None:
    registry.cut_after = len(LAYER) // 10

    assert await pulled(image(registry)) == LAYER


# Answers ------------------------------------------------------------------------------------------------------------


async def test_a_manifest_without_a_media_type_says_itself_what_it_is(registry: FakeRegistry) -> None:
    registry.media_type = "application/json"

    assert await pulled(image(registry)) == LAYER


async def test_a_page_for_people_is_no_manifest(registry: FakeRegistry) -> None:
    registry.failures = [web.Response(text="<html>welcome</html>", content_type="text/html")]

    with pytest.raises(InvalidRequest, match="is broken: its manifest is wrong"):
        await manifest_of(image(registry))


async def test_a_teapot_is_told_with_its_words(registry: FakeRegistry) -> None:
    registry.failures = [web.Response(status=418, text="short\nand stout")]

    with pytest.raises(Unavailable, match=r"answers HTTP 418 when asked for the manifest .*: short and stout"):
        await manifest_of(image(registry))


async def test_a_small_blob_with_another_digest_is_refused(registry: FakeRegistry) -> None:
    async with image(registry) as origin:
        config = (await origin.manifest()).config
        registry.image = replace(IMAGE, run={"Cmd": ["x"]})

        with pytest.raises(Unavailable):
            await origin.small(Descriptor(config.media_type, config.digest, config.size))


async def test_a_mirror_gets_no_credentials_of_the_run(registry: FakeRegistry) -> None:
    registry.basic = "Basic xyz"
    async with FakeRegistry(IMAGE).serving() as upstream:
        config = replace(QUICK, mirrors={upstream.host: (f"http://{registry.host}",)})

        assert await pulled(image(upstream, ADA, config)) == LAYER

    assert {request.authorization for request in registry.asked} == {None}
    assert registry.asked[0].path.endswith(f"?ns={upstream.host}")


# Where to ask -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("registry_name", "url"),
    [
        ("docker.io", "https://registry-1.docker.io"),
        ("ghcr.io", "https://ghcr.io"),
        ("r.lan:5000", "https://r.lan:5000"),
        ("plain.lan:5000", "http://plain.lan:5000"),
        ("localhost:5000", "http://localhost:5000"),
        ("127.0.0.1:5000", "http://127.0.0.1:5000"),
        ("[::1]:5000", "http://[::1]:5000"),
    ],
)
def test_plain_http_is_for_loopback_and_for_what_is_named(registry_name: str, url: str) -> None:
    config = replace(QUICK, plain_http_registries=("plain.lan:5000",))

    assert str(endpoints(registry_name, config)[-1].base) == url


def test_a_folder_of_certificates_makes_a_loopback_registry_speak_tls(tmp_path: Path) -> None:
    (tmp_path / "localhost:5000").mkdir()

    found = endpoints("localhost:5000", replace(QUICK, certs_dirs=(tmp_path,)))

    assert found[0].base.scheme == "https"


def test_a_mirror_that_is_no_url_is_refused() -> None:
    with pytest.raises(InvalidRequest, match=r'mirrors: "mirror\.lan" of docker\.io is no URL'):
        RegistryConfig(mirrors={"docker.io": ("mirror.lan",)})


@pytest.mark.parametrize(
    ("header", "schemes"),
    [
        ('Bearer realm="https://a/token",service="s",scope="repository:a/b:pull,push"', ["bearer"]),
        ("Basic realm=x, Bearer realm=y", ["basic", "bearer"]),
        ('Negotiate, Basic realm="a, b"', ["negotiate", "basic"]),
        ("", []),
        ("=== ,,, ===", []),
    ],
)
def test_challenges_are_read_in_every_form(header: str, schemes: list[str]) -> None:
    assert [challenge.scheme for challenge in parse_challenges([header])] == schemes
