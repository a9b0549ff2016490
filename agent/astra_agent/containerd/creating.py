"""
Creating a container, up to where its program waits before its first instruction.

The record comes before the snapshot, since the collector takes a snapshot that nothing refers to; and nothing is asked
of containerd that is not needed here: this is on the way of every restart of a gang.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal
from urllib.parse import quote, urlencode

from astra_agent.cgroup_names import CgroupDriver
from astra_agent.containerd import facts
from astra_agent.containerd.host_image import HostImage
from astra_agent.containerd.proto.types_pb2 import Mount
from astra_agent.containerd.rootfs import HostRoot, SnapshotRoot, root_of
from astra_agent.containerd.spec import Machine, Spec, container_spec
from astra_agent.containerd.tasks import Tasks
from astra_agent.errors import Conflict, HostFault
from astra_agent.runtime import ContainerPlan

_CUT_OFF_S = 15.0
"""For some seconds what is left of a Create that was cut off, with its agent, is in the way of the next of that ID."""
_CUT_OFF_AGAIN_S = 1.0


class Creator:
    def __init__(
        self,
        tasks: Tasks,
        host_image: HostImage,
        init_path: Path,
        logger_path: Path,
        cgroup_version: Literal[1, 2],
        cgroup_driver: CgroupDriver,
    ) -> None:
        self._tasks = tasks
        self._host_image = host_image
        self._init_path = init_path
        self._logger_path = logger_path
        self._cgroup_version = cgroup_version
        self._cgroup_driver = cgroup_driver

    async def create(self, plan: ContainerPlan, keeps_exits: bool) -> None:
        """
        Idempotent; goes on where an earlier one was cut off. Must not be cancelled.

        Raises: Unavailable, HostFault; what has been made stays until the container is removed.
        """
        root = root_of(plan.image.handle)
        machine = self._machine()
        rootfs: Sequence[Mount] = ()
        image_mounts: list[Spec] = []
        if isinstance(root, HostRoot):
            made = await self._host_image.create(plan.id)
            rootfs = [Mount(type=made.rootfs.type, source=made.rootfs.source, options=made.rootfs.options)]
            image_mounts = [mount.as_json() for mount in made.mounts]
        spec = json.dumps(container_spec(plan, machine, image_mounts)).encode()
        if keeps_exits:
            await self._tasks.keep_exit(plan.id)
        snapshotter = root.snapshotter if isinstance(root, SnapshotRoot) else ""
        goes_on = not await self._tasks.create_record(plan.id, plan.labels, spec, snapshotter)
        if goes_on:
            await self._check_labels(plan)
            if await self._tasks.get(plan.id) is not None:
                return
        if isinstance(root, SnapshotRoot):
            rootfs = await self._tasks.prepare_snapshot(plan.id, root.snapshotter, root.chain)
        _make_folder(Path(plan.log_path).parent)
        await self._create_task(plan, rootfs, patience_s=_CUT_OFF_S if goes_on else 0.0)

    async def _create_task(self, plan: ContainerPlan, rootfs: Sequence[Mount], patience_s: float) -> None:
        until_s = time.monotonic() + patience_s
        while True:
            try:
                await self._create_once(plan, rootfs)
                return
            except HostFault:
                if time.monotonic() >= until_s:
                    raise
            await asyncio.sleep(_CUT_OFF_AGAIN_S)

    async def _create_once(self, plan: ContainerPlan, rootfs: Sequence[Mount]) -> None:
        try:
            await self._tasks.create(plan.id, rootfs, self._output(plan))
        except Conflict:
            # The ghost of a Create that containerd did not live to see the end of: it is there, and it is not.
            if await self._tasks.get(plan.id) is None:
                await self._tasks.delete(plan.id)
                await self._tasks.create(plan.id, rootfs, self._output(plan))
        except HostFault as error:
            raise HostFault(f"{plan.id} can't be created: {_cause(str(error))}") from error

    def _output(self, plan: ContainerPlan) -> str:
        """Where the shim sends what the program says. Into a file of its own it writes until the first error only."""
        paths = urlencode({"out": plan.log_path, "err": plan.error_log_path or plan.log_path})
        return f"binary://{quote(str(self._logger_path))}?{paths}"

    async def _check_labels(self, plan: ContainerPlan) -> None:
        record = await self._tasks.record(plan.id)
        if record is not None and dict(record.labels) != dict(plan.labels):
            raise HostFault(f"container {plan.id} is there already, with other labels: remove it first")

    def _machine(self) -> Machine:
        limits = facts.limits_of(self._tasks.client.socket)
        return Machine(
            init_path=str(self._init_path),
            cgroup_version=self._cgroup_version,
            open_files=limits.open_files,
            processes=facts.processes_for_one_container(),
            cgroup_driver=self._cgroup_driver,
        )


def _make_folder(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise HostFault(f"{path} can't be made: {error.strerror}") from error


def _cause(text: str) -> str:
    """containerd, shim and runc each put their own words before the cause."""
    return text.rpartition("runc create failed: ")[2]
