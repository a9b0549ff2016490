"""Images of registries that want credentials, or have a certificate of an authority of our own, for tasks of Nomad."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import shutil
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.containers.gate import gated_registry
from tests.containers.images import File, Image, push
from tests.containers.registry import DebianRegistry, certificate
from tests.fakes.eventually import eventually
from tests.nomad.cluster import NomadCluster, events, made
from tests.nomad.jobs import job

pytestmark = pytest.mark.timeout(300)

USER, PASSWORD = "team", "secret-of-the-test"
HELPER = "astra-of-the-tests"
STEP_BYTES = 1 << 20
"""No less than the pieces that a pull is counted in."""
A_FEW_S = 8.0


@pytest.fixture(scope="module")
def credentials(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The machine's file in the form of Docker's, with nothing in it."""
    path = tmp_path_factory.mktemp("docker") / "config.json"
    path.write_text("{}")
    return path


@pytest.fixture(scope="module")
def cluster(binary: Path, credentials: Path) -> Iterator[NomadCluster]:
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("PATH", f"{credentials.parent}:{os.environ['PATH']}")
        with made(binary, agents={"registry_credentials": str(credentials)}) as one:
            yield one


@contextmanager
def started(registry: DebianRegistry) -> Iterator[DebianRegistry]:
    try:
        asyncio.run(registry.start())
        yield registry
    finally:
        registry.kill()


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DebianRegistry]:
    with started(DebianRegistry(tmp_path_factory.mktemp("registry"), users={USER: PASSWORD})) as found:
        yield found


def pushed(registry: DebianRegistry, name: str, **how: Any) -> str:
    """The reference of an image that no machine has had yet: one that is there is used without asking."""
    image = Image().with_programs("/bin/echo").layer({"unique": File(os.urandom(16))})
    image = image.config(Cmd=["/bin/echo", f"hello of {name}"])
    asyncio.run(push(image, registry.url, "team/hello", name, auth=(USER, PASSWORD), **how))
    return f"{registry.host}/team/hello:{name}"


def auth(password: str) -> str:
    return f'auth {{\nusername = "{USER}"\npassword = "{password}"\n}}'


def says_hello(cluster: NomadCluster, name: str, image: str, config: str = "") -> None:
    cluster.submit(job(name, "", image=image, config=config))
    allocation = cluster.reaches(name, "complete")
    assert cluster.logs(allocation["ID"]) == f"hello of {name}\n"


def is_refused(cluster: NomadCluster, name: str, image: str, config: str = "") -> list[str]:
    """What its user reads."""
    cluster.submit(job(name, "", image=image, config=config))
    return events(cluster.reaches(name, "failed"), "w")


def test_without_credentials_it_is_said_what_is_missing(cluster: NomadCluster, registry: DebianRegistry) -> None:
    said = is_refused(cluster, "bare", pushed(registry, "bare"))
    assert any("to nobody without credentials" in event for event in said), said


def test_the_jobs_own_credentials_are_used(cluster: NomadCluster, registry: DebianRegistry) -> None:
    says_hello(cluster, "own", pushed(registry, "own"), auth(PASSWORD))


def test_a_wrong_password_of_the_job_is_refused_and_not_shown(cluster: NomadCluster, registry: DebianRegistry) -> None:
    said = is_refused(cluster, "wrong", pushed(registry, "wrong"), auth("mistyped-of-the-test"))
    assert any("refuses the credentials of the run" in event for event in said), said
    assert not any("mistyped-of-the-test" in event for event in said)
    assert "mistyped-of-the-test" not in (cluster.clients[0].agent.folder / "agent.log").read_text()


def test_the_machines_docker_config_is_used(cluster: NomadCluster, registry: DebianRegistry, credentials: Path) -> None:
    entry = {"auth": base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()}
    with holding(credentials, {"auths": {registry.host: entry}}):
        says_hello(cluster, "docker", pushed(registry, "docker"))


