"""A dev cluster as its user has it, by the command line, and the proof that nothing of it is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from astra_cli.dev import sweep
from astra_cli.dev.plan import Layout, layout
from tests.fakes.eventually import PATIENCE_S

Json = dict[str, Any]


@dataclass
class DevCluster:
    """*inodes*, *sockets*: network namespaces and shims' sockets of it that were seen while it ran."""

    state: Path
    inodes: set[int] = field(default_factory=set)
    interfaces: str = field(default_factory=lambda: machine_interfaces())
    sockets: set[Path] = field(default_factory=set)

    @property
    def layout(self) -> Layout:
        return layout(self.state)

    def command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "astra_cli.main", *words]

    @property
    def environ(self) -> dict[str, str]:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("ASTRA_")}
        return {**inherited, "ASTRA_DEV_STATE": str(self.state)}

    def astra(self, *words: str, code: int = 0, timeout_s: float = PATIENCE_S) -> str:
        """One command to its end; it must exit with *code*. Returns standard output, or the complaint of a failure."""
        result = subprocess.run(
            self.command(*words), env=self.environ, capture_output=True, text=True, timeout=timeout_s, check=False
        )
        self.note()
        assert result.returncode == code, f"astra {' '.join(words)}: {result.stdout}{result.stderr}{self.logs()}"
        return result.stdout if code == 0 else result.stdout + result.stderr

    def json(self, *words: str) -> Json:
        document: Json = json.loads(self.astra(*words, "--json"))
        return document

    def start(self, *words: str) -> None:
        self.astra("dev", "--detach", *words)

    @contextmanager
    def background(self, *words: str) -> Iterator[subprocess.Popen[str]]:
        """A command that goes on; ended at the latest when the context is left."""
        process = subprocess.Popen(
            self.command(*words), env=self.environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        try:
            yield process
        finally:
            process.kill()
            process.communicate()

    def note(self) -> None:
        """Remember what there is now, to look for it afterwards."""
        for path in (self.layout.run / "net").glob("*"):
            self.inodes.add(path.stat().st_ino)
        self.sockets.update(sweep.shim_sockets(self.layout))

    def phase(self, run: str) -> str:
        phase: str = self.json("status", run)["status"]["phase"]
        return phase

    def answers(self) -> bool:
        """Whether its coordinator takes a request."""
        return subprocess.run(self.command("nodes"), env=self.environ, capture_output=True, check=False).returncode == 0

    def logs(self) -> str:
        """Of every daemon, for the message of a test that failed."""
        texts = (
            f"\n--- {path.name}\n{path.read_text(errors='replace')[-1500:]}" for path in self.layout.logs.glob("*")
        )
        return "".join(texts)

    def remove(self) -> None:
        """End it, whatever state it is in, with its folder; nothing is left of it."""
        self.astra("dev", "stop", "--purge")
        self.check_nothing_left()
        assert not self.state.exists()

    def check_nothing_left(self) -> None:
        """No process, mount, cgroup, namespace, interface or socket of it."""
        assert sweep.ours(self.layout) == []
        assert sweep.mounts_below(self.layout) == []
        assert sweep.cgroup_directories(self.layout.cgroup) == []
        assert self.inodes & living_namespaces() == set()
        assert machine_interfaces() == self.interfaces
        assert [path for path in self.sockets if path.exists()] == []
        assert not self.layout.run.exists()


def read_until(process: subprocess.Popen[str], wanted: str) -> str:
    """What it printed, up to the line with *wanted*."""
    assert process.stdout is not None
    lines: list[str] = []
    while not lines or wanted not in lines[-1]:
        line = process.stdout.readline()
        assert line, f"{wanted!r} was not printed: {''.join(lines)}"
        lines.append(line)
    return "".join(lines)


def kill(pids: list[int]) -> None:
    """Any of them may have ended by itself since it was looked for."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def machine_interfaces() -> str:
    """Of this machine's own network, with their addresses."""
    return subprocess.run(["ip", "-brief", "address"], capture_output=True, text=True, check=True).stdout


def living_namespaces() -> set[int]:
    """Network namespaces that some process is in."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/ns/net"):
        with suppress(OSError):
            found.add(path.stat().st_ino)
    return found
