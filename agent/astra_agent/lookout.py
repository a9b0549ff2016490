"""
Keeps the machine's inventory true: reads it at the start, and again whenever something may have changed.

Devices that come and go and the kernel log are heard of at once; what makes no event, such as a port of InfiniBand that
goes down, is seen by a glance every two seconds; and every half minute all is read again, whatever was heard.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from astra_agent.config import AgentConfig
from astra_agent.errors import DeadlineExceeded, HostFault, InvalidRequest
from astra_agent.inventory import Besides, Finding, Inventory, LibraryReading
from astra_agent.inventory.kernel_log import Heard, after, hear
from astra_agent.inventory.library import TIMEOUT
from astra_agent.kernel_events import KERNEL_LOG, device_events, log_lines
from astra_agent.off_loop import OneThread
from astra_agent.sources import Source, source_of

log = logging.getLogger(__name__)

AGAIN_S = 30.0
LIBRARY_S = 20.0
"""A driver whose GPUs sleep takes some seconds to wake each of them."""
FILES_S = 20.0
_SETTLE_S = 0.5
"""Events come in bursts: one reading is for all of one."""
_OF_THE_DRIVER = "NVRM"


class Lookout:
    """
    Args:
        inventory: As it was read a moment ago.
        kernel_log: To follow; None: a real machine's own, and none for one that is played.
        glance_s: Between two glances.
        library_s: How long the GPU library has for all its answers.
    Attributes:
        changed: Called with the inventories before and after each change.
    """

    def __init__(
        self,
        source: Source,
        inventory: Inventory,
        had: HadGpus,
        *,
        kernel_log: Path | None = None,
        glance_s: float = 2.0,
        library_s: float = LIBRARY_S,
    ) -> None:
        self.changed: Callable[[Inventory, Inventory], None] = lambda before, after: None
        self._source = source
        self._inventory = inventory
        self._had = had
        self._kernel_log = kernel_log or (None if source.is_played else KERNEL_LOG)
        self._glance_s = glance_s
        self._library_s = library_s
        self._heard = Heard()
        self._glance: object = None
        self._library = OneThread("NVML")
        self._files = OneThread("the machine's files")
        self._woken = asyncio.Event()
        self._reading = asyncio.Lock()
        self._troubles: dict[str, Finding] = {}

    @property
    def inventory(self) -> Inventory:
        return self._inventory

    @property
    def is_played(self) -> bool:
        return self._source.is_played

    async def run(self) -> None:
        """For ever. What can't be heard is a finding, and the rest goes on."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._look_for_ever(), name="inventory")
            if not self._source.is_played:
                group.create_task(self._hear_of_devices(), name="device events")
            if self._kernel_log is not None:
                group.create_task(self._hear_the_log(self._kernel_log), name="kernel log")

    async def look(self) -> Inventory:
        """The inventory, read again if a glance shows something else than the last one did."""
        if await self._has_changed():
            await self._read()
        async with self._reading:  # a reading that has begun knows of the change already, and has not told it yet
            return self._inventory

    # Looking ------------------------------------------------------------------------------------------------------

    async def _look_for_ever(self) -> None:
        loop = asyncio.get_running_loop()
        read_s = float("-inf")
        while True:
            due = not self._source.is_played and loop.time() - read_s >= AGAIN_S
            if due or self._woken.is_set() or await self._has_changed():
                self._woken.clear()
                await self._read()
                read_s = loop.time()
            try:
                async with asyncio.timeout(self._glance_s):
                    await self._woken.wait()
                await asyncio.sleep(_SETTLE_S)
            except TimeoutError:
                pass

    async def _has_changed(self) -> bool:
        inventory = self._inventory
        try:
            seen = await self._files.call(lambda: self._source.glance(inventory), FILES_S)
        except DeadlineExceeded as error:
            self._trouble("files", str(error))
            return False
        return seen != self._glance

    async def _read(self) -> None:
        async with self._reading:
            # Before all else: a change while it is read must differ from it, so that the next glance reads again.
            inventory = self._inventory
            try:
                self._glance = await self._files.call(lambda: self._source.glance(inventory), FILES_S)
            except DeadlineExceeded as error:
                self._trouble("files", str(error))
            library = await self._ask_library()
            self._heard = after(self._heard, library)
            besides = Besides(log=self._heard, had_gpus=self._had.most)
            try:
                found = await self._files.call(lambda: self._source.read(library, besides), FILES_S)
            except (DeadlineExceeded, InvalidRequest) as error:
                self._trouble("files", str(error))
                self._take(replace(self._inventory, findings=self._with_troubles(self._inventory)))
                return
            self._troubles.pop("files", None)
            self._had.note(len(found.gpus) + len(found.lost))
            self._take(replace(found, findings=self._with_troubles(found)))

    async def _ask_library(self) -> LibraryReading:
        try:
            return await self._library.call(self._source.library, self._library_s)
        except (DeadlineExceeded, InvalidRequest) as error:
            return LibraryReading(error=TIMEOUT, detail=str(error))

    def _take(self, found: Inventory) -> None:
        before = self._inventory
        if found == before:
            return
        self._inventory = found
        told = {finding.sentence for finding in before.findings}
        for finding in found.findings:
            if finding.sentence not in told:
                level = logging.INFO if finding.level == "note" else logging.WARNING
                log.log(level, "finding subject=%r sentence=%r", finding.subject, finding.sentence)
        self.changed(before, found)

    def _trouble(self, name: str, sentence: str) -> None:
        self._troubles[name] = Finding("fault", "inventory", sentence)

    def _with_troubles(self, found: Inventory) -> tuple[Finding, ...]:
        mine = tuple(self._troubles.values())
        others = tuple(finding for finding in found.findings if finding.subject != "inventory")
        return (*others, *mine)

    # Hearing ------------------------------------------------------------------------------------------------------

    async def _hear_of_devices(self) -> None:
        try:
            async for path in device_events():
                log.debug("device_event path=%s", path)
                self._woken.set()
        except HostFault as error:
            self._not_heard("device events", error)

    async def _hear_the_log(self, file: Path) -> None:
        try:
            async for line in log_lines(file):
                if _OF_THE_DRIVER not in line:
                    continue
                heard = hear(self._heard, line)
                if (heard.off_bus, heard.faults) != (self._heard.off_bus, self._heard.faults):
                    self._woken.set()
                self._heard = heard
        except HostFault as error:
            self._not_heard("kernel log", error)

    def _not_heard(self, name: str, error: HostFault) -> None:
        """It is read again every half minute all the same."""
        log.warning("not_heard of=%r reason=%r", name, str(error))
        self._troubles[name] = Finding("warning", "inventory", f"{error}; the machine is read every {AGAIN_S:g} s")
        self._woken.set()


