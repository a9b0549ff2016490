"""Images in tars: both forms, one of several, and everything that is none."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from astra_agent.containerd.archive import open_archive, stamp
from astra_agent.containerd.oci import Descriptor, Manifest, Platform
from astra_agent.containerd.reference import Archive, parse_image
from astra_agent.errors import InvalidRequest
from tests.containers.images import ARCHITECTURE, OCI_MANIFEST, File, Image, descriptor, digest, index_of, tar_of

MACHINE = Platform("linux", ARCHITECTURE)
IMAGE = Image().layer({"a": File(b"1")}).layer({"b": File(b"2" * 3_000_000)}, compressed=False).config(Cmd=["x"])


def archive(kind: str, path: Path, name: str = "") -> Archive:
    parsed = parse_image(f"{kind}:{path}" + (f":{name}" if name else ""))
    assert isinstance(parsed, Archive)
    return parsed


async def read(wanted: Archive) -> tuple[Manifest, bytes, list[bytes]]:
    """Manifest, configuration, layers."""
    origin = await open_archive(wanted, MACHINE)
    manifest = await origin.manifest()
    layers = [b"".join([chunk async for chunk in origin.blob(layer, 0)]) for layer in manifest.layers]
    return manifest, await origin.small(manifest.config), layers


async def test_an_oci_archive_is_read_as_it_is(tmp_path: Path) -> None:
    IMAGE.write_oci_archive(tmp_path / "x.tar")

    manifest, config, layers = await read(archive("oci-archive", tmp_path / "x.tar"))

    assert (manifest.raw, config) == (IMAGE.manifest, IMAGE.configuration)
    assert layers == [layer.blob for layer in IMAGE.layers]


async def test_what_docker_saves_gets_a_manifest(tmp_path: Path) -> None:
    IMAGE.write_docker_archive(tmp_path / "x.tar", "hello:1")

    manifest, config, layers = await read(archive("docker-archive", tmp_path / "x.tar"))

    assert config == IMAGE.configuration
    assert layers == [layer.blob for layer in IMAGE.layers]
    assert [layer.digest for layer in manifest.layers] == [digest(layer.blob) for layer in IMAGE.layers]


async def test_a_layer_that_docker_saved_as_a_link_is_the_one_it_leads_to(tmp_path: Path) -> None:
    saved = [{"Config": "c.json", "RepoTags": None, "Layers": ["1/layer.tar", "2/layer.tar"]}]
    with tarfile.open(tmp_path / "x.tar", "w") as tar:
        for name, content in {
            "c.json": IMAGE.configuration,
            "manifest.json": json.dumps(saved).encode(),
            "1/layer.tar": IMAGE.layers[0].tar,
        }.items():
            info = tarfile.TarInfo(f"./{name}")
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
        link = tarfile.TarInfo("2/layer.tar")
        link.type, link.linkname = tarfile.SYMTYPE, "../1/layer.tar"
        tar.addfile(link)

    _, _, layers = await read(archive("docker-archive", tmp_path / "x.tar"))

    assert layers == [IMAGE.layers[0].tar, IMAGE.layers[0].tar]


@pytest.mark.parametrize("kind", ["oci-archive", "docker-archive"])
async def test_a_name_chooses_one_of_several(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "x.tar"
    write = IMAGE.write_oci_archive if kind == "oci-archive" else IMAGE.write_docker_archive
    write(path, "hello:1", "hello:2")

    assert (await read(archive(kind, path, "hello:2")))[1] == IMAGE.configuration
    with pytest.raises(InvalidRequest, match=r"which of them\? .* holds hello:1, hello:2; append one, as in …:hello:1"):
        await read(archive(kind, path, "hello:3"))


async def test_an_archive_for_several_platforms_gives_this_machines(tmp_path: Path) -> None:
    foreign = Image(architecture="s390x").layer({"a": File(b"1")})
    index = index_of(foreign, IMAGE)
    blobs = (*IMAGE.blobs, IMAGE.manifest, foreign.manifest, index)
    files = {f"blobs/sha256/{digest(blob)[7:]}": File(blob) for blob in blobs}
    outer = {"manifests": [descriptor(index, "application/vnd.oci.image.index.v1+json")]}
    files["index.json"] = File(json.dumps(outer).encode())
    (tmp_path / "x.tar").write_bytes(tar_of(files))

    assert (await read(archive("oci-archive", tmp_path / "x.tar")))[0].raw == IMAGE.manifest


def as_gzip(path: Path) -> None:
    IMAGE.write_oci_archive(path)
    path.write_bytes(gzip.compress(path.read_bytes()))


def as_text(path: Path) -> None:
    path.write_text("no tar\n" * 1000)


def as_folder(path: Path) -> None:
    path.mkdir()


def as_nothing(path: Path) -> None:
    pass


def as_docker(path: Path) -> None:
    IMAGE.write_docker_archive(path)


def as_some_tar(path: Path) -> None:
    path.write_bytes(tar_of({"readme": File(b"hello")}))


def as_cut_off(path: Path) -> None:
    IMAGE.write_oci_archive(path)
    path.write_bytes(path.read_bytes()[:100_000])


def without_its_manifest(path: Path) -> None:
    entry = descriptor(IMAGE.manifest, OCI_MANIFEST)
    path.write_bytes(tar_of({"index.json": File(json.dumps({"manifests": [entry]}).encode())}))


def with_a_changed_manifest(path: Path) -> None:
    entry = descriptor(IMAGE.manifest, OCI_MANIFEST)
    name = f"blobs/sha256/{digest(IMAGE.manifest)[7:]}"
    index = json.dumps({"manifests": [entry]}).encode()
    path.write_bytes(tar_of({"index.json": File(index), name: File(IMAGE.manifest + b" ")}))


@pytest.mark.parametrize(
    ("write", "sentence"),
    [
        (as_nothing, "can't be read on this machine: No such file or directory"),
        (as_folder, "can't be read on this machine: Is a directory"),
        (as_gzip, "is compressed with gzip: decompress it first"),
        (as_text, "is no tar"),
        (as_some_tar, "is not an OCI image layout"),
        (as_docker, "is not an OCI image layout; write docker-archive:"),
        (as_cut_off, "is "),
        (without_its_manifest, "is incomplete: there is no blobs/sha256/"),
        (with_a_changed_manifest, "was changed"),
    ],
)
async def test_what_is_no_archive_is_told_why(tmp_path: Path, write: Callable[[Path], None], sentence: str) -> None:
    write(tmp_path / "x.tar")

    with pytest.raises(InvalidRequest) as raised:
        await read(archive("oci-archive", tmp_path / "x.tar"))
    assert sentence in str(raised.value)
    assert str(raised.value).startswith(f'image "oci-archive:{tmp_path}/x.tar"')


async def test_a_layer_of_another_size_is_refused(tmp_path: Path) -> None:
    IMAGE.write_oci_archive(tmp_path / "x.tar")
    origin = await open_archive(archive("oci-archive", tmp_path / "x.tar"), MACHINE)
    layer = (await origin.manifest()).layers[0]

    with pytest.raises(InvalidRequest, match="has another size"):
        origin.blob(Descriptor(layer.media_type, layer.digest, layer.size + 1), 0)


def test_a_stamp_changes_with_the_file(tmp_path: Path) -> None:
    (tmp_path / "x.tar").write_bytes(b"1")
    before = stamp(archive("oci-archive", tmp_path / "x.tar"))
    (tmp_path / "x.tar").write_bytes(b"22")

    assert stamp(archive("oci-archive", tmp_path / "x.tar")) != before
