"""A server of the real Nomad on loopback, without clients: for records, rights, and who is active."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

COMMON = """\
data_dir = "{data}"
bind_addr = "127.0.0.1"
disable_update_check = true
advertise {{ http = "127.0.0.1" rpc = "127.0.0.1" serf = "127.0.0.1" }}
ports {{ http = {http} rpc = {rpc} serf = {serf} }}
consul {{ auto_advertise = false client_auto_join = false server_auto_join = false }}
acl {{ enabled = {acl} token_min_expiration_ttl = "1s" }}
"""
"""Of every server and client of the tests: nothing of it leaves the loopback."""
_SERVER = """\
log_level = "WARN"
server {{ enabled = true bootstrap_expect = 1 num_schedulers = 1 }}
"""
_BOUND_S = 60.0


class LoopbackServer:
    """
    Attributes:
        url: Of its API.
        rpc: The port that clients find it at.
        token: Of management, with ACLs.
    """

    def __init__(self, binary: Path, folder: Path, *, acl: bool) -> None:
        self.binary = binary
        self.folder = folder
        self.http, self.rpc, serf = free_ports(3)
        self.url = f"http://127.0.0.1:{self.http}"
        self.token = ""
        self._acl = acl
        self._process: subprocess.Popen[bytes] | None = None
        ports = {"http": self.http, "rpc": self.rpc, "serf": serf}
        text = (COMMON + _SERVER).format(data=folder / "data", acl=json.dumps(acl), **ports)
        (folder / "server.hcl").write_text(text)

    def start(self) -> None:
        with (self.folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                (str(self.binary), "agent", f"-config={self.folder}/server.hcl"),
                stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=_environment(),
            )  # fmt: skip
        deadline = time.monotonic() + _BOUND_S
        while not self._leads():
            assert time.monotonic() < deadline, (self.folder / "server.log").read_text()
            time.sleep(0.1)
        if self._acl and not self.token:
            self.token = self._bootstrapped(deadline)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def nomad(self, *words: str, stdin: str | None = None) -> str:
        """Of management."""
        environment = {**_environment(), "NOMAD_ADDR": self.url, "NOMAD_TOKEN": self.token}
        ran = subprocess.run(
            (str(self.binary), *words), input=stdin, capture_output=True, text=True, env=environment,
            timeout=_BOUND_S, check=False,
        )  # fmt: skip
        assert ran.returncode == 0, (words, ran.stdout, ran.stderr)
        return ran.stdout

    def token_with(self, name: str, policy: str) -> str:
        """The secret of a new token with exactly this policy."""
        return token_with(self.nomad, name, policy)

    def _leads(self) -> bool:
        with suppress(OSError):
            with urllib.request.urlopen(f"{self.url}/v1/status/leader", timeout=5) as answer:
                return len(answer.read()) > 4
        return False

    def _bootstrapped(self, deadline: float) -> str:
        while True:
            try:
                return self.nomad("acl", "bootstrap", "-t={{.SecretID}}").strip()
            except AssertionError:
                assert time.monotonic() < deadline
                time.sleep(0.3)


def token_with(nomad: Callable[..., str], name: str, policy: str) -> str:
    """The secret of a new token with exactly this policy. *nomad*: a command, by management."""
    nomad("acl", "policy", "apply", name, "-", stdin=policy)
    return nomad("acl", "token", "create", "-type=client", f"-policy={name}", "-t={{.SecretID}}").strip()


@contextmanager
def loopback_server(binary: Path, folder: Path, *, acl: bool = False) -> Iterator[LoopbackServer]:
    server = LoopbackServer(binary, folder, acl=acl)
    try:
        server.start()
        yield server
    finally:
        server.kill()
        shutil.rmtree(folder / "data", ignore_errors=True)


def free_ports(number: int) -> list[int]:
    """That nothing listens on now."""
    found = [socket.socket() for _ in range(number)]
    for one in found:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in found]
    for one in found:
        one.close()
    return ports


def _environment() -> dict[str, str]:
    """Nothing of the test run's own that Nomad would take for its configuration."""
    return {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
