"""
Whatever the machine's resolv.conf is and whatever the image brings along: a worker finds workers, names outside, and
itself where its peers find it.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.containers import another_root, musl
from tests.containers.resolv_conf_scene import OUTSIDE, PEER

SCENE_S = 100
LIMITS_MS = {"worker": 100, "outside": 100, "itself": 100, "fqdn": 100, "wrong": 1000, "nowhere": 1000}
"""Of the fastest of three, with the program that asks."""
HOSTS = "127.0.0.1 localhost\n127.0.1.1 llama-0 llama-0.example.com gpu-1\n::1 localhost\n"


@dataclass(frozen=True, slots=True)
class Form:
    """A machine's etc/resolv.conf: its text, or where it is a link to, and who answers there."""

    text: str = ""
    link: str = ""
    servers: tuple[str, ...] = ()


STUB = "nameserver 127.0.0.53\noptions edns0 trust-ad\nsearch corp.example\n"
BEHIND = "nameserver 10.0.0.53\nnameserver 10.0.1.53\nsearch corp.example\n"
REAL = """nameserver\t10.0.0.53
nameserver fe80::1%eth0 # gateway
; old: nameserver 10.9.9.9
domain corp.example
search a.example b.example
"""
FORMS = {
    "stub": Form(link="/run/systemd/resolve/stub-resolv.conf", servers=("10.0.0.53", "10.0.1.53")),
    "relative-stub": Form(link="../run/systemd/resolve/stub-resolv.conf", servers=("10.0.1.53",)),
    "real": Form(REAL, servers=("10.0.0.53",)),
    "loopback": Form("nameserver 127.0.0.1\nnameserver ::1\n", servers=("127.0.0.1",)),
    "empty": Form(),
}


@pytest.fixture
def folder() -> Iterator[Path]:
    """On a disk, with a short name: sockets lie in it."""
    with tempfile.TemporaryDirectory(prefix="astra-", dir="/var/tmp") as made:
        yield Path(made)


def scene(folder: Path, form: Form, network: str) -> tuple[dict[str, dict[str, list[str]]], list[str]]:
    """What workers found, by image, and what the agent complained about."""
    files, links = {"etc/hosts": HOSTS}, {}
    if form.link:
        links["etc/resolv.conf"] = form.link
        files["run/systemd/resolve/stub-resolv.conf"] = STUB
        files["run/systemd/resolve/resolv.conf"] = BEHIND
    else:
        files["etc/resolv.conf"] = form.text
    program = f"import sys; sys.path[:0] = {sys.path!r}; from runpy import run_module; " + (
        "run_module('tests.containers.resolv_conf_scene', run_name='__main__')"
    )
    command = [sys.executable, "-c", program, str(folder), network, *form.servers]
    done = another_root.run(folder, files, links, command, SCENE_S)
    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads(done.stdout.splitlines()[-1])
    return document["images"], document["findings"]


@pytest.mark.parametrize("network", ["host", "own"])
@pytest.mark.parametrize("name", FORMS)
async def test_workers_resolve_whatever_the_machines_file_and_the_images_are(
    folder: Path, name: str, network: str
) -> None:
    form, machine = FORMS[name], Path("/etc/resolv.conf").read_bytes()
    found, findings = await asyncio.to_thread(scene, folder, form, network)
    by_musl = ["musl"] if shutil.which(musl.COMPILER) else []
    assert sorted(found) == ["host", "link", *by_musl, "plain", "read-only", "relative-link"]
    for image, said in found.items():
        answers = {word: said[word][0] for word in said}
        wanted = {
            "worker": PEER, "outside": OUTSIDE if form.servers else "none", "wrong": "none", "nowhere": "none",
            "itself": said["address"][0], "fqdn": said["address"][0], "server": "169.254.53.53",
        }  # fmt: skip
        assert {word: answers[word] for word in wanted} == wanted, image
        # musl asks again and waits for two seconds where a server says that it can't, as if nobody had answered.
        waits = {"outside", "nowhere"} if image == "musl" and not form.servers else set()
        slow = {word: said[word][1] for word in LIMITS_MS.keys() - waits if int(said[word][1]) >= LIMITS_MS[word]}
        assert not slow, image
    assert found["host"]["python"] == [*found["host"]["address"], "llama-0"]
    assert any("outside names will not resolve" in sentence for sentence in findings) != bool(form.servers)
    assert Path("/etc/resolv.conf").read_bytes() == machine
