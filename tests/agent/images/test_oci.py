"""Manifests, indexes and configurations, right and wrong."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astra_agent.containerd.oci import (
    DOCKER_INDEX,
    DOCKER_MANIFEST,
    OCI_INDEX,
    OCI_MANIFEST,
    Choice,
    Descriptor,
    Platform,
    chain_ids,
    check_platform,
    choose,
    digest_of,
    machine_platform,
    media_type_of,
    parse_configuration,
    parse_index,
    parse_manifest,
)
from astra_agent.errors import InvalidRequest
from tests.containers.images import File, Image, index_of

AMD64, ARM64 = Platform("linux", "amd64"), Platform("linux", "arm64", "v8")
IMAGE = Image().layer({"a": File(b"1")}).layer({"b": File(b"2")}).config(Env=["A=b=c", "D"], Cmd=["x"])


def choice(text: str) -> Choice:
    os, architecture, *variant = text.split("/")
    return Choice(Descriptor(OCI_MANIFEST, text, 1), Platform(os, architecture, *variant), None)


@pytest.mark.parametrize(
    ("there", "machine", "chosen"),
    [
        (["linux/arm64/v8", "linux/amd64"], AMD64, "linux/amd64"),
        (["linux/arm/v7", "linux/arm64/v8", "linux/amd64"], ARM64, "linux/arm64/v8"),
        (["linux/arm64", "linux/amd64"], ARM64, "linux/arm64"),
        (["linux/arm64", "linux/arm64/v8"], ARM64, "linux/arm64/v8"),
        (["windows/amd64", "linux/amd64/v1"], AMD64, "linux/amd64/v1"),
        (["linux/amd64/v3", "linux/amd64"], AMD64, "linux/amd64"),
    ],
)
def test_the_entry_for_this_machine_is_chosen(there: list[str], machine: Platform, chosen: str) -> None:
    assert choose(map(choice, there), machine, "x").digest == chosen


def test_a_missing_platform_is_refused_with_those_that_are_there() -> None:
    there = map(choice, ["linux/s390x", "linux/arm/v7", "unknown/unknown"])

    with pytest.raises(InvalidRequest, match='image "x" is for linux/arm/v7, linux/s390x; this machine is linux/amd64'):
        choose(there, AMD64, "x")


def test_machines_have_the_names_of_images() -> None:
    assert (machine_platform("x86_64"), machine_platform("aarch64")) == (AMD64, ARM64)


def test_an_index_and_its_manifests_are_read() -> None:
    entries = parse_index(index_of(IMAGE), "x")
    manifest = parse_manifest(IMAGE.manifest, OCI_MANIFEST, "x")

    assert [entry.descriptor for entry in entries] == [manifest.descriptor]
    assert manifest.descriptor.digest == digest_of(IMAGE.manifest)
    assert [layer.size for layer in manifest.layers] == [len(layer.blob) for layer in IMAGE.layers]


def test_dockers_media_types_are_read_as_well() -> None:
    manifest: Any = json.loads(IMAGE.manifest)
    manifest["config"]["mediaType"] = "application/vnd.docker.container.image.v1+json"
    for layer in manifest["layers"]:
        layer["mediaType"] = "application/vnd.docker.image.rootfs.diff.tar.gzip"

    assert len(parse_manifest(json.dumps(manifest).encode(), DOCKER_MANIFEST, "x").layers) == 2


def test_a_configuration_becomes_what_a_container_starts_with() -> None:
    configuration = parse_configuration(IMAGE.configuration, 2, "x")

    assert configuration.image.env == {"A": "b=c", "D": ""}
    assert (configuration.image.entrypoint, configuration.image.command) == ((), ("x",))
    assert (configuration.image.working_dir, configuration.image.user) == ("/", "")


def test_nulls_in_a_configuration_mean_nothing() -> None:
    raw: Any = json.loads(IMAGE.configuration)
    raw["config"] = dict.fromkeys(("Env", "Entrypoint", "Cmd", "WorkingDir", "User"))

    assert parse_configuration(json.dumps(raw).encode(), 2, "x").image.command == ()
    raw["config"] = None
    assert parse_configuration(json.dumps(raw).encode(), 2, "x").image.env == {}


def test_chain_ids_are_containerds() -> None:
    first, second = f"sha256:{'1' * 64}", f"sha256:{'2' * 64}"

    assert chain_ids([first]) == (first,)
    assert chain_ids([first, second])[1] == digest_of(f"{first} {second}".encode())


@pytest.mark.parametrize(
    ("raw", "media_type", "sentence"),
    [
        (b"{}", "application/vnd.docker.distribution.manifest.v1+prettyjws", "in Docker's form of before 2016"),
        (b"{}", "text/html", 'no container image: the registry has a "text/html" there'),
        (b"{}", OCI_MANIFEST, 'is broken: its manifest is wrong at "config"'),
        (b"no json", OCI_MANIFEST, "is broken: its manifest is wrong"),
        (b'{"config": {"digest": "x", "size": 1}, "layers": []}', OCI_MANIFEST, 'wrong at "config.digest"'),
    ],
)
def test_what_is_no_manifest_is_told_why(raw: bytes, media_type: str, sentence: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        parse_manifest(raw, media_type, "x")
    assert sentence in str(raised.value)


def test_an_artifact_that_is_no_image_is_named() -> None:
    raw: Any = json.loads(IMAGE.manifest)
    raw["config"]["mediaType"] = "application/vnd.cncf.helm.config.v1+json"

    with pytest.raises(InvalidRequest, match=r'an artifact of the type "application/vnd.cncf.helm'):
        parse_manifest(json.dumps(raw).encode(), OCI_MANIFEST, "x")


def test_a_layer_that_nobody_can_unpack_is_named() -> None:
    raw: Any = json.loads(IMAGE.manifest)
    raw["layers"][0]["mediaType"] += "+encrypted"

    with pytest.raises(InvalidRequest, match=r'has a layer of the unknown type ".*\+encrypted"'):
        parse_manifest(json.dumps(raw).encode(), OCI_MANIFEST, "x")


def test_a_configuration_of_another_image_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="its manifest has 3 layers, its configuration 2"):
        parse_configuration(IMAGE.configuration, 3, "x")


def test_an_image_without_an_index_must_be_for_this_machine() -> None:
    check_platform(Platform("", ""), AMD64, "x")
    check_platform(Platform("linux", "arm64"), ARM64, "x")
    with pytest.raises(InvalidRequest, match="is for linux/arm64/v8; this machine is linux/amd64"):
        check_platform(ARM64, AMD64, "x")


@pytest.mark.parametrize(
    ("raw", "media_type"),
    [
        (b'{"mediaType": "x/y"}', "x/y"),
        (b'{"manifests": []}', OCI_INDEX),
        (b'{"config": {}}', OCI_MANIFEST),
        (json.dumps({"mediaType": DOCKER_INDEX}).encode(), DOCKER_INDEX),
    ],
)
def test_a_manifest_says_what_it_is_where_nobody_else_does(raw: bytes, media_type: str) -> None:
    assert media_type_of(raw, "x") == media_type


@given(st.binary(max_size=200))
def test_any_bytes_are_an_image_or_a_sentence(raw: bytes) -> None:
    for parse in (
        lambda: parse_index(raw, "x"),
        lambda: parse_manifest(raw, OCI_MANIFEST, "x"),
        lambda: parse_configuration(raw, 1, "x"),
    ):
        with pytest.raises(InvalidRequest):
            parse()
    with suppress(InvalidRequest):
        assert media_type_of(raw, "x")  # any JSON object may be a manifest
