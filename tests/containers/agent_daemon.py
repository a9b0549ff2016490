"""
The agent as it runs on a machine: its own process, a containerd of the test's own, a network namespace as the machine
with a bridge in it, and a coordinator that listens in there.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import aiohttp

from astra_agent import namespaces
from astra_agent.containerd import proc
from astra_agent.containerd.private import PrivateContainerd
from astra_agent.wire import AttemptStatus, RunRef, SlotRequest, SlotStatus
from tests import cgroups
from tests.fakes.coordinator import TOKEN, FakeCoordinator

ADDRESS = "10.83.0.1"
BOUND_S = 30.0


class AgentDaemon:
    """
    Attributes:
        containerd: Outlives the agent.
        coordinator: On `ADDRESS`, inside the machine's network.
    """

    def __init__(
        self,
        folder: Path,
        network: Literal["host", "own"] = "host",
        drives: Mapping[str, Path] | None = None,
        **settings: Any,
    ) -> None:
        self.folder = folder
        self.netns = folder / "machine.net"
        self.containerd = PrivateContainerd(folder / "containerd")
        self.coordinator = FakeCoordinator(address=ADDRESS, netns=self.netns)
        self._network = network
        self._drives = drives or {}
        self._settings = settings
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def socket(self) -> Path:
        return self.folder / "agent.sock"

    async def start(self) -> None:
        self._make_network()
        await self.containerd.start()
        await self.coordinator.start()
        (self.folder / "token").write_text(TOKEN)
        self._write_configuration()
        await self.start_agent()

    async def start_agent(self) -> None:
        connections = len(self.coordinator.hellos)
        with (self.folder / "agent.log").open("ab") as log:
            command = (sys.executable, "-m", "astra_agent.main", "--config", str(self.folder / "agent.toml"))
            self._process = subprocess.Popen(command, stderr=log)  # noqa: ASYNC220 -- it outlives this call
        async with asyncio.timeout(BOUND_S):
            while len(self.coordinator.hellos) == connections:
                assert self._process.poll() is None, (self.folder / "agent.log").read_text()
                await asyncio.sleep(0.02)

    def kill_agent(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def end_agent(self) -> int:
        assert self._process is not None
        self._process.terminate()
        return self._process.wait(BOUND_S)

    async def clean(self) -> None:
        """Nothing of it is left on the machine."""
        self.kill_agent()
        (self.folder / "state" / "names.sock").unlink(missing_ok=True)  # its name server ends by itself then
        await self.coordinator.stop()
        await self.containerd.clean()
        cgroups.remove(self.cgroup_parent)
        for path in (self.folder / "state" / "netns").glob("*"):
            namespaces.remove(path)
        namespaces.remove(self.netns)

    # What is asked of it ------------------------------------------------------------------------------------------

    async def put(self, slot: str, script: str, **changes: Any) -> None:
        values: dict[str, Any] = {
            "slot": slot,
            "run": RunRef(workspace="default", name="llama", uid="u1"),
            "worker": slot,
            "image": "host",
            "command": ("sh", "-c", script),
        }
        body = SlotRequest(**(values | changes)).model_dump_json()
        async with aiohttp.ClientSession(connector=aiohttp.UnixConnector(path=str(self.socket))) as session:
            async with session.put(f"http://agent/v1/slots/{slot}", data=body) as answer:
                assert answer.status == 201, await answer.text()

    async def ready(self, slot: str, script: str, **changes: Any) -> SlotStatus:
        await self.put(slot, script, **changes)
        return await self.seen(slot, lambda status: status.phase != "preparing")

    async def seen(self, slot: str, met: Any) -> SlotStatus:
        """The first status that the coordinator has of *slot* for which *met* holds."""
        async with asyncio.timeout(BOUND_S):
            while True:
                status = self.coordinator.slots.get(slot)
                if status is not None and met(status):
                    return status
                await asyncio.sleep(0.005)

    async def attempt(self, slot: str, number: int, state: str) -> AttemptStatus:
        """The attempt once it is in *state*."""
        status = await self.seen(slot, lambda status: _attempt(status, number, state) is not None)
        found = _attempt(status, number, state)
        assert found is not None
        return found

    def log(self, slot: str, attempt: int = 0) -> str:
        path = self.folder / "state" / "logs" / slot / f"a{attempt}.log"
        return path.read_text() if path.exists() else ""

    def pids(self, slot: str, attempt: int = 0) -> list[str]:
        """Of the attempt's processes, in whatever hierarchy its cgroup is."""
        found = proc.Cgroups.of_this_machine().processes(f"{self.cgroup_parent}/{slot}-a{attempt}")
        return [str(pid) for pid in found]

    @property
    def cgroup_parent(self) -> str:
        return "/astraeus-agent-test"

    # Inside -------------------------------------------------------------------------------------------------------

    def _make_network(self) -> None:
        namespaces.make(self.netns)
        commands = (
            "link set lo up",
            "link add br0 type bridge",
            f"address add {ADDRESS}/16 dev br0",
            "link set br0 mtu 1400 up",
        )
        subprocess.run(
            ["nsenter", f"--net={self.netns}", "ip", "-batch", "-"], input="\n".join(commands), text=True, check=True
        )

    def _write_configuration(self) -> None:
        values: dict[str, Any] = {
            "name": "gpu-1",
            "state_dir": str(self.folder / "state"),
            "socket": str(self.socket),
            "containerd_socket": str(self.containerd.socket),
            "containerd_namespace": "agent-test",
            "runc_root": str(self.containerd.runc_root),
            "cgroup_parent": self.cgroup_parent,
            "coordinator": self.coordinator.url,
            "token_file": str(self.folder / "token"),
            "netns": str(self.netns),
            "address": ADDRESS,
            "slot_network": self._network,
            **self._settings,
        }
        lines = [f"{name} = {json.dumps(value)}" for name, value in values.items()]
        if self._network == "own":
            lines += ["[own_network]", 'bridge = "br0"', 'subnet = "10.83.3.0/24"', "prefix_len = 16"]
        if self._drives:
            lines += ["[drives]", *(f"{name} = {json.dumps(str(path))}" for name, path in self._drives.items())]
        (self.folder / "agent.toml").write_text("\n".join(lines))


def _attempt(status: SlotStatus, number: int, state: str) -> AttemptStatus | None:
    return next((one for one in status.attempts if one.attempt == number and one.state == state), None)
