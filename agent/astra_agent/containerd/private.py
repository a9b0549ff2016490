"""
A containerd of our own, for `astra dev` and for tests: own folders, own socket, own runtime state, nothing shared with
the machine's, and nothing of it left once it has been cleaned.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

from astra_agent.containerd import leftovers
from astra_agent.containerd.client import Client
from astra_agent.errors import HostFault

START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 10.0

# Version 2 is read by 1.6, 1.7 and 2.x. What is disabled is not needed, and some of it listens or writes outside.
_CONFIG = """\
version = 2
root = "{root}"
state = "{state}"
disabled_plugins = [
  "io.containerd.grpc.v1.cri",
  "io.containerd.cri.v1.images",
  "io.containerd.cri.v1.runtime",
  "io.containerd.internal.v1.opt",
  "io.containerd.internal.v1.tracing",
  "io.containerd.nri.v1.nri",
  "io.containerd.snapshotter.v1.aufs",
  "io.containerd.snapshotter.v1.blockfile",
  "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.snapshotter.v1.zfs",
  "io.containerd.tracing.processor.v1.otlp",
]
[grpc]
  address = "{socket}"
"""


class PrivateContainerd:
    """
    One containerd under *root*. The process outlives this object and its process group: a later object with the same
    *root* finds it again. Start, stop and clean are idempotent.

    Attributes:
        socket: Where it listens.
        runc_root: Where its containers' runtime state is; give it to `ContainerdContainers`.
        log: What it says.
    """

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        self.state = self.root / "state"
        self.socket = self.root / "containerd.sock"
        self.runc_root = self.root / "runc"
        self.log = self.root / "containerd.log"
        self._pid_file = self.root / "containerd.pid"
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Of the running process, 0 when there is none."""
        if self._child is not None:
            return self._child.pid if self._child.poll() is None else 0
        try:
            pid = int(self._pid_file.read_text())
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except (OSError, ValueError):
            return 0
        # An ID may have been given to another process since.
        return pid if str(self._config).encode() in words else 0

    @property
    def _config(self) -> Path:
        return self.root / "containerd.toml"

    async def start(self) -> None:
        """
        Start it, or find it running, and wait until it serves.

        Raises:
            HostFault: containerd or runc is not installed, or it does not come up; the sentence has its last words.
        """
        if not self.pid:
            self._spawn()
        async with Client(self.socket, "default") as client:
            deadline = time.monotonic() + START_TIMEOUT_S
            while not await client.healthy():
                if not self.pid:
                    raise HostFault(
                        f"containerd ended while it started: {self._last_words()} (all of it in {self.log})"
                    )
                if time.monotonic() > deadline:
                    raise HostFault(f"containerd does not serve within {START_TIMEOUT_S:.0f} s; see {self.log}")
                await asyncio.sleep(0.02)

    def kill(self) -> None:
        """SIGKILL to containerd, and nothing to its containers. Returns when it is gone."""
        self._end(signal.SIGKILL, STOP_TIMEOUT_S)

    async def stop(self) -> None:
        """Stop containerd; its containers run on."""
        if not await asyncio.to_thread(self._end, signal.SIGTERM, STOP_TIMEOUT_S):
            self.kill()

    def _end(self, number: signal.Signals, timeout_s: float) -> bool:
        """Blocking. Whether it is gone."""
        deadline = time.monotonic() + timeout_s
        if pid := self.pid:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        while self.pid and time.monotonic() < deadline:
            time.sleep(0.005)
        return not self.pid

    async def clean(self) -> None:
        """Stop it, end every container of it, and remove all that runs or is mounted. Images and the log stay."""
        await self.stop()
        await asyncio.to_thread(leftovers.clean, self.root, self.state, self.socket, self.runc_root)

    def _spawn(self) -> None:
        program = _installed("containerd")
        _installed("runc")
        self.root.mkdir(parents=True, exist_ok=True)
        self._config.write_text(_CONFIG.format(root=self.root / "root", state=self.state, socket=self.socket))
        with self.log.open("ab") as log:
            # In a session of its own, so that Ctrl-C at `astra dev` stops the gang first and containerd last.
            self._child = subprocess.Popen(
                [program, "--config", str(self._config)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._pid_file.write_text(str(self._child.pid))

    def _last_words(self) -> str:
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing"


def _installed(program: str) -> str:
    path = shutil.which(program, path=f"{os.environ.get('PATH', os.defpath)}:/usr/local/sbin:/usr/sbin:/sbin")
    if path is None:
        raise HostFault(f"{program} is not installed on this machine; on Debian and Ubuntu: apt install {program}")
    return path
