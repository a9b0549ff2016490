"""A dev cluster of four machines, made by `astra dev`, for the figures of whole gangs and of idle agents."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from astra_cli.client import Client
from astra_cli.context import Target, read_client_file
from bench.program import build_program

MACHINES = 4
ASTRA = Path(sys.executable).parent / "astra"
START_TIMEOUT_S = 120.0
PHASE_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class DevCluster:
    """
    Attributes:
        drive: The folder that workers of `gang` write to; a file for each start of a program.
        client: Of the cluster's API.
    """

    state: Path
    drive: Path
    client: Client

    async def submit_gang(self, name: str) -> None:
        """Four workers that note when they were started and wait; returns once all of them run."""
        await self.client.submit({
            "metadata": {"name": name},
            "spec": {
                "start": "Gang",
                "task_template": {
                    "image": "host", "command": "/bench/first", "args": ["/bench/started", "stay"],
                    "datavolume_refs": [{"name": "bench", "mount_path": "/bench", "mode": "ReadWrite"}],
                    "requested_resources": {"machines": MACHINES},
                },
            },
        })  # fmt: skip
        await self.until(name, "Running")

    async def until(self, name: str, *phases: str) -> None:
        async with asyncio.timeout(PHASE_TIMEOUT_S):
            while (status := (await self.client.job(name))["status"])["phase"] not in phases:
                if status["phase"] in ("Failed", "Completed"):
                    raise RuntimeError(f"{name} is {status['phase']}: {status['reason']}")
                await asyncio.sleep(0.05)

    async def stop(self, name: str) -> None:
        await self.client.stop(name)
        await self.until(name, "Stopped")

    def status(self) -> dict[str, Any]:
        return json.loads(_astra("dev", "status", "--state", str(self.state), "--json"))  # type: ignore[no-any-return]


@asynccontextmanager
async def dev_cluster() -> AsyncIterator[DevCluster]:
    """Four machines, no back-off. Nothing is left of it afterwards."""
    folder = Path(mkdtemp(prefix="astra-bench-", dir="/var/tmp"))  # short: sockets lie in it
    state, drive = folder / "state", folder / "drive"
    (drive / "started").mkdir(parents=True)
    shutil.copy2(build_program(folder), drive / "first")
    try:
        _astra(
            "dev", "--detach", "--state", str(state), "--machines", str(MACHINES),
            "--drive", f"bench={drive}", "--set", "backoff_first_s=0",
        )  # fmt: skip
        found = read_client_file(state / "client.json")
        if found is None:
            raise RuntimeError(f"the dev cluster wrote no {state / 'client.json'}")
        async with Client(Target(found.api, found.token, "default", "the bench")) as client:
            yield DevCluster(state, drive, client)
    finally:
        _astra("dev", "stop", "--state", str(state), "--purge")
        shutil.rmtree(folder, ignore_errors=True)


def _astra(*words: str) -> str:
    done = subprocess.run([ASTRA, *words], capture_output=True, text=True, timeout=START_TIMEOUT_S, check=False)
    if done.returncode:
        raise RuntimeError(f"astra {' '.join(words)} failed: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout
