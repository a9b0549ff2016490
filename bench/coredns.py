"""CoreDNS, built by the Go toolchain of whoever measures, in the bench's own folder."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from bench.figure import RESULTS
from bench.name_servers import HOST, ZONE, NameServer, answers, free_port, process, write_hosts

VERSION = "v1.12.4"
_BUILD_S = 1800
_USUAL_GO = "/usr/local/go/bin"


def build() -> Path | None:
    """The program; None, and a line that says why, where it can't be built. Idempotent. Takes minutes once."""
    folder = RESULTS / f"coredns-{VERSION}"
    program = folder / "coredns"
    if program.is_file():
        return program
    go = shutil.which("go", path=f"{os.environ.get('PATH', '')}:{_USUAL_GO}")
    if go is None:
        print("CoreDNS is left out: there is no go to build it with", file=sys.stderr)
        return None
    command = [go, "install", f"github.com/coredns/coredns@{VERSION}"]
    environ = {**os.environ, "GOBIN": str(folder), "CGO_ENABLED": "0"}
    result = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=_BUILD_S, check=False)
    if result.returncode:
        said = result.stderr.strip().splitlines() or ["nothing"]
        print(f"CoreDNS is left out: go install says {said[-1]}", file=sys.stderr)
        return None
    return program


@contextlib.asynccontextmanager
async def coredns(folder: Path, names: int, core: int, _: int) -> AsyncIterator[NameServer]:
    """With the hosts plugin, which answers SERVFAIL where the others say that there is no such name."""
    port = free_port()
    hosts = write_hosts(folder, names)
    (folder / "Corefile").write_text(
        f"{ZONE}:{port} {{\n  bind {HOST}\n  hosts {hosts} {ZONE} {{\n    ttl 1\n    reload 0\n  }}\n}}\n"
    )
    async with process(folder, [str(build()), "-conf", str(folder / "Corefile")], core) as running:
        server = NameServer("CoreDNS", port, running.pid)
        await answers(server)
        yield server