class HadGpus:
    """The most GPUs that the machine ever had, remembered in a file; a count that falls is a fault that this shows."""

    def __init__(self, file: Path) -> None:
        self._file = file
        try:
            self.most = int(file.read_text())
        except (OSError, ValueError):
            self.most = 0

    def note(self, count: int) -> None:
        if count <= self.most:
            return
        self.most = count
        try:
            self._file.write_text(f"{count}\n")
        except OSError as error:
            log.warning("gpu_count_not_written reason=%r", error.strerror)


async def first_look(config: AgentConfig) -> Lookout:
    """
    A lookout that has read the machine once.

    Raises:
        InvalidRequest: the file that plays the machine is wrong.
        HostFault: the machine's files can't be read in time.
    """
    source, had = source_of(config), HadGpus(config.state_dir / "gpus")
    try:
        library = await OneThread("NVML").call(source.library, LIBRARY_S)
    except DeadlineExceeded as error:
        library = LibraryReading(error=TIMEOUT, detail=str(error))
    try:
        found = await OneThread("the machine's files").call(
            lambda: source.read(library, Besides(had_gpus=had.most)), FILES_S
        )
    except DeadlineExceeded as error:
        raise HostFault(str(error)) from error
    had.note(len(found.gpus) + len(found.lost))
    return Lookout(source, found, had, kernel_log=config.kernel_log, glance_s=config.glance_s)
