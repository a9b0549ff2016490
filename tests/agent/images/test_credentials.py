"""Where credentials for a registry are found, and that they are told to nobody."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from astra_agent.containerd.credentials import Credentials, Found, find_credentials
from astra_agent.containerd.registry_hosts import RegistryConfig

Helper = Callable[[str, str], None]


def config(*files: Path) -> RegistryConfig:
    return RegistryConfig(docker_configs=files, helper_timeout_s=5.0)


def docker_config(path: Path, **content: object) -> Path:
    path.write_text(json.dumps(content))
    return path


def auth(user: str, password: str) -> dict[str, str]:
    return {"auth": base64.b64encode(f"{user}:{password}".encode()).decode()}


@pytest.fixture
def helper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Helper:
    """Installs a program `docker-credential-<name>` for this test."""
    folder = tmp_path / "helpers"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")

    def install(name: str, script: str) -> None:
        program = folder / f"docker-credential-{name}"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)

    return install


async def test_those_of_the_run_come_first(tmp_path: Path) -> None:
    file = docker_config(tmp_path / "a", auths={"r.io": auth("file", "x")})

    found = await find_credentials("r.io", ("run", "word"), config(file))

    assert found.credentials is not None
    assert (found.credentials.source, found.credentials.username) == ("the run", "run")


@pytest.mark.parametrize("key", ["r.io:5000", "https://r.io:5000", "http://r.io:5000/v2/", "https://r.io:5000/v1/"])
async def test_a_file_may_name_the_registry_as_a_url(tmp_path: Path, key: str) -> None:
    file = docker_config(tmp_path / "a", auths={"r.io": auth("other", "x"), key: auth("ada", "se:same")})

    found = await find_credentials("r.io:5000", None, config(file))

    assert found.credentials == Credentials(str(file), "ada", "se:same")


async def test_docker_hub_has_an_old_name_in_files(tmp_path: Path) -> None:
    file = docker_config(tmp_path / "a", auths={"https://index.docker.io/v1/": auth("ada", "x")})

    assert (await find_credentials("docker.io", None, config(file))).credentials is not None


async def test_the_first_file_that_has_some_is_taken(tmp_path: Path) -> None:
    files = [docker_config(tmp_path / name, auths={"r.io": auth(name, "x")}) for name in "bc"]

    found = await find_credentials("r.io", None, config(tmp_path / "missing", *files))

    assert found.credentials == Credentials(str(files[0]), "b", "x")


async def test_an_identity_token_is_one(tmp_path: Path) -> None:
    file = docker_config(tmp_path / "a", auths={"r.io": {"auth": "", "identitytoken": "t"}})

    assert (await find_credentials("r.io", None, config(file))).credentials == Credentials(str(file), "", "", "t")


async def test_a_helper_for_this_registry_comes_before_the_store_and_the_file(tmp_path: Path, helper: Helper) -> None:
    helper("own", 'read server; echo "{\\"Username\\": \\"$1-$server\\", \\"Secret\\": \\"s\\"}"')
    helper("all", "exit 1")
    content = {"credHelpers": {"r.io": "own"}, "credsStore": "all", "auths": {"r.io": auth("file", "x")}}

    found = await find_credentials("r.io", None, config(docker_config(tmp_path / "a", **content)))

    assert found == Found(Credentials("docker-credential-own", "get-r.io", "s"))


async def test_a_helper_may_give_an_identity_token(tmp_path: Path, helper: Helper) -> None:
    helper("all", 'echo "{\\"Username\\": \\"<token>\\", \\"Secret\\": \\"s\\"}"')

    found = await find_credentials("r.io", None, config(docker_config(tmp_path / "a", credsStore="all")))

    assert found == Found(Credentials("docker-credential-all", identity_token="s"))


async def test_a_store_that_has_none_is_no_failure(tmp_path: Path, helper: Helper) -> None:
    helper("all", "echo 'credentials not found in native keychain'; exit 1")
    file = docker_config(tmp_path / "a", credsStore="all", auths={"r.io": auth("file", "x")})

    assert await find_credentials("r.io", None, config(file)) == Found(Credentials(str(file), "file", "x"))


@pytest.mark.parametrize(
    ("script", "note"),
    [
        ("echo locked; exit 3", "docker-credential-all failed with exit code 3"),
        ("echo '{'", "docker-credential-all answered something else than credentials"),
        ("exec sleep 30", "docker-credential-all did not answer within 0.2 s"),
    ],
)
async def test_a_helper_that_fails_is_noted_and_passed_over(
    tmp_path: Path, helper: Helper, script: str, note: str
) -> None:
    helper("all", script)
    file = docker_config(tmp_path / "a", credsStore="all")

    found = await find_credentials("r.io", None, RegistryConfig(docker_configs=(file,), helper_timeout_s=0.2))

    assert found == Found(None, (note,))


@pytest.mark.parametrize(("name", "note"), [("no-such", "is not installed"), ("../x", "which is no name of a program")])
async def test_a_helper_that_is_none_is_noted(tmp_path: Path, name: str, note: str) -> None:
    found = await find_credentials("r.io", None, config(docker_config(tmp_path / "a", credsStore=name)))

    assert found.credentials is None
    assert note in found.notes[0]


@pytest.mark.parametrize(
    "text", ["no json", '{"auths": 1}', '{"auths": {"r.io": {"auth": 5}}}', "[]", '{"auths": null}']
)
async def test_a_file_of_another_form_is_noted_without_its_content(tmp_path: Path, text: str) -> None:
    file = tmp_path / "a"
    file.write_text(text)

    found = await find_credentials("r.io", None, config(file))

    assert found.credentials is None
    assert found.notes == () or "is not in the form of Docker's config.json" in found.notes[0]


async def test_an_auth_that_is_no_base64_is_none(tmp_path: Path) -> None:
    file = docker_config(tmp_path / "a", auths={"r.io": {"auth": "%%%"}})

    assert await find_credentials("r.io", None, config(file)) == Found()


def test_credentials_do_not_print() -> None:
    secret = Credentials("the run", "ada", "sesame", "token")

    assert "ada" not in repr(secret)
    assert "sesame" not in f"{secret} {Found(secret)!r}"
    assert "token'" not in repr(secret)
