"""
The task driver plugin. It holds nothing: a task's slot is found by the task's name, and all else is asked of the agent.

What Nomad does with an answer decides what is answered: StartTask can't be interrupted, so it is bounded; an error of
WaitTask ends the task, so it waits through an agent's absence; a failed RecoverTask starts the task again, so it never
fails.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Sequence

from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.timestamp_pb2 import Timestamp

from astra_agent.errors import AstraError
from astra_agent.wire import SignalRequest, SlotStatus, StopRequest
from astra_driver import execs
from astra_driver.agent_client import AgentClient
from astra_driver.agent_watch import AgentWatch
from astra_driver.base_plugin import BasePlugin
from astra_driver.events import Stories
from astra_driver.fingerprint import DRIVER, fingerprint
from astra_driver.hcl import spec_of
from astra_driver.names import TaskId, of_engine_ref
from astra_driver.proto import base_pb2, driver_pb2
from astra_driver.rpc import Context
from astra_driver.serving import Life
from astra_driver.settings import PluginSettings, TaskSettings
from astra_driver.task_slots import Slots
from astra_driver.usage import Sample, mhz_of, resource_usage

_HANDLE_VERSION = 1
_STATS_EVERY_S = 1.0


class TaskPlugin:
    """
    Args:
        cpuinfo: Text of /proc/cpuinfo.
    """

    def __init__(self, life: Life, cpuinfo: str = "") -> None:
        self._settings = PluginSettings()
        self._base = BasePlugin(base_pb2.DRIVER, DRIVER, self._configure, life.refused)
        self._slots, self._watch = _agent_at(self._settings.socket)
        self._life = life
        self._mhz = mhz_of(cpuinfo)

    def services(self) -> Sequence[tuple[ServiceDescriptor, object]]:
        return [
            (base_pb2.DESCRIPTOR.services_by_name["BasePlugin"], self._base),
            (driver_pb2.DESCRIPTOR.services_by_name["Driver"], self),
        ]

    async def close(self) -> None:
        await self._watch.close()
        await self._slots.close()

    def _configure(self, settings: PluginSettings) -> None:
        """Before anything else is asked of this process, so there is nothing to end."""
        if settings.socket != self._settings.socket:
            self._slots, self._watch = _agent_at(settings.socket)
        self._settings = settings

    # What it is ---------------------------------------------------------------------------------------------------

    async def init(self, _: driver_pb2.InitRequest, context: Context) -> driver_pb2.InitResponse:
        return driver_pb2.InitResponse()

    async def shutdown(self, _: driver_pb2.ShutdownRequest, context: Context) -> driver_pb2.ShutdownResponse:
        """The controller's own follows, and ends the process."""
        return driver_pb2.ShutdownResponse()

    async def task_config_schema(
        self, _: driver_pb2.TaskConfigSchemaRequest, context: Context
    ) -> driver_pb2.TaskConfigSchemaResponse:
        return driver_pb2.TaskConfigSchemaResponse(spec=spec_of(TaskSettings))

    async def capabilities(
        self, _: driver_pb2.CapabilitiesRequest, context: Context
    ) -> driver_pb2.CapabilitiesResponse:
        """Networks of Nomad's making are joined; those of workers are the agent's, under Nomad's mode `host`."""
        capabilities = driver_pb2.DriverCapabilities(
            send_signals=True,
            exec=True,
            fs_isolation=driver_pb2.DriverCapabilities.IMAGE,
            network_isolation_modes=[driver_pb2.NetworkIsolationSpec.HOST, driver_pb2.NetworkIsolationSpec.GROUP],
        )
        return driver_pb2.CapabilitiesResponse(capabilities=capabilities)

    async def fingerprint(
        self, _: driver_pb2.FingerprintRequest, context: Context
    ) -> AsyncIterator[driver_pb2.FingerprintResponse]:
        told: driver_pb2.FingerprintResponse | None = None
        async for state in self._watch.states():
            found = fingerprint(state)
            if found != told:
                told = found
                yield found

    async def task_events(
        self, _: driver_pb2.TaskEventsRequest, context: Context
    ) -> AsyncIterator[driver_pb2.DriverTaskEvent]:
        stories = Stories()
        with self._watch.statuses() as changes:
            while True:
                for status, sentence in await _told(stories, changes):
                    if (event := _event(status, sentence)) is not None:
                        yield event

    # The life of a task -------------------------------------------------------------------------------------------

    async def start_task(self, request: driver_pb2.StartTaskRequest, context: Context) -> driver_pb2.StartTaskResponse:
        """The slot is recorded when this returns; all that takes long comes after."""
        await self._slots.start(request.task, self._settings)
        handle = driver_pb2.TaskHandle(
            version=_HANDLE_VERSION,
            config=request.task,
            state=driver_pb2.RUNNING,
            driver_state=TaskId.parse(request.task.id).slot.encode(),
        )
        return driver_pb2.StartTaskResponse(handle=handle)

    async def recover_task(
        self, request: driver_pb2.RecoverTaskRequest, context: Context
    ) -> driver_pb2.RecoverTaskResponse:
        """Nothing is asked: what has become of the slot is WaitTask's answer, also when it is gone."""
        return driver_pb2.RecoverTaskResponse()

    async def wait_task(self, request: driver_pb2.WaitTaskRequest, context: Context) -> driver_pb2.WaitTaskResponse:
        ending = await self._slots.wait(TaskId.parse(request.task_id))
        return driver_pb2.WaitTaskResponse(
            result=driver_pb2.ExitResult(exit_code=ending.code, oom_killed=ending.oom),
            err=ending.reason if ending.code != 0 else "",
        )

    async def stop_task(self, request: driver_pb2.StopTaskRequest, context: Context) -> driver_pb2.StopTaskResponse:
        """Returns when the agent has it recorded; it kills what does not end in time, and WaitTask tells the end."""
        grace_s = request.timeout.ToTimedelta().total_seconds()
        await self._slots.stop(TaskId.parse(request.task_id), StopRequest(grace_s=grace_s, signal=request.signal))
        return driver_pb2.StopTaskResponse()

    async def destroy_task(
        self, request: driver_pb2.DestroyTaskRequest, context: Context
    ) -> driver_pb2.DestroyTaskResponse:
        await self._slots.destroy(TaskId.parse(request.task_id))
        return driver_pb2.DestroyTaskResponse()

    # On demand ----------------------------------------------------------------------------------------------------

    async def task_stats(
        self, request: driver_pb2.TaskStatsRequest, context: Context
    ) -> AsyncIterator[driver_pb2.TaskStatsResponse]:
        """Silent, and open, while there is nothing to measure."""
        slot = TaskId.parse(request.task_id).slot
        every_s = request.collection_interval.ToTimedelta().total_seconds() or _STATS_EVERY_S
        before: Sample | None = None
        while True:
            with contextlib.suppress(AstraError):
                sample = Sample(await self._slots.client.usage(slot), time.monotonic())
                yield _stats(request.task_id, resource_usage(before, sample, self._mhz))
                before = sample
            await asyncio.sleep(every_s)

    async def signal_task(
        self, request: driver_pb2.SignalTaskRequest, context: Context
    ) -> driver_pb2.SignalTaskResponse:
        await self._slots.client.signal(TaskId.parse(request.task_id).slot, SignalRequest(signal=request.signal))
        return driver_pb2.SignalTaskResponse()

    async def exec_task(self, request: driver_pb2.ExecTaskRequest, context: Context) -> driver_pb2.ExecTaskResponse:
        return await execs.run(self._slots.client, request)

    async def exec_task_streaming(
        self, requests: AsyncIterator[driver_pb2.ExecTaskStreamingRequest], context: Context
    ) -> AsyncIterator[driver_pb2.ExecTaskStreamingResponse]:
        async for response in execs.stream(self._slots.client, requests):
            yield response


