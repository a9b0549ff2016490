"""What a run's `image` may be, and what is said to anything else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astra_agent.containerd.reference import Archive, Host, Reference, parse_image, parse_reference
from astra_agent.errors import InvalidRequest

DIGEST = f"sha256:{'a' * 64}"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("busybox", "docker.io/library/busybox:latest"),
        ("busybox:1.36", "docker.io/library/busybox:1.36"),
        ("docker.io/busybox", "docker.io/library/busybox:latest"),
        ("index.docker.io/a/b:c", "docker.io/a/b:c"),
        ("a/b", "docker.io/a/b:latest"),
        ("ghcr.io/a/b/c:v1", "ghcr.io/a/b/c:v1"),
        ("localhost/a", "localhost/a:latest"),
        ("localhost:5000/a", "localhost:5000/a:latest"),
        ("localhost:5000/a:1", "localhost:5000/a:1"),
        ("10.0.0.1:5000/team/x", "10.0.0.1:5000/team/x:latest"),
        ("[::1]:5000/a:1", "[::1]:5000/a:1"),
        (f"busybox@{DIGEST}", f"docker.io/library/busybox@{DIGEST}"),
        (f"busybox:1.36@{DIGEST}", f"docker.io/library/busybox@{DIGEST}"),
        ("a__b/c.d-e--f:_x.Y-Z", "docker.io/a__b/c.d-e--f:_x.Y-Z"),
        ("nvcr.io/nvidia/pytorch:24.08-py3", "nvcr.io/nvidia/pytorch:24.08-py3"),
    ],
)
def test_a_reference_has_one_full_name(text: str, name: str) -> None:
    assert parse_reference(text).name == name


def test_a_full_name_means_itself() -> None:
    name = parse_reference("busybox:1.36").name

    assert parse_reference(name).name == name


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "image is empty: name an image such as"),
        ("Busybox", '"Busybox" must be lower case: "busybox"'),
        ("bus ybox", "it has white space in it"),
        ("https://ghcr.io/a", "it is a URL; leave out https://"),
        ("busybox:", '"" is no tag'),
        ("busybox:a/b:", '"" is no tag'),
        ("busybox:-x", '"-x" is no tag'),
        ("busybox@sha256:12", '"sha256:12" is no digest; one is sha256: and 64 hexadecimal digits'),
        ("a//b", "\"\" can't be part of an image's name"),
        ("-a", '"-a" can\'t be part'),
        ("gh_cr.io/a", '"gh_cr.io" is no registry'),
        (f"x.io/{'a' * 255}", "longer than 255 characters"),
    ],
)
def test_what_is_no_reference_is_told_why(text: str, sentence: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        parse_reference(text)
    assert sentence in str(raised.value)
    assert raised.value.field == "image"


def test_the_machines_own_file_system_is_an_image() -> None:
    assert parse_image("host") == Host()


@pytest.mark.parametrize(
    ("text", "archive"),
    [
        ("oci-archive:/x/y.tar", Archive("oci-archive", "/x/y.tar")),
        ("docker-archive:/x.tar:busybox:1.36", Archive("docker-archive", "/x.tar", "busybox:1.36")),
    ],
)
def test_archives_are_images_and_print_as_they_were_written(text: str, archive: Archive) -> None:
    assert parse_image(text) == archive
    assert str(archive) == text


@pytest.mark.parametrize("text", ["oci-archive:x.tar", "oci-archive:", "docker-archive:./x.tar"])
def test_a_relative_archive_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="the path of an archive is absolute, such as"):
        parse_image(text)


@given(st.text(max_size=40))
def test_any_text_is_an_image_or_a_sentence(text: str) -> None:
    try:
        parsed = parse_image(text)
    except InvalidRequest:
        return
    if isinstance(parsed, Reference):
        assert parse_reference(parsed.name).name == parsed.name
