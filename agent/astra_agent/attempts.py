"""
The life of one attempt: armed, started, stopped, ended, removed. One task follows it from its record to its removal.

What is wanted stands in the record, written before the task is woken; what is there is asked of the runtime. So the
task that begins anew after the agent's death does what the first one would have done next, and no program starts twice:
`start_begun` is recorded before the runtime is told, and from then on a container that is not there has *ended*.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, ParamSpec, Protocol

from astra_agent import plans, processes
from astra_agent.errors import AstraError, DeadlineExceeded, HostFault, InvalidRequest, NotFound, Unavailable
from astra_agent.lease import now
from astra_agent.records import AttemptRecord, ExitRecord, SlotRecord
from astra_agent.runtime import ContainerPlan, Containers, ContainerStatus, ExitStatus
from astra_agent.signals import signal_number
from astra_agent.tools import Tools

log = logging.getLogger(__name__)

Arguments = ParamSpec("Arguments")

_ASK_AGAIN_S = 1.0
_SAVE_AGAIN_S = 2.0
_WATCH_AGAIN_S = 5.0
_REMOVE_AGAIN_S = 5.0
_KILL_AGAIN_S = 10.0
_LOOK_FIRST_S = 0.02
_LOOK_MAX_S = 1.0


class Keeper(Protocol):
    """What an attempt needs of its slot."""

    @property
    def record(self) -> SlotRecord: ...

    def save(self, record: SlotRecord) -> None:
        """Durable, and told to whoever listens. Raises: HostFault."""
        ...

    def publish(self) -> None: ...

    def plan(self, attempt: AttemptRecord) -> ContainerPlan:
        """With its files written. Raises: HostFault, InvalidRequest."""
        ...

    def files(self, attempt: int) -> Path:
        """The folder of the files that `plan` writes."""
        ...


class Attempt:
    """
    Attributes:
        waits: Its container has been seen waiting for its start, by this agent.
        stopping: It is being stopped.
        stuck: The sentence while a killed process of it does not die.
    """

    def __init__(self, number: int, keeper: Keeper, tools: Tools) -> None:
        self.number = number
        self.waits = False
        self.stopping = False
        self.stuck: str | None = None
        self._id = plans.container_id(keeper.record.request.slot, number)
        self._keeper = keeper
        self._tools = tools
        self._containers: Containers = tools.containers
        self._woken = asyncio.Event()
        self._acknowledged = asyncio.Event()
        self._found = ContainerStatus("absent")
        self._exit: ExitStatus | None = None
        self._killed = False

    def wake(self) -> None:
        """The record says something new."""
        self._woken.set()

    def acknowledge(self) -> None:
        """How it ended has arrived where it is needed: the container may go."""
        self._acknowledged.set()

    async def run(self) -> None:
        """Returns when nothing of it is left on the machine but its log."""
        if self._record.exit is None:
            await self._live()
        await self._acknowledged.wait()
        await self._remove()

    # Its life -----------------------------------------------------------------------------------------------------

    async def _live(self) -> None:
        try:
            if self._record.failed is None:
                await self._arm_and_run()
        except (InvalidRequest, HostFault, NotFound) as error:
            await self._fail(error)
        if self._record.failed is not None:
            await self._discard()
            await self._until(lambda: self._record.stop is not None)
            self._exit = ExitStatus(None)
        await self._ended(self._exit or ExitStatus(None))

    async def _arm_and_run(self) -> None:
        await self._ask(self._look)
        if self._found.state == "absent" and self._record.start_begun and not self._stop_wanted:
            self._exit = ExitStatus(None)
            await self._end_processes()
            return
        if self._found.state in ("absent", "created"):
            await self._arm()
        watcher = asyncio.create_task(self._watch(), name=f"watch {self._id}")
        try:
            await self._follow()
        finally:
            watcher.cancel()
            await asyncio.gather(watcher, return_exceptions=True)

    async def _follow(self) -> None:
        """From armed to ended, or from wherever the agent before this one has left it."""
        await self._until(lambda: self._has_ended or self._stop_wanted or self._record.start_wanted)
        if not self._has_ended and not self._stop_wanted:
            await self._start()
        await self._until(lambda: self._has_ended or self._stop_wanted)
        if not self._has_ended:
            await self._stop()
        elif not self._record.start_begun and not self._stop_wanted:
            raise HostFault(f"the container of attempt {self.number} ended before it was started")
        await self._end_processes()

    async def _look(self) -> None:
        self._found = await self._containers.status(self._id)

    async def _arm(self) -> None:
        """Returns with the container there, or with a stop wanted."""
        if self._record.start_begun and self._found.state == "created":
            return
        plan = self._keeper.plan(self._record)
        if not await self._ask(self._containers.create, plan) or not await self._ask(self._look):
            return
        found = self._found
        if found.state == "created" and processes.is_in_network(found.pid, Path(plan.netns)) is False:
            raise HostFault(f"the container of attempt {self.number} is not in the network {plan.netns}")
        self.waits = found.state == "created"
        if not self._record.armed:
            await self._tools.names.settled()
            await self._note(armed=True)
            log.info("attempt_armed %s", self._names)

    async def _start(self) -> None:
        if not self._record.start_begun:
            await self._note(start_begun=True)
        if self._stop_wanted or not await self._ask(self._containers.start, self._id):
            return
        if not self._record.started:
            await self._note(started=True)
            log.info("attempt_started %s", self._names)

    async def _stop(self) -> None:
        self.stopping = True
        self._keeper.publish()
        if self._record.start_begun:
            await self._ask_to_end()
            await self._until(lambda: self._has_ended, self._stop_deadline)
            self._killed = not self._has_ended and self._record.stop is not None and self._record.stop.grace_s > 0
        await self._end_processes()

    async def _ask_to_end(self) -> None:
        signal = self._record.stop.signal if self._record.stop is not None else ""
        if signal:
            await self._containers.signal(self._id, signal_number(signal))
        else:
            await self._containers.terminate(self._id)

    async def _end_processes(self) -> None:
        """No process of it is left when this returns, and its end is known; past the bound it says who does not die."""
        first_kill_s = last_kill_s = None
        pause_s = _LOOK_FIRST_S
        while (left := await self._containers.processes(self._id)) or not self._has_ended:
            if last_kill_s is None or now() - last_kill_s >= _KILL_AGAIN_S:
                await self._containers.kill(self._id)
                last_kill_s = now()
                first_kill_s = last_kill_s if first_kill_s is None else first_kill_s
            elif left and first_kill_s is not None and now() - first_kill_s >= self._tools.config.stuck_after_s:
                self._say_stuck(processes.undying(left, self._keeper.record.request.worker))
            if self._has_ended:
                await asyncio.sleep(pause_s)
            else:
                await self._until(lambda: self._has_ended, _after(pause_s))
            pause_s = min(2 * pause_s, _LOOK_MAX_S)
        self._say_stuck(None)

    async def _discard(self) -> None:
        """Take away what is left of an attempt that could not be armed or started."""
        said = ""
        while True:
            left = await self._containers.processes(self._id)
            try:
                await self._tools.patience.call(self._containers.remove, self._id)
            except AstraError as error:
                if str(error) != said:
                    said = str(error)
                    log.warning("attempt_not_removed %s reason=%r", self._names, said)
                if left:
                    self._say_stuck(processes.undying(left, self._keeper.record.request.worker))
                await asyncio.sleep(_REMOVE_AGAIN_S)
            else:
                self._say_stuck(None)
                return

    async def _remove(self) -> None:
        if not self._record.removed:
            await self._discard()
            shutil.rmtree(self._keeper.files(self.number), ignore_errors=True)
            await self._note(removed=True)

    # What it says -------------------------------------------------------------------------------------------------

    async def _fail(self, error: AstraError) -> None:
        log.warning("attempt_failed %s reason=%r", self._names, str(error))
        fault = "user" if isinstance(error, InvalidRequest) else "machine"
        await self._note({"arm_failed": self.number, "detail": str(error), "fault": fault}, failed=str(error))

    async def _ended(self, status: ExitStatus) -> None:
        never_started = self._record.failed is not None or not self._record.start_begun
        code = None if never_started else status.code
        ended = ExitRecord(code, status.oom and not never_started, never_started, self._killed)
        await self._note(exit=ended)
        log.info("attempt_ended %s code=%s oom=%s", self._names, code, status.oom)

    def _say_stuck(self, sentence: str | None) -> None:
        if sentence != self.stuck:
            self.stuck = sentence
            log.log(logging.ERROR if sentence else logging.INFO, "attempt_stuck %s reason=%r", self._names, sentence)
            self._keeper.publish()

    async def _note(self, slot_changes: dict[str, Any] | None = None, **changes: Any) -> None:
        """Record *changes* of the attempt. A disk that can't be written is tried until it can."""
        while True:
            record = replace(self._keeper.record, **(slot_changes or {}))
            try:
                self._keeper.save(record.with_attempt(replace(self._record, **changes)))
            except HostFault as error:
                log.error("record_not_written %s reason=%r", self._names, str(error))
                self._keeper.publish()
                await asyncio.sleep(_SAVE_AGAIN_S)
            else:
                return

    # Waiting ------------------------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        while self._exit is None:
            try:
                self._exit = await self._tools.patience.call(self._containers.wait, self._id)
            except AstraError as error:
                log.warning("attempt_not_watched %s reason=%r", self._names, str(error))
                await asyncio.sleep(_WATCH_AGAIN_S)
        self.waits = False
        self._woken.set()

    async def _ask(
        self, ask: Callable[Arguments, Awaitable[None]], *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> bool:
        """Ask the runtime until it answers; False when a stop is wanted first. A call under way is never cut short."""
        while not self._stop_wanted:
            asked_s = time.monotonic()
            try:
                await ask(*args, **kwargs)
            except (Unavailable, DeadlineExceeded) as error:
                self._tools.patience.unanswered(error, asked_s)
            else:
                self._tools.patience.answered()
                return True
            await self._until(lambda: self._stop_wanted, _after(_ASK_AGAIN_S))
        return False

    async def _until(self, met: Callable[[], bool], deadline: Callable[[], float] | None = None) -> None:
        """Until *met* or *deadline*, which may move meanwhile; without one it is for others to set a bound."""
        while not met():
            left_s = None if deadline is None else deadline() - now()
            if left_s is not None and left_s <= 0:
                return
            self._woken.clear()
            with contextlib.suppress(TimeoutError):
                # Not wait_for: before Python 3.12 it swallows a cancellation that comes together with the event.
                async with asyncio.timeout(left_s):
                    await self._woken.wait()

    def _stop_deadline(self) -> float:
        return self._record.stop.deadline_s if self._record.stop is not None else now()

    @property
    def _has_ended(self) -> bool:
        return self._exit is not None

    @property
    def _stop_wanted(self) -> bool:
        return self._record.stop is not None

    @property
    def _record(self) -> AttemptRecord:
        record = self._keeper.record.attempt(self.number)
        if record is None:
            raise LookupError(f"attempt {self.number} has no record")
        return record

    @property
    def _names(self) -> str:
        request = self._keeper.record.request
        return f"run={request.run.name} worker={request.worker} slot={request.slot} attempt={self.number}"


def _after(delay_s: float) -> Callable[[], float]:
    at = now() + delay_s
    return lambda: at
