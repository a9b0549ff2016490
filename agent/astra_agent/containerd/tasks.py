"""
Single calls about one container, with the answers that mean "done already" taken as done. No sequences here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from google.protobuf.any_pb2 import Any

from astra_agent.containerd.client import CALL_TIMEOUT_S, Client
from astra_agent.containerd.proto import containers_pb2, runc_pb2, sandbox_pb2, snapshots_pb2, tasks_pb2, types_pb2
from astra_agent.containerd.services import (
    CONTAINER_CREATE,
    CONTAINER_DELETE,
    CONTAINER_GET,
    SANDBOX_CREATE,
    SANDBOX_DELETE,
    SNAPSHOT_MOUNTS,
    SNAPSHOT_PREPARE,
    SNAPSHOT_REMOVE,
    TASK_CREATE,
    TASK_DELETE,
    TASK_GET,
    TASK_KILL,
    TASK_LIST,
    TASK_START,
)
from astra_agent.errors import Conflict, HostFault, NotFound

RUNTIME = "io.containerd.runc.v2"
_SPEC_TYPE = "types.containerd.io/opencontainers/runtime-spec/1/Spec"

DELETE_TIMEOUT_S = 60.0
"""Outliers of seconds were seen on a quiet machine."""


class Tasks:
    """
    Args:
        runc_root: Where runc keeps its state; None leaves it to containerd. Two containerds on one machine that may
            use one namespace must differ here.
        by_systemd: runc has systemd make the cgroups.
    """

    def __init__(self, client: Client, runc_root: Path | None, *, by_systemd: bool = False) -> None:
        self.client = client
        self._options: Any | None = None
        if runc_root is not None or by_systemd:
            options = runc_pb2.Options(root=str(runc_root or ""), systemd_cgroup=by_systemd)
            self._options = Any(type_url="containerd.runc.v1.Options", value=options.SerializeToString())

    # Records ------------------------------------------------------------------------------------------------------

    async def record(self, container: str) -> containers_pb2.Container | None:
        try:
            answer = await self.client.call(CONTAINER_GET, containers_pb2.GetContainerRequest(id=container))
        except NotFound:
            return None
        return answer.container

    async def create_record(
        self, container: str, labels: Mapping[str, str], spec: bytes, snapshotter: str = ""
    ) -> bool:
        """
        Args:
            spec: JSON.
            snapshotter: When set, the record holds the snapshot of the container's name from the collector.
        Returns: False when there is one already, which stays as it is.
        """
        record = containers_pb2.Container(
            id=container,
            labels=labels,
            runtime=containers_pb2.Container.Runtime(name=RUNTIME, options=self._options),
            spec=Any(type_url=_SPEC_TYPE, value=spec),
            snapshotter=snapshotter,
            snapshot_key=container if snapshotter else "",
        )
        try:
            await self.client.call(CONTAINER_CREATE, containers_pb2.CreateContainerRequest(container=record))
        except Conflict:
            return False
        return True

    async def delete_record(self, container: str) -> None:
        try:
            await self.client.call(CONTAINER_DELETE, containers_pb2.DeleteContainerRequest(id=container))
        except NotFound:
            return

    async def keep_exit(self, container: str) -> None:
        """A record in the sandbox store, without which 1.7 and later lose the code of an exit that they do not see."""
        runtime = sandbox_pb2.Sandbox.Runtime(name=RUNTIME)
        record = sandbox_pb2.Sandbox(sandbox_id=container, runtime=runtime)
        try:
            await self.client.call(SANDBOX_CREATE, sandbox_pb2.StoreCreateRequest(sandbox=record))
        except Conflict:
            return

    async def forget_exit(self, container: str) -> None:
        request = sandbox_pb2.StoreDeleteRequest(sandbox_id=container)
        try:
            await self.client.call(SANDBOX_DELETE, request)
        except NotFound:
            return
        except HostFault:
            # 1.7 fails so in a namespace that has never had such a record: now it has.
            await self.keep_exit(container)
            await self.client.call(SANDBOX_DELETE, request)

    # Snapshots ----------------------------------------------------------------------------------------------------

    async def prepare_snapshot(self, container: str, snapshotter: str, parent: str) -> Sequence[types_pb2.Mount]:
        """The mounts of the container's own snapshot, made or found."""
        prepare = snapshots_pb2.PrepareSnapshotRequest(snapshotter=snapshotter, key=container, parent=parent)
        try:
            return (await self.client.call(SNAPSHOT_PREPARE, prepare)).mounts
        except Conflict:
            mounts = snapshots_pb2.MountsRequest(snapshotter=snapshotter, key=container)
            return (await self.client.call(SNAPSHOT_MOUNTS, mounts)).mounts

    async def remove_snapshot(self, container: str, snapshotter: str) -> None:
        request = snapshots_pb2.RemoveSnapshotRequest(snapshotter=snapshotter, key=container)
        try:
            await self.client.call(SNAPSHOT_REMOVE, request)
        except NotFound:
            return

    # Tasks --------------------------------------------------------------------------------------------------------

    async def create(self, container: str, rootfs: Sequence[types_pb2.Mount], output: str) -> None:
        """
        No bound: a Create that is given up is cancelled in the middle, and leaves half a container.

        Args:
            output: URI of what takes standard output and error.
        """
        # An empty stderr crashes the shim.
        request = tasks_pb2.CreateTaskRequest(
            container_id=container, rootfs=rootfs, stdout=output, stderr=output, options=self._options
        )
        await self.client.call(TASK_CREATE, request, timeout_s=None)

    async def get(self, container: str) -> tasks_pb2.Process | None:
        try:
            answer = await self.client.call(TASK_GET, tasks_pb2.GetRequest(container_id=container))
        except NotFound:
            return None
        return answer.process

    async def list(self) -> Sequence[tasks_pb2.Process]:
        return (await self.client.call(TASK_LIST, tasks_pb2.ListTasksRequest())).tasks

    async def start(self, container: str) -> None:
        await self.client.call(TASK_START, tasks_pb2.StartRequest(container_id=container))

    async def kill(self, container: str, exec_id: str = "") -> None:
        """SIGKILL: to everything in the container's cgroup, or to the one process of an exec."""
        request = tasks_pb2.KillRequest(container_id=container, exec_id=exec_id, signal=9, all=not exec_id)
        try:
            await self.client.call(TASK_KILL, request)
        except NotFound:
            return

    async def delete(self, container: str, timeout_s: float = DELETE_TIMEOUT_S) -> None:
        """
        Also removes the ghost that an interrupted Create leaves, though the answer is then NOT_FOUND.

        Raises: HostFault: it still runs.
        """
        request = tasks_pb2.DeleteTaskRequest(container_id=container)
        try:
            await self.client.call(TASK_DELETE, request, timeout_s=max(timeout_s, CALL_TIMEOUT_S))
        except NotFound:
            return
