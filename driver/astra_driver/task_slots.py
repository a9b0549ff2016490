"""
Tasks as the agent's slots: started within a bound, waited for without one, stopped and destroyed whenever the agent is
there. Safe to repeat, each of them: Nomad does, and so does a plugin that takes the place of another.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable

from astra_agent.errors import (
    AstraError,
    Conflict,
    DeadlineExceeded,
    HostFault,
    InvalidRequest,
    NotFound,
    Unavailable,
)
from astra_agent.wire import AgentHealth, SlotEnding, SlotRequest, StopRequest
from astra_driver.agent_client import AgentClient, check_protocol
from astra_driver.agent_watch import AgentWatch
from astra_driver.hcl import decode
from astra_driver.names import TaskId
from astra_driver.proto.driver_pb2 import TaskConfig
from astra_driver.rpc import Recoverable
from astra_driver.settings import PluginSettings, TaskSettings
from astra_driver.translate import GPUS, Machine, slot_request

log = logging.getLogger(__name__)

_START_S = 5.0
"""For the agent to take a task. Nomad can't stop it meanwhile, but a task must not fail for a machine's slow second."""
_WAIT_S = 300.0
_DESTROY_S = 5.0
_AGAIN_FIRST_S = 0.1
_AGAIN_MAX_S = 2.0
_GONE = 1
"""The exit code of a slot that nobody knows any more."""
_LATER = (Unavailable, DeadlineExceeded, HostFault)


class Slots:
    """
    Owns what it does after its caller has had an answer, until `close`.

    What an agent of another version refuses is asked again until both are of one: it says nothing of the task.
    """

    def __init__(self, client: AgentClient, watch: AgentWatch) -> None:
        self.client = client
        self._watch = watch
        self._owned: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        for task in self._owned:
            task.cancel()
        await asyncio.gather(*self._owned, return_exceptions=True)

    async def start(self, task: TaskConfig, plugin: PluginSettings) -> None:
        """
        Raises:
            Recoverable: the agent is away, of another version or too slow: the slot will not come (later).
            InvalidRequest: the job file's mistake.
            HostFault, Conflict: this machine can't take it; another one may.
        """
        name = TaskId.parse(task.id)
        settings = decode(TaskSettings, task.msgpack_driver_config)
        try:
            async with asyncio.timeout(_START_S):
                await self._check_version()
                wanted = slot_request(task, settings, plugin, await self._machine(task))
                await self._put(wanted)
        except (Unavailable, DeadlineExceeded, TimeoutError) as error:
            # The agent may have taken it in spite of that, and Nomad won't ask for it again.
            self._own(self._until_answered(lambda: self.client.destroy(name.slot, name.start)))
            raise Recoverable(str(error) or f"the agent has not taken the task within {_START_S:g} s") from error
        log.info("task_started task=%s slot=%s starts=%s", task.id, wanted.slot, wanted.starts)

    async def wait(self, task: TaskId) -> SlotEnding:
        """How it has ended; as long as it takes, and as long as the agent is away or of another version."""
        pause_s = _AGAIN_FIRST_S
        while True:
            try:
                ending = await self.client.wait(task.slot, _WAIT_S)
            except AstraError as error:
                if await self._is_meant(error):
                    if not isinstance(error, NotFound):
                        raise
                    sentence = f"The slot of this task is gone: the agent at {self.client.socket} does not know it"
                    return SlotEnding(code=_GONE, reason=sentence)
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _AGAIN_MAX_S)
            else:
                pause_s = _AGAIN_FIRST_S
                if ending is not None:
                    return ending

    async def stop(self, task: TaskId, request: StopRequest) -> None:
        """Returns once the agent has recorded it, however long that takes; a slot that is gone is stopped."""
        await self._until_answered(lambda: self.client.stop(task.slot, request))

    async def destroy(self, task: TaskId) -> None:
        """Goes on in the background when the agent is away."""
        destroying = self._own(self._until_answered(lambda: self.client.destroy(task.slot, task.start)))
        await asyncio.wait([destroying], timeout=_DESTROY_S)

    # Inside -------------------------------------------------------------------------------------------------------

    async def _put(self, wanted: SlotRequest) -> None:
        """An earlier use of the slot may just be ending."""
        pause_s = _AGAIN_FIRST_S
        while True:
            try:
                await self.client.put(wanted)
            except Unavailable as error:
                if "is just ending" not in str(error):
                    raise
            except (InvalidRequest, NotFound, Conflict) as error:
                if sentence := await self._other_version():
                    raise Unavailable(sentence) from error
                raise
            else:
                return
            await asyncio.sleep(pause_s)

    async def _check_version(self) -> None:
        """By what was heard last, so that a start costs no question more; a bad word is made sure of."""
        health = (await self._watch.heard()).health
        if health is not None and check_protocol(health) and (sentence := await self._other_version()):
            raise Unavailable(sentence)

    async def _is_meant(self, error: AstraError) -> bool:
        """The agent has answered with that, and is of our version: it will not say anything else later."""
        return not isinstance(error, _LATER) and await self._other_version() is None

    async def _other_version(self) -> str | None:
        """A sentence when the agent is of another protocol: as it says now, or as it was last heard."""
        try:
            health: AgentHealth | None = await self.client.health()
        except AstraError:
            health = self._watch.state.health
        return check_protocol(health) if health is not None else None

    async def _machine(self, task: TaskConfig) -> Machine:
        facts = await self.client.facts() if task.device_env.get(GPUS) else None
        return Machine(
            cpus=os.cpu_count() or 1,
            gpus={gpu.uuid: gpu.index for gpu in facts.gpus} if facts is not None else {},
            real_path=os.path.realpath,
        )

    async def _until_answered(self, ask: Callable[[], Awaitable[None]]) -> None:
        pause_s = _AGAIN_FIRST_S
        while True:
            try:
                return await ask()
            except AstraError as error:
                if await self._is_meant(error):
                    if not isinstance(error, NotFound | Conflict):
                        raise
                    return None
                log.warning("agent_not_asked reason=%s", error)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _AGAIN_MAX_S)

    def _own(self, work: Awaitable[None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        assert isinstance(task, asyncio.Task)
        self._owned.add(task)
        task.add_done_callback(self._owned.discard)
        return task