def _agent_at(socket: str) -> tuple[Slots, AgentWatch]:
    client = AgentClient(socket)
    watch = AgentWatch(client)
    return Slots(client, watch), watch


async def _told(stories: Stories, changes: asyncio.Queue[SlotStatus | None]) -> list[tuple[SlotStatus, str]]:
    """Of which slot, what: by the next change, or once something is late."""
    try:
        async with asyncio.timeout(stories.pause_s(time.monotonic())):
            status = await changes.get()
    except TimeoutError:
        return list(stories.late(time.monotonic()))
    if status is None:
        stories.synced()
        return []
    return [(status, sentence) for sentence in stories.next(status, time.monotonic())]


def _event(status: SlotStatus, sentence: str) -> driver_pb2.DriverTaskEvent | None:
    """None for a slot that is not Nomad's."""
    if (named := of_engine_ref(status.engine_ref)) is None:
        return None
    allocation, task = named
    at = Timestamp()
    at.GetCurrentTime()
    return driver_pb2.DriverTaskEvent(
        task_id=f"{allocation}/{task}/{status.incarnation}",
        alloc_id=allocation,
        task_name=task,
        timestamp=at,
        message=sentence,
        annotations={"slot": status.slot},
    )


def _stats(task_id: str, used: driver_pb2.TaskResourceUsage) -> driver_pb2.TaskStatsResponse:
    at = Timestamp()
    at.GetCurrentTime()
    return driver_pb2.TaskStatsResponse(stats=driver_pb2.TaskStats(id=task_id, timestamp=at, agg_resource_usage=used))