def test_the_machines_credential_helper_is_asked(
    cluster: NomadCluster, registry: DebianRegistry, credentials: Path
) -> None:
    answer = {"ServerURL": registry.host, "Username": USER, "Secret": PASSWORD}
    helper = credentials.parent / f"docker-credential-{HELPER}"
    asked = credentials.parent / "asked"
    helper.write_text(f"#!/bin/sh\ncat > {asked}\ncat <<'EOT'\n{json.dumps(answer)}\nEOT\n")
    helper.chmod(0o755)
    with holding(credentials, {"credHelpers": {registry.host: HELPER}}):
        says_hello(cluster, "helped", pushed(registry, "helped"))
    assert asked.read_text().strip() == registry.host


@contextmanager
def holding(path: Path, document: dict[str, Any]) -> Iterator[None]:
    path.write_text(json.dumps(document))
    yield
    path.write_text("{}")


def test_a_certificate_is_trusted_once_its_authority_is_on_the_machine(cluster: NomadCluster, tmp_path: Path) -> None:
    authority, pair = certificate(tmp_path / "tls")
    with started(DebianRegistry(tmp_path / "registry", users={USER: PASSWORD}, tls=pair)) as registry:
        image = pushed(registry, "private", ssl=ssl.create_default_context(cafile=authority))
        with trusted_folder(registry.host) as folder:
            said = is_refused(cluster, "private", image, auth(PASSWORD))
            assert any("does not trust its certificate" in event for event in said), said
            shutil.copy(authority, folder / "ca.crt")
            cluster.nomad("job", "stop", "-purge", "-detach", "private")
            eventually(lambda: not cluster.allocations("private"), "the job that failed is forgotten")
            says_hello(cluster, "private", image, auth(PASSWORD))


@contextmanager
def trusted_folder(host: str) -> Iterator[Path]:
    """This registry's folder of certificates, where containerd and Docker look as well; with what had to be made."""
    folder = Path("/etc/containerd/certs.d", host)
    made_by_us = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True)
    try:
        yield folder
    finally:
        shutil.rmtree(made_by_us[-1])


def test_a_slow_pull_is_told_every_few_seconds(cluster: NomadCluster, tmp_path: Path) -> None:
    with gated_registry(tmp_path) as slow:
        image = Image().with_programs("/bin/echo").layer({"filler": File(os.urandom(64 << 20))}, compressed=False)
        reference = slow.push(image.config(Cmd=["/bin/echo", "hello of slow"]), "slow")
        told: list[tuple[float, int]] = []
        while len(told) < 3:
            with slow.closed_after(STEP_BYTES):
                if not cluster.allocations("slow"):
                    cluster.submit(job("slow", "", image=reference))
                slow.wait_closed()
                assert cluster.logs(cluster.allocation("slow")["ID"]) == ""
                time.sleep(1)
                told = shares(cluster, "slow", reference)
        times, percents = zip(*told, strict=True)
        assert sorted(set(percents)) == list(percents), percents
        assert max(after - before for before, after in pairwise(times)) < A_FEW_S, times
        assert cluster.logs(cluster.reaches("slow", "complete")["ID"]) == "hello of slow\n"


def test_a_pull_that_hangs_from_its_first_second_on_is_told(cluster: NomadCluster, tmp_path: Path) -> None:
    with gated_registry(tmp_path) as slow:
        image = Image().with_programs("/bin/echo").layer({"filler": File(os.urandom(1 << 18))}, compressed=False)
        reference = slow.push(image.config(Cmd=["/bin/echo", "hello of hung"]), "hung")
        with slow.closed_after(16 << 10):
            cluster.submit(job("hung", "", image=reference))
            eventually(lambda: shares(cluster, "hung", reference), "the task tells how far it is", 10)
        assert cluster.logs(cluster.reaches("hung", "complete")["ID"]) == "hello of hung\n"


def shares(cluster: NomadCluster, name: str, image: str) -> list[tuple[float, int]]:
    """Each that the task was told of, in its order: when, in seconds, and the percentage."""
    found = cluster.allocation(name)
    state = ((found and found["TaskStates"]) or {}).get("w") or {}
    told = [
        (event["Time"] / 1e9, re.match(rf"Pulling {image}: (\d+) % of \d", event["DisplayMessage"]))
        for event in state.get("Events") or ()
    ]
    return [(at, int(match[1])) for at, match in told if match]
