"""
The port `Containers` on containerd. Every sequence here may be cut off at any point, by containerd's end or by ours,
and be begun again.
"""

from __future__ import annotations

import asyncio
import signal
from contextlib import suppress
from pathlib import Path

from astra_agent import cgroup_names
from astra_agent.cgroup_names import CgroupDriver
from astra_agent.containerd import facts, oom, proc
from astra_agent.containerd.cleaning import Cleaner
from astra_agent.containerd.client import Client
from astra_agent.containerd.creating import Creator
from astra_agent.containerd.execs import Wish, answers_of, open_exec
from astra_agent.containerd.facts import Service
from astra_agent.containerd.host_image import HostImage
from astra_agent.containerd.proto import containers_pb2, namespaces_pb2, tasks_pb2
from astra_agent.containerd.services import CONTAINER_LIST, NAMESPACE_CREATE, TASK_WAIT
from astra_agent.containerd.spec import INIT
from astra_agent.containerd.tasks import Tasks
from astra_agent.containerd.terminating import terminate
from astra_agent.containerd.usage import read_usage
from astra_agent.errors import AstraError, Conflict, DeadlineExceeded, HostFault, NotFound, Unavailable
from astra_agent.kernel_events import KERNEL_LOG
from astra_agent.runtime import (
    ContainerPlan,
    ContainerStatus,
    ExecSession,
    ExitStatus,
    FoundContainer,
    RuntimeFacts,
    Usage,
)

_KILLED = 128 + signal.SIGKILL
_RETRY_S = 0.1
"""Between questions to a containerd that is away; it is back some 0.5 s after its start."""
_DOUBT_S = 15.0
"""How long a Start whose outcome is not known waits for containerd to come back."""
_TRIALS_S = 30.0
"""A GPU that sleeps takes some seconds to wake when it is opened."""
_RUNC_STATE = Path("/run/containerd/runc")
"""Where runc's state is when nobody says otherwise."""

_STATES = {
    tasks_pb2.CREATED: "created",
    tasks_pb2.RUNNING: "running",
    tasks_pb2.STOPPED: "stopped",
    tasks_pb2.PAUSED: "running",
    tasks_pb2.PAUSING: "running",
}


