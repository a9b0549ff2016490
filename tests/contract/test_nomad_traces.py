"""
What real Nomads have said to a driver, played again to ours, call by call in the recorded order: whatever happened
there, every call is answered as Nomad needs it, and nothing starts twice.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration

from astra_driver.names import TaskId
from astra_driver.proto import driver_pb2
from tests.agent.daemon import Daemon, a_daemon
from tests.contract.test_nomad_plugin import BOUND_S, FIXTURES, container, start, task, until_running
from tests.fakes.nomad_host import PluginProcess, Version, scripts

SCENARIOS = (
    "agent-start",
    "alloc-restart",
    "alloc-stop-batch",
    "client-kill9",
    "client-restart",
    "exit-3",
    "job-stop",
    "job-stop-ignored-signal",
    "leader-stop",
    "machine-restart",
    "plugin-kill9",
    "start-die-in-start",
    "template-change",
)


class Replay:
    """One trace. Its processes are ours; its tasks run on the agent's runtime in memory."""

    def __init__(self, calls: list[dict[str, Any]], version: Version, agent: Daemon, folders: Path) -> None:
        self._calls = calls
        self._version: Version = version
        self._agent = agent
        self._folders = folders
        self._ignores_signals = any(call.get("result", {}).get("exit_code") == 137 for call in calls)
        self._processes: dict[str, PluginProcess] = {}
        self._handles: dict[str, driver_pb2.TaskHandle] = {}
        self._waits: dict[str, list[asyncio.Task[Any]]] = {}
        self._streams: list[Any] = []

    async def play(self) -> None:
        try:
            for call in self._calls:
                if call["process"].startswith("driver"):
                    await self._play(call)
        finally:
            for stream in self._streams:
                stream.cancel()
            waits = [one for waits in self._waits.values() for one in waits]
            for one in waits:
                one.cancel()
            await asyncio.gather(*waits, return_exceptions=True)
            for process in self._processes.values():
                await process.kill()

    async def _play(self, call: dict[str, Any]) -> None:
        name, phase, process = call["rpc"], call.get("phase"), call["process"]
        if name == "(exec)":
            await self._replace(process)
        elif phase == "call":
            await getattr(self, f"_{name.replace('.', '_')}", self._plain)(await self._serving(process), call)
        elif (name, phase) == ("WaitTask", "return"):
            await self._returned(call)

    async def _replace(self, process: str) -> None:
        """A new launch; one that is still there was killed."""
        for known in [name for name in self._processes if name == process]:
            await self._processes.pop(known).die()
        self._processes[process] = await PluginProcess.launch(scripts() / "astra-nomad-driver", self._version)

    async def _serving(self, process: str) -> PluginProcess:
        if process not in self._processes:
            await self._replace(process)
            await self._processes[process].set_config({"socket": str(self._agent.config.socket)})
        return self._processes[process]

    # Calls --------------------------------------------------------------------------------------------------------

    async def _plain(self, plugin: PluginProcess, call: dict[str, Any]) -> None:
        await plugin.call(call["rpc"].removeprefix("Driver."))

    async def _SetConfig(self, plugin: PluginProcess, _: dict[str, Any]) -> None:  # noqa: N802 -- as Nomad calls it
        await plugin.set_config({"socket": str(self._agent.config.socket)})

    async def _Controller_Shutdown(self, plugin: PluginProcess, call: dict[str, Any]) -> None:  # noqa: N802
        await plugin.kill()
        assert plugin.graceful, plugin.lines
        del self._processes[call["process"]]

    async def _Fingerprint(self, plugin: PluginProcess, _: dict[str, Any]) -> None:  # noqa: N802
        stream = plugin.stream("Fingerprint")
        self._streams.append(stream)
        assert (await asyncio.wait_for(stream.read(), BOUND_S)).health == driver_pb2.FingerprintResponse.HEALTHY

    async def _TaskEvents(self, plugin: PluginProcess, _: dict[str, Any]) -> None:  # noqa: N802
        self._streams.append(plugin.stream("TaskEvents"))

    async def _TaskStats(self, plugin: PluginProcess, call: dict[str, Any]) -> None:  # noqa: N802
        request = driver_pb2.TaskStatsRequest(task_id=call["task"], collection_interval=Duration(seconds=1))
        self._streams.append(plugin.stream("TaskStats", request))

    async def _StartTask(self, plugin: PluginProcess, call: dict[str, Any]) -> None:  # noqa: N802
        name = call["task"]
        self._handles[name] = await start(plugin, self._task(name))
        await self._runs(name)

    async def _RecoverTask(self, plugin: PluginProcess, call: dict[str, Any]) -> None:  # noqa: N802
        name = call["handle_task"]
        handle = driver_pb2.TaskHandle()
        handle.CopyFrom(self._handles.get(name) or driver_pb2.TaskHandle(version=1, config=self._task(name)))
        handle.config.msgpack_driver_config = b""
        await plugin.call("RecoverTask", driver_pb2.RecoverTaskRequest(task_id="", handle=handle))

    async def _WaitTask(self, plugin: PluginProcess, call: dict[str, Any]) -> None:  # noqa: N802
        request = driver_pb2.WaitTaskRequest(task_id=call["task"])
        await self._started_before(plugin, call["task"])
        one = asyncio.create_task(plugin.call("WaitTask", request, timeout_s=None))
        self._waits.setdefault(call["task"], []).append(one)

    async def _StopTask(self, plugin: PluginProcess, call: dict[str, Any]) -> None:  # noqa: N802
        await self._started_before(plugin, call["task"])
        await self._waited_for(plugin, call["task"])
        timeout = Duration(nanos=int(min(float(call.get("timeout", 5.0)), 0.2) * 1e9))
        await plugin.call("StopTask", driver_pb2.StopTaskRequest(task_id=call["task"], timeout=timeout))

    async def _DestroyTask(self, plugin: PluginProcess, call: dict[str, Any]) -> None:  # noqa: N802
        await plugin.call("DestroyTask", driver_pb2.DestroyTaskRequest(task_id=call["task"], force=True))

    async def _SignalTask(self, plugin: PluginProcess, call: dict[str, Any]) -> None:  # noqa: N802
        await self._started_before(plugin, call["task"])
        request = driver_pb2.SignalTaskRequest(task_id=call["task"], signal=call["signal"])
        await plugin.call("SignalTask", request)

    async def _ExecTask(self, plugin: PluginProcess, call: dict[str, Any]) -> None:  # noqa: N802
        request = driver_pb2.ExecTaskRequest(task_id=call["task"], command=["sh", "-c", "echo reloaded"])
        assert (await plugin.call("ExecTask", request)).stdout == b"reloaded\n"

    # What the trace leaves out ------------------------------------------------------------------------------------

    def _task(self, name: str) -> driver_pb2.TaskConfig:
        script = "trap '' TERM; sleep 300" if self._ignores_signals else "sleep 300"
        config = {"image": "host", "command": "sh", "args": ["-c", script]}
        return task(name, config, alloc_dir=str(self._folders))

    async def _started_before(self, plugin: PluginProcess, name: str) -> None:
        """Most traces begin with tasks that run already."""
        if name not in self._handles:
            self._handles[name] = await start(plugin, self._task(name))
            await self._runs(name)

    async def _waited_for(self, plugin: PluginProcess, name: str) -> None:
        if name not in self._waits:
            await self._WaitTask(plugin, {"task": name})

    async def _runs(self, name: str) -> None:
        """A start after another one in the same allocation is the next attempt of the same slot."""
        slot = TaskId.parse(name).slot
        starts = [known for known in self._handles if TaskId.parse(known).slot == slot]
        await until_running(self._agent, name, len(starts) - 1)

    async def _returned(self, call: dict[str, Any]) -> None:
        """The end that the trace has recorded, if nothing has ended the task here."""
        name, code = call["task"], call["result"]["exit_code"]
        if not self._waits.get(name):
            return
        one = self._waits[name].pop(0)
        if not one.done():
            slot = TaskId.parse(name).slot
            for running in [known for known in self._agent.containers.names() if known.startswith(f"{slot}-a")]:
                if code not in (137, 143):
                    self._agent.containers.exit(running, code)
        answer = await asyncio.wait_for(one, BOUND_S)
        assert answer.result.exit_code == code


@pytest.mark.parametrize("version", ["1.6.5", "2.0.5"])
@pytest.mark.parametrize("scenario", SCENARIOS)
async def test_a_recorded_trace_is_answered_call_by_call(tmp_path: Path, scenario: str, version: Version) -> None:
    calls = json.loads((FIXTURES / f"trace.{scenario}.{version}.json").read_text())["calls"]
    for name in ("alloc", "w/local", "w/secrets", "lead/local", "lead/secrets", "side/local", "side/secrets"):
        (tmp_path / "allocation" / name).mkdir(parents=True)
    for name in {TaskId.parse(call["task"]).task for call in calls if call.get("task")}:
        for folder in ("local", "secrets"):
            (tmp_path / "allocation" / name / folder).mkdir(parents=True, exist_ok=True)
    async with a_daemon(tmp_path / "agent") as agent:
        replay = Replay(calls, version, agent, tmp_path / "allocation")
        await replay.play()
        assert all(count == 1 for count in agent.containers.starts.values()), agent.containers.starts
    assert container("alloc1/w/start1") == "alloc1-w-a0"
