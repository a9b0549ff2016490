"""The servers of a cluster of the tests: one, or several that elect a leader."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

from tests.nomad.loopback import COMMON

WATCHED = """\
leave_on_terminate = false
log_level = "DEBUG"
telemetry {{ publish_allocation_metrics = true publish_node_metrics = true collection_interval = "1s" }}
"""
_SERVER = """\
name = "{name}"
server {{
  enabled = true
  bootstrap_expect = {count}
  heartbeat_grace = "3s"
  min_heartbeat_ttl = "5s"
  server_join {{
    retry_join = {others}
    retry_interval = "1s"
  }}
}}
"""


class Server:
    """
    Args:
        spawn: An agent of Nomad, from its configuration and its log.
    """

    def __init__(self, folder: Path, number: int, spawn: Callable[[Path, Path], subprocess.Popen[bytes]]) -> None:
        self.name = f"server-{number}"
        self.http, self.rpc, self.serf = (4736 + 10 * number + port for port in range(3))
        self._folder = folder
        self._spawn = spawn
        self._process: subprocess.Popen[bytes] | None = None

    def configure(self, *, acl: bool, servers: list[Server]) -> None:
        others = [f"127.0.0.1:{server.serf}" for server in servers if server is not self]
        text = (COMMON + WATCHED + _SERVER).format(
            data=self._folder / self.name, acl=json.dumps(acl), name=self.name, count=len(servers),
            others=json.dumps(others), http=self.http, rpc=self.rpc, serf=self.serf,
        )  # fmt: skip
        (self._folder / f"{self.name}.hcl").write_text(text)

    def start(self) -> None:
        self._process = self._spawn(self._folder / f"{self.name}.hcl", self._folder / f"{self.name}.log")

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    @property
    def lives(self) -> bool:
        return self._process is not None and self._process.poll() is None