class ContainerdContainers:
    """
    Args:
        client: Its namespace is this agent's alone.
        state_dir: The agent's own folder.
        cgroup_parent: See `cgroup_names`: where the cgroup of a container lies follows from it and the driver. The
            plans must say the same, so that it is found when nothing else of the container is known.
        init_path: The first process of containers, see `astra_agent.init.program`.
        logger_path: The logger of containers, see `astra_agent.init.logger`.
        host_image: What makes containers of the image `host`; None: with its default settings.
        snapshotter: Must work, or `probe` refuses.
        runc_root: Where runc keeps its state; None: containerd's default. See `Tasks`.
        kernel_log: Tells which of its processes the kernel killed for want of memory, once a cgroup is gone.
    """

    def __init__(
        self,
        client: Client,
        *,
        state_dir: Path,
        cgroup_parent: str,
        cgroup_driver: CgroupDriver = "cgroupfs",
        init_path: Path,
        logger_path: Path,
        host_image: HostImage | None = None,
        snapshotter: str = "overlayfs",
        runc_root: Path | None = None,
        kernel_log: Path = KERNEL_LOG,
    ) -> None:
        self._client = client
        self._cgroup_driver: CgroupDriver = cgroup_driver
        self._cgroup_parent = cgroup_parent
        self._kernel_log = kernel_log
        self._execs = state_dir / "exec"
        self._snapshotter = snapshotter
        self._cgroups = proc.Cgroups.of_this_machine()
        self._tasks = Tasks(client, runc_root, by_systemd=cgroup_driver == "systemd")
        host_image = host_image or HostImage(state_dir)
        self._creator = Creator(self._tasks, host_image, init_path, logger_path, self._cgroups.version, cgroup_driver)
        runc_state = (runc_root or _RUNC_STATE) / client.namespace
        self._cleaner = Cleaner(self._tasks, self._cgroups, runc_state, self._execs, host_image)
        self._creating: dict[str, asyncio.Task[None]] = {}
        self._service: Service | None = None

    # The port -----------------------------------------------------------------------------------------------------

    async def probe(self) -> RuntimeFacts:
        self._service = None
        service = await self._ask_service()
        limits = facts.limits_of(self._client.socket)
        return RuntimeFacts(
            version=service.version,
            cgroup_version=self._cgroups.version,
            memlock_unlimited=limits.memlock_unlimited,
            findings=(*facts.findings(limits), *self._cgroup_findings()),
        )

    async def create(self, plan: ContainerPlan) -> None:
        if plan.cgroup_path != self._cgroup(plan.id):
            raise ValueError(f"the cgroup of {plan.id} must be {self._cgroup(plan.id)}, not {plan.cgroup_path}")
        task = self._creating.get(plan.id)
        if task is None:
            task = self._creating[plan.id] = asyncio.create_task(self._create(plan))
            task.add_done_callback(lambda _: self._creating.pop(plan.id, None))
        await asyncio.shield(task)

    async def try_inside(self, container: str, trials: tuple[str, ...]) -> tuple[str, ...]:
        folder = self._execs / container
        wish = Wish((INIT, "--try", *trials), tty=False, stdin=False, width=0, height=0)
        try:
            async with asyncio.timeout(_TRIALS_S):
                made = await open_exec(
                    self._tasks, folder, container, self._cgroup(container), self._cgroups, wish, waiting=True
                )
                try:
                    return await answers_of(made, len(trials))
                finally:
                    await made.close()
        except TimeoutError as error:
            raise HostFault(f"the devices of {container} can't be tried out within {_TRIALS_S:g} s") from error

    async def start(self, container: str) -> None:
        deadline = asyncio.get_running_loop().time() + _DOUBT_S
        while True:
            try:
                await self._tasks.start(container)
                return
            except NotFound:
                raise NotFound(f"container {container} is not there (any more): create it first") from None
            except AstraError as error:
                # A second Start of what runs is refused as well: what the task is now says what came of the first.
                state = (await self._state_after_doubt(container, deadline)).state
                if state in ("running", "stopped"):
                    return
                if state == "absent" or isinstance(error, HostFault):
                    raise HostFault(f"{container} did not start: {error}") from error
                if asyncio.get_running_loop().time() > deadline:
                    raise

    async def status(self, container: str) -> ContainerStatus:
        return await self._status_of(container, await self._tasks.get(container))

    async def wait(self, container: str) -> ExitStatus:
        request = tasks_pb2.WaitRequest(container_id=container)
        while True:
            try:
                answer = await self._client.call(TASK_WAIT, request, timeout_s=None)
            except NotFound:
                return ExitStatus(None)
            except (Unavailable, DeadlineExceeded, HostFault):
                # containerd or the shim has ended: the next answer tells what is left.
                await asyncio.sleep(_RETRY_S)
            else:
                return await self._exit_of(container, answer.exit_status)

    async def terminate(self, container: str) -> None:
        await terminate(self._cgroups, self._cgroup(container))

    async def signal(self, container: str, number: int) -> None:
        await asyncio.to_thread(proc.signal_program, self._cgroups, self._cgroup(container), number, INIT)

    async def usage(self, container: str) -> Usage | None:
        return await asyncio.to_thread(read_usage, self._cgroups, self._cgroup(container))

    async def kill(self, container: str) -> None:
        """Directly, since runc takes some 20 ms for it; with the first process the kernel ends all the others."""
        await asyncio.to_thread(self._kill, self._cgroup(container))

    async def processes(self, container: str) -> tuple[int, ...]:
        return tuple(self._cgroups.processes(self._cgroup(container)))

    async def remove(self, container: str) -> None:
        if creating := self._creating.get(container):
            await asyncio.wait((creating,))
        service = await self._ask_service()
        await self._cleaner.remove(container, self._cgroup(container), service.keeps_exits)

    async def list(self) -> tuple[FoundContainer, ...]:
        request = containers_pb2.ListContainersRequest()
        records, tasks = await asyncio.gather(self._client.call(CONTAINER_LIST, request), self._tasks.list())
        by_id = {task.id: task for task in tasks}
        labels = {record.id: dict(record.labels) for record in records.containers}
        return tuple(
            [
                FoundContainer(name, labels.get(name, {}), await self._status_of(name, by_id.get(name)))
                for name in sorted(labels.keys() | by_id.keys())
            ]
        )

    async def exec(
        self, container: str, args: tuple[str, ...], tty: bool, stdin: bool, width: int, height: int
    ) -> ExecSession:
        wish = Wish(args, tty, stdin, width, height)
        folder = self._execs / container
        return await open_exec(self._tasks, folder, container, self._cgroup(container), self._cgroups, wish)

    async def close(self) -> None:
        """Let what is being created come to its end. The client stays open."""
        while self._creating:
            await asyncio.wait(self._creating.values())

    # Inside -------------------------------------------------------------------------------------------------------

    def _cgroup(self, container: str) -> str:
        return cgroup_names.of_container(self._cgroup_driver, self._cgroup_parent, container)

    def _cgroup_findings(self) -> tuple[str, ...]:
        return tuple(facts.findings_of_systemd()) if self._cgroup_driver == "systemd" else ()

    async def _ask_service(self) -> Service:
        """Once; again after containerd was away, since it may be another version then."""
        service = self._service
        if service is None:
            if self._cgroup_driver == "systemd":
                facts.check_systemd(self._cgroups.version)
            service = await facts.ask_service(self._client, self._snapshotter)
            namespace = namespaces_pb2.Namespace(name=self._client.namespace)
            request = namespaces_pb2.CreateNamespaceRequest(namespace=namespace)
            with suppress(Conflict):
                await self._client.call(NAMESPACE_CREATE, request)
            self._service = service
        return service

    async def _create(self, plan: ContainerPlan) -> None:
        service = await self._ask_service()
        try:
            await self._creator.create(plan, service.keeps_exits)
        except Unavailable:
            self._service = None
            raise

    async def _state_after_doubt(self, container: str, deadline: float) -> ContainerStatus:
        while True:
            try:
                return await self.status(container)
            except (Unavailable, DeadlineExceeded):
                if asyncio.get_running_loop().time() > deadline:
                    raise
                await asyncio.sleep(_RETRY_S)

    async def _status_of(self, container: str, task: tasks_pb2.Process | None) -> ContainerStatus:
        if task is None:
            return ContainerStatus("absent")
        match _STATES.get(task.status):
            case "stopped":
                return ContainerStatus("stopped", await self._exit_of(container, task.exit_status))
            case "created" if not proc.runs(task.pid, INIT):
                return ContainerStatus("created", pid=task.pid)
            case _:
                # Also what is "created" for containerd, which was killed in the middle of Start: the program runs, and
                # another Start would wait for ever.
                return ContainerStatus("running", pid=task.pid)

    async def _exit_of(self, container: str, code: int) -> ExitStatus:
        """
        137 is a kill, unless the kernel has counted one of its own: in the cgroup, which is there until the task is
        deleted, but not where systemd has made it; then its log knows.
        """
        if code != _KILLED:
            return ExitStatus(code)
        cgroup = self._cgroup(container)
        if self._cgroups.out_of_memory_kills(cgroup) > 0:
            return ExitStatus(code, oom=True)
        if self._cgroups.directories(cgroup):  # so the count was its own, and not that of one that had just gone
            return ExitStatus(code)
        return ExitStatus(code, await asyncio.to_thread(oom.was_told, self._kernel_log, cgroup))

    def _kill(self, cgroup: str) -> None:
        for pid in self._cgroups.processes(cgroup):
            proc.send(pid, signal.SIGKILL, cgroup)
