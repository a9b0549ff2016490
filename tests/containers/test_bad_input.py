"""
What a user gets wrong, by the command line and by curl: one sentence that names the field and the value, HTTP 4xx with
a JSON body, exit status 2, and nothing left half made. And what is right, by curl as the README has it.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from astra_agent.look_ahead import SMALL_BYTES
from tests.containers.gangs import Gangs, gangs_on_a_cluster
from tests.containers.images import File, Image, push
from tests.containers.registry import DebianRegistry, free_port
from tests.house.tree import ROOT, blocks
from tests.runs_over_http import DRIVE, Json

REFUSED = 2
HUGE_BYTES = 100_000_000
CURL_S = 60


@pytest.fixture(scope="module")
def gangs() -> Iterator[Gangs]:
    settings = ("registry_patience_s=2", "faults_limit=1")
    words = [word for setting in settings for word in ("--set", setting)]
    with gangs_on_a_cluster("--machines", "4", "--gpus-per-machine", "8", *words) as gangs:
        (gangs.drive / "not-executable").write_text("#!/bin/sh\n")
        yield gangs


@pytest.fixture(autouse=True)
def _nothing_is_left(gangs: Gangs) -> Iterator[None]:
    """No slot, no process, whatever was refused."""
    yield
    gangs.stop_all()
    assert gangs.workers_left() == []


def names(gangs: Gangs) -> list[str]:
    return [job["metadata"]["name"] for job in gangs.known("/workspaces/default/jobs")["items"]]


def curl(gangs: Gangs, *words: str, token: str | None = None) -> tuple[int, Any]:
    """As the README has it. Returns: status and the JSON of the body."""
    token = gangs.target["token"] if token is None else token
    authorization = ("-H", f"Authorization: Bearer {token}") if token else ()
    url = f"{gangs.target['api']}/v1/workspaces/default/jobs"
    command = ("curl", "-sS", "-w", "\n%{http_code}", *authorization, *words, url)
    said = subprocess.run(command, capture_output=True, text=True, timeout=CURL_S, check=True).stdout
    body, _, status = said.rpartition("\n")
    return int(status), json.loads(body)


def test_the_readmes_lines_for_curl_submit_its_run(gangs: Gangs) -> None:
    """Word for word, by bash in a clone of this repository, with `astra` on the PATH."""
    (block,) = (block.text for block in blocks(ROOT / "README.md") if '"$API/jobs"' in block.text)
    *typed, shown = block.splitlines()
    script = "\n".join(line.removeprefix("$ ") for line in typed)
    environ = {**gangs.cluster.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    ran = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script], cwd=ROOT, env=environ, capture_output=True, text=True,
        timeout=CURL_S, check=False,
    )  # fmt: skip
    assert (ran.stdout, ran.stderr, ran.returncode) == (f"{shown}\n", "", 0)
    assert gangs.until(shown, lambda status: status["phase"] == "Running", f"{shown} runs")["workers"]


# Refused at once ------------------------------------------------------------------------------------------------------

WRONG = {
    "unknown field": ("spec.task_template.comand", "echo", "did you mean spec.task_template.command?"),
    "mistyped field": ("spec.task_template.args", "a b", 'is "a b", a string: right is a list of strings'),
    "mistyped number": ("spec.task_template.requested_resources.machines", "four", 'is "four", a string: right is'),
    "no DNS label": ("metadata.name", "Llama_SFT", '"Llama_SFT"'),
    "too long a name": ("metadata.name", "x" * 80, "xxx"),
    "missing drive": (
        "spec.task_template.datavolume_refs",
        [{"name": "cpkt", "mount_path": "/c"}],
        "is cpkt, which is no",
    ),
    "what comes later": ("spec.segment", 4, "segment"),
    "impossible time": ("spec.task_template.time_limit_seconds", -1, "is -1: right is seconds, a number above 0"),
}


def changed(document: Json, path: str, value: object) -> Json:
    copy: Json = json.loads(json.dumps(document))
    *above, last = path.split(".")
    at = copy
    for name in above:
        at = at.setdefault(name, {})
    at[last] = value
    return copy


@pytest.mark.parametrize("case", WRONG)
def test_a_field_that_is_wrong(gangs: Gangs, tmp_path: Path, case: str) -> None:
    path, value, expected = WRONG[case]
    check_refused(gangs, tmp_path, changed(gangs.document("wrong", 2), path, value), path, expected)


def test_a_shape_that_can_not_be(gangs: Gangs, tmp_path: Path) -> None:
    resources = {"machines": 5, "gpu_requests": {"count": 12}}
    document = gangs.document("shape", 1, requested_resources=resources)
    expected = "Cannot plan workers: cannot evenly distribute 12 gpus across 5 machines"
    check_refused(gangs, tmp_path, document, "spec.task_template.requested_resources", expected)


def check_refused(gangs: Gangs, folder: Path, document: Json, field: str, expected: str) -> None:
    """By curl and by `astra run FILE`, with the same sentence."""
    before = names(gangs)
    file = folder / "run.json"
    file.write_text(json.dumps(document))
    status, answer = curl(gangs, "--data-binary", f"@{file}")
    error = answer["error"]
    assert (status, error["code"]) == (400, "InvalidRequest")
    assert expected in error["message"]
    assert (error["field"] or "").startswith(field)
    check_one_sentence(gangs.cluster.astra("run", str(file), code=REFUSED), error["message"])
    assert names(gangs) == before


def check_one_sentence(said: str, expected: str) -> None:
    assert said == f"astra: {said.removeprefix('astra: ').strip()}\n"
    assert len(said.splitlines()) == 1
    assert expected in said


def test_a_second_live_run_of_one_name(gangs: Gangs, tmp_path: Path) -> None:
    diary = gangs.submit("twice", machines=1)
    diary.let_go()
    gangs.running("twice", diary)
    file = tmp_path / "run.json"
    file.write_text(json.dumps(gangs.document("twice", 1)))
    status, answer = curl(gangs, "--data-binary", f"@{file}")
    assert (status, answer["error"]["code"]) == (409, "Conflict")
    assert "twice" in answer["error"]["message"]
    check_one_sentence(gangs.cluster.astra("run", str(file), code=REFUSED), answer["error"]["message"])
    diary.finish()
    gangs.ended("twice", "Completed")
    assert diary.ranks("start", 0) == [0]


@pytest.mark.parametrize("token", ["", "wrong"])
def test_a_token_that_is_missing_or_wrong(gangs: Gangs, token: str) -> None:
    status, answer = curl(gangs, "--data-binary", json.dumps(gangs.document("token", 1)), token=token)
    assert (status, answer["error"]["code"]) == (401, "Unauthorized")
    said = gangs.cluster.astra("status", "--api", gangs.target["api"], "--token", token or "none", code=REFUSED)
    check_one_sentence(said, "token")
    assert "token" not in names(gangs)


def test_a_body_of_100_megabytes(gangs: Gangs, tmp_path: Path) -> None:
    """Refused without being read to its end, however it comes."""
    document = gangs.document("huge", 1, env={"FILLER": "x" * HUGE_BYTES})
    file = tmp_path / "huge.json"
    file.write_text(json.dumps(document))
    for more in ((), ("-H", "Expect:"), ("-H", "Transfer-Encoding: chunked")):
        status, answer = curl(gangs, *more, "--data-binary", f"@{file}")
        assert (status, answer["error"]["code"]) == (413, "InvalidRequest")
        assert "larger than 4194304 bytes" in answer["error"]["message"]
    said = gangs.cluster.astra("run", str(file), code=REFUSED)
    assert len(said.splitlines()) == 1
    assert "huge" not in names(gangs)


@pytest.mark.parametrize("body", ["", "{", "[]", '{"metadata": {"name": "a", "name": "b"}}', "\udcff"])
def test_a_body_that_is_no_run(gangs: Gangs, tmp_path: Path, body: str) -> None:
    file = tmp_path / "body"
    file.write_bytes(body.encode(errors="surrogateescape"))
    status, answer = curl(gangs, "--data-binary", f"@{file}")
    assert (status, answer["error"]["code"]) == (400, "InvalidRequest")
    assert len(gangs.cluster.astra("run", str(file), code=REFUSED).splitlines()) == 1


# Refused on the machines ----------------------------------------------------------------------------------------------


def check_not_there(gangs: Gangs, folder: Path, field: str, expected: str, **template: Any) -> None:
    check_refused(gangs, folder, gangs.document("not-there", 2, **template), f"spec.task_template.{field}", expected)


def test_no_such_command(gangs: Gangs, tmp_path: Path) -> None:
    check_not_there(gangs, tmp_path, "command", 'command "trian" is not in image "host" (searched', command="trian")


def test_a_command_that_is_not_executable(gangs: Gangs, tmp_path: Path) -> None:
    command = f"/{DRIVE}/not-executable"
    expected = f'command "{command}" on the drive at /{DRIVE} is not exec'
    check_not_there(gangs, tmp_path, "command", expected, command=command)


def test_an_image_reference_that_is_none(gangs: Gangs, tmp_path: Path) -> None:
    check_not_there(gangs, tmp_path, "image", '"Not An Image"', image="Not An Image")


def test_images_that_a_registry_does_not_have(gangs: Gangs, tmp_path: Path) -> None:
    """No such repository, no such tag, one that has not got the command, and one that is too large to look into."""

    async def registry_with_two_images() -> DebianRegistry:
        registry = DebianRegistry(tmp_path)
        await registry.start()
        await push(Image().layer({"etc/motd": File(b"hello")}), registry.url, "team/there", "1")
        filler = {"filler": File(os.urandom(SMALL_BYTES + 1))}
        await push(Image().layer(filler, compressed=False), registry.url, "team/large", "1")
        return registry

    registry = asyncio.run(registry_with_two_images())
    try:
        for image in ("team/nowhere:1", "team/there:2"):
            check_not_there(gangs, tmp_path, "image", image, image=f"{registry.host}/{image}")
        image = f"{registry.host}/team/there:1"
        expected = f'command "sh" is not in image "{image}"'
        check_not_there(gangs, tmp_path, "command", expected, image=image, command="sh")
        image = f"{registry.host}/team/large:1"
        check_fails_at_once(gangs, "large", f'command "sh" is not in image "{image}"', image=image, command="sh")
    finally:
        registry.kill()


def check_fails_at_once(gangs: Gangs, name: str, expected: str, **template: Any) -> None:
    """`--follow` exits with 2, the sentence is the run's reason, and no program has started anywhere."""
    file = gangs.drive / f"{name}.json"
    file.write_text(json.dumps(gangs.document(name, 2, **template)))
    said = gangs.cluster.astra("run", str(file), "--follow", code=REFUSED)
    assert expected in said
    status = gangs.ended(name, "Failed")
    assert status["refused"]
    assert expected in status["reason"]
    assert gangs.ranks(name)["attempts"] == []
    gangs.settled()


def test_a_registry_that_does_not_answer(gangs: Gangs, tmp_path: Path) -> None:
    image = f"127.0.0.1:{free_port()}/team/image:1"
    expected = f"registry {image.partition('/')[0]} does not answer"
    check_not_there(gangs, tmp_path, "image", expected, image=image)


def test_a_registry_that_takes_the_connection_and_says_nothing(gangs: Gangs, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        image = f"127.0.0.1:{silent.getsockname()[1]}/team/image:1"
        expected = f'registry of image "{image}" does not answer: asked for 10 s; submit'
        check_not_there(gangs, tmp_path, "image", expected, image=image)


def test_an_archive_that_is_not_there(gangs: Gangs, tmp_path: Path) -> None:
    check_not_there(gangs, tmp_path, "image", "/no/such.tar can't be read", image="oci-archive:/no/such.tar")
