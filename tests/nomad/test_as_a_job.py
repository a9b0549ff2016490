"""
The coordinator as a job on a real Nomad with ACLs, from the files of `deploy/nomad`: two of it by their jobs' own
identity, of which one serves; when that is killed, the other one takes over.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.containers.dev_cluster import kill
from tests.fakes.eventually import eventually
from tests.house.tree import ROOT
from tests.nomad.cluster import unmount_below
from tests.nomad.loopback import COMMON, LoopbackServer, free_ports, loopback_server

pytestmark = pytest.mark.timeout(300)

DEPLOY = ROOT / "deploy/nomad"
OPERATOR = "operator-of-the-test"
TAKES_OVER_S = 30.0
_COORDINATOR = Path(sys.executable).parent / "astra-coordinator"
_CLIENT = """\
name = "{name}"
log_level = "WARN"
client {{
  enabled = true
  servers = ["127.0.0.1:{server}"]
  network_interface = "lo"
  options = {{ "fingerprint.denylist" = "env_aws,env_gce,env_azure,env_digitalocean,consul,vault" }}
}}
plugin "raw_exec" {{ config {{ enabled = true }} }}
"""


@pytest.fixture
def server(binary: Path) -> Iterator[LoopbackServer]:
    with tempfile.TemporaryDirectory(prefix="nomad-", dir="/var/tmp") as text:
        folder = Path(text)
        with loopback_server(binary, folder, acl=True) as found, ExitStack() as stack:
            for name in ("c-1", "c-2"):
                stack.enter_context(client(found, folder / name, name))
            yield found
            found.nomad("job", "stop", "-purge", "-detach", "astra-coordinator")
            eventually(lambda: not coordinators(folder), "the coordinators have ended")


@contextmanager
def client(server: LoopbackServer, folder: Path, name: str) -> Iterator[None]:
    folder.mkdir()
    http, rpc, serf = free_ports(3)
    ports = {"http": http, "rpc": rpc, "serf": serf, "server": server.rpc}
    text = (COMMON + _CLIENT).format(name=name, data=folder / "data", acl="true", **ports)
    (folder / "client.hcl").write_text(text)
    with (folder / "client.log").open("wb") as log:
        command = (str(server.binary), "agent", f"-config={folder}/client.hcl")
        process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.kill()
        process.wait()
        kill(coordinators(folder))
        unmount_below(folder)


def coordinators(folder: Path) -> list[int]:
    """Processes of the program below this folder, by the configuration that they were started with."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            words = path.read_bytes().split(b"\0")
            if any(word.endswith(b"astra-coordinator") for word in words[:2]) and os.fsencode(folder) in b" ".join(
                words
            ):
                found.append(int(path.parent.name))
    return found


def put_in_place(server: LoopbackServer, port: int) -> None:
    """As the comments of the files say. Only places differ: the program, Nomad's address, the port."""
    job = (DEPLOY / "coordinator.nomad.hcl").read_text()
    for there, here in (
        ("/opt/astraeus/bin/astra-coordinator", str(_COORDINATOR)),
        ('http://{{ env "attr.unique.network.ip-address" }}:4646', server.url),
        ("0.0.0.0:", "127.0.0.1:"),
        ("static = 7411", f"static = {port}"),
    ):
        assert there in job
        job = job.replace(there, here)
    server.nomad("node", "pool", "apply", "-", stdin=(DEPLOY / "gpu-pool.hcl").read_text())
    tokens = (f"operator_token={OPERATOR}", "agent_token=agents-of-the-test")
    server.nomad("var", "put", "nomad/jobs/astra-coordinator", *tokens)
    server.nomad(
        "acl", "policy", "apply", "-namespace", "default", "-job", "astra-coordinator", "astra-coordinator", "-",
        stdin=(DEPLOY / "coordinator-policy.hcl").read_text(),
    )  # fmt: skip
    server.nomad("job", "run", "-detach", "-", stdin=job)


def ask(port: int, path: str, document: object = None) -> Any:
    body = None if document is None else json.dumps(document).encode()
    headers = {"Authorization": f"Bearer {OPERATOR}"}
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1{path}", body, headers)
    with urllib.request.urlopen(request, timeout=5) as answer:
        return json.loads(answer.read())


def serves(port: int) -> bool:
    with suppress(OSError):
        return bool(ask(port, "/health"))
    return False


def active(folder: Path, port: int) -> int:
    """The process that has the port."""
    for pid in coordinators(folder):
        sockets = {str(fd.readlink()) for fd in Path(f"/proc/{pid}/fd").iterdir()}
        for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[1].endswith(f":{port:04X}") and fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets:
                return pid
    raise AssertionError(f"nobody listens on port {port}")


def test_two_of_it_run_one_serves_and_the_other_takes_over(server: LoopbackServer) -> None:
    (port,) = free_ports(1)
    put_in_place(server, port)
    eventually(lambda: serves(port), "one of them serves")
    eventually(lambda: len(coordinators(server.folder)) == 2, "both run")
    spec = {"start": "Gang", "task_template": {"image": "host", "requested_resources": {"machines": 2}}}
    ask(port, "/workspaces/default/jobs", {"metadata": {"name": "waits"}, "spec": spec})
    first = active(server.folder, port)
    os.kill(first, signal.SIGKILL)
    killed_s = time.monotonic()
    eventually(lambda: serves(port) and active(server.folder, port) != first, "the other one serves")
    assert time.monotonic() - killed_s < TAKES_OVER_S
    job = ask(port, "/workspaces/default/jobs/waits")
    assert job["status"]["phase"] == "Pending"
    eventually(lambda: len(coordinators(server.folder)) == 2, "the killed one is started again")
