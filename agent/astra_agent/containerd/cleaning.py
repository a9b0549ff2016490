"""
Removing a container, whatever is left of it: after any end of containerd, of its shim, of us, also in the middle of
this.

Every step takes "it is not there" as done. The order is containerd's: without a record a running task can't even be
killed, so the record goes only when the task has; what a record holds from the collector goes after it.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path

from astra_agent.containerd import proc
from astra_agent.containerd.host_image import HostImage
from astra_agent.containerd.proto import tasks_pb2
from astra_agent.containerd.services import TASK_WAIT
from astra_agent.containerd.tasks import Tasks
from astra_agent.errors import AstraError, DeadlineExceeded, HostFault, NotFound

_DIE_TIMEOUT_S = 10.0
"""For processes that have been killed; more than that is one that waits in the kernel."""


class Cleaner:
    """
    Args:
        runc_state: The folder of runc's state for our namespace.
        execs: Where each container has a folder with the FIFOs of its execs.
    """

    def __init__(
        self, tasks: Tasks, cgroups: proc.Cgroups, runc_state: Path, execs: Path, host_image: HostImage
    ) -> None:
        self._tasks = tasks
        self._cgroups = cgroups
        self._runc_state = runc_state
        self._execs = execs
        self._host_image = host_image

    async def remove(self, container: str, cgroup: str, keeps_exits: bool) -> None:
        """
        Idempotent.

        Raises:
            Unavailable: containerd is away; nothing is lost, do it again.
            HostFault: a process does not die (named), or something can't be removed. The rest has been.
        """
        snapshotter = await self._ensure_record(container)
        await self._end_task(container, cgroup)
        await self._end_processes(container, cgroup)
        failure: AstraError | None = None
        for step in self._steps(container, cgroup, snapshotter, keeps_exits):
            try:
                await step()
            except AstraError as error:
                failure = failure or error
        if failure is not None:
            raise failure

    def _steps(
        self, container: str, cgroup: str, snapshotter: str, keeps_exits: bool
    ) -> Iterator[Callable[[], Awaitable[None]]]:
        yield partial(self._tasks.delete_record, container)
        if snapshotter:
            yield partial(self._tasks.remove_snapshot, container, snapshotter)
        if keeps_exits:
            yield partial(self._tasks.forget_exit, container)
        yield partial(self._remove_state, container, cgroup)
        yield partial(self._host_image.remove, container)

    async def _ensure_record(self, container: str) -> str:
        """The snapshotter of the container's record. A task without a record gets one, so that it can be ended."""
        record = await self._tasks.record(container)
        if record is not None:
            return record.snapshotter
        if any(task.id == container for task in await self._tasks.list()):
            await self._tasks.create_record(container, {}, b"{}")
        return ""

    async def _end_task(self, container: str, cgroup: str) -> None:
        """Most have ended when they are removed. runc takes two seconds for one that never started, so it is killed."""
        if self._kill(cgroup):
            await self._gone(container, cgroup)
        try:
            await self._tasks.delete(container)
        except HostFault:
            await self._tasks.kill(container)
            await self._gone(container, cgroup)
            await self._tasks.delete(container)

    async def _gone(self, container: str, cgroup: str) -> None:
        request = tasks_pb2.WaitRequest(container_id=container)
        try:
            await self._tasks.client.call(TASK_WAIT, request, timeout_s=_DIE_TIMEOUT_S)
        except NotFound:
            return
        except DeadlineExceeded as error:
            raise self._stuck(container, cgroup) from error

    async def _end_processes(self, container: str, cgroup: str) -> None:
        """What still runs in the cgroup when containerd knows nothing (any more)."""
        deadline = asyncio.get_running_loop().time() + _DIE_TIMEOUT_S
        while self._kill(cgroup):
            if asyncio.get_running_loop().time() > deadline:
                raise self._stuck(container, cgroup)
            await asyncio.sleep(0.01)

    def _kill(self, cgroup: str) -> bool:
        """Whether there was anything to kill."""
        pids = self._cgroups.processes(cgroup)
        for pid in pids:
            proc.send(pid, signal.SIGKILL, cgroup)
        return bool(pids)

    def _stuck(self, container: str, cgroup: str) -> HostFault:
        pids = self._cgroups.processes(cgroup)
        which = f"process {pids[0]}" if pids else "a process"
        return HostFault(f"{which} of {container} does not die (waiting in the kernel)")

    async def _remove_state(self, container: str, cgroup: str) -> None:
        """One of eight interrupted creates left a cgroup, or a folder of runc."""
        self._cgroups.remove(cgroup)
        for folder in (self._runc_state / container, self._execs / container):
            if folder.exists():
                await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
