"""
The agent of one machine: all its slots, who may have what, and what is said to the coordinator. It knows no link and no
socket; both call it.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import logging
import shutil
from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

from astra_agent import endings, facts, holder, host_files, plans, wire
from astra_agent.attach.gpu import chosen
from astra_agent.book import Book
from astra_agent.config import AgentConfig
from astra_agent.description import describe
from astra_agent.errors import AstraError, Conflict, HostFault, NotFound, Stale, Unavailable
from astra_agent.inventory import Inventory
from astra_agent.lease import Lease
from astra_agent.logs import Logs
from astra_agent.look_ahead import look_ahead
from astra_agent.lookout import Lookout
from astra_agent.names import Names, NoNames
from astra_agent.network import SlotNetworks
from astra_agent.outbox import Outbox
from astra_agent.patience import Patience
from astra_agent.records import AgentRecord, Ending, SlotRecord, Tombstone
from astra_agent.runtime import Containers, ExecSession, Images
from astra_agent.signals import signal_number
from astra_agent.slots import Slot, is_same_request
from astra_agent.tools import Holdings, Tools
from astra_agent.watching import Watch, Watches
from astra_agent.wire import (
    Arm,
    Directive,
    ExecRequest,
    Finish,
    Hello,
    LookAhead,
    MachineFacts,
    Refused,
    SignalRequest,
    SlotGone,
    SlotRequest,
    SlotStatus,
    SlotUsage,
    Start,
    Stop,
    StopRequest,
    Tell,
)
from astra_dns import resolv_conf

log = logging.getLogger(__name__)

_EPOCH_BITS = 32


class Agent:
    """
    Args:
        config: The state directory in it is this agent's alone, from before this object is made.
        lookout: Run by this agent.
    Attributes:
        outbox: Reports for the coordinator.
        facts_changed: Set when the machine's facts are not what they were.
    """

    def __init__(
        self,
        config: AgentConfig,
        containers: Containers,
        images: Images,
        lookout: Lookout,
        names: Names | None = None,
    ) -> None:
        boot = facts.boot_id(config.boot_id_file)
        texts = host_files.machine_resolv_confs()
        book = Book(config.state_dir)
        self.outbox = Outbox()
        self.facts_changed = asyncio.Event()
        self._config = config
        self._watches = Watches()
        self._record: AgentRecord = book.open(boot)
        self._durable_term = self._record.term
        self._counter = itertools.count(1)
        self._tools = Tools(
            config=config,
            lookout=lookout,
            boot=boot,
            book=book,
            containers=containers,
            images=images,
            patience=Patience(config.name, self._runtime_changed),
            networks=SlotNetworks(config),
            holdings=Holdings(),
            logs=Logs(config.state_dir / "logs", config.log_max_bytes, config.log_keep_bytes),
            resolv_conf=host_files.resolv_conf(
                texts,
                loopback_reachable=config.slot_network == "host" and config.netns is None,
            ),
            own_resolv_conf=host_files.resolv_conf(texts, loopback_reachable=False),
            hosts=host_files.machine_hosts(),
            names=names or NoNames(),
            search=next((found for text in texts if (found := resolv_conf.parse(text).search)), ()),
        )
        self._machine = facts.find(config)
        self._described = describe(self._machine, lookout.inventory)
        lookout.changed = self._inventory_changed
        self._slots: dict[str, Slot] = {}
        self._group: asyncio.TaskGroup | None = None
        self._load()

    def _load(self) -> None:
        for record in self._tools.book.load():
            if record.boot != self._tools.boot:
                stone = endings.tombstone(replace(record, ending=record.ending or Ending(1, "The machine was booted")))
                log.warning("slot_gone slot=%s reason=%r", record.request.slot, stone.reason)
                self._tools.book.bury(record.request.slot, stone)
                continue
            self._tools.holdings.restore(record)
            self._restore_names(record)
            self._slots[record.request.slot] = self._new_slot(record)
        for slot in self._tools.book.unreadable:
            log.error("record_unreadable slot=%s", slot)

    def _restore_names(self, record: SlotRecord) -> None:
        slot, workspace = record.request.slot, record.request.run.workspace
        if record.prepared is not None:
            netns = self._tools.networks.netns(slot)
            self._tools.names.restore(slot, workspace, netns, record.prepared.name_server)
        for attempt in record.attempts:
            if attempt.names is not None:
                self._tools.names.publish(slot, attempt.names)

    # Its life -----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """For ever; may be cancelled, which stops no container."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            for slot in self._slots.values():
                self.outbox.put(slot.status())
                group.create_task(self._attend(slot), name=slot.id)
            group.create_task(self._sweep(), name="sweep")
            group.create_task(self._tools.lookout.run(), name="lookout")
            group.create_task(self._tools.logs.rotate_for_ever(self._growing_logs, self._config.log_check_s))
            group.create_task(self._tools.patience.watch(self._tools.containers.list, self._config.runtime_check_s))

    async def _attend(self, slot: Slot) -> None:
        await slot.run()
        self._tools.holdings.release(slot.id)
        del self._slots[slot.id]
        self._prune_logs()

    async def _sweep(self) -> None:
        """Take away what slots have left that have no record (any more): of an earlier boot, of a lost directory."""
        holder.sweep(self._config.state_dir, self._is_unknown)
        for found in await self._tools.patience.call(self._tools.containers.list):
            slot = found.labels.get(plans.LABEL_SLOT, "")
            if slot and self._is_unknown(slot):
                log.warning("container_without_record container=%s", found.id)
                with contextlib.suppress(AstraError):
                    await self._tools.patience.call(self._tools.containers.remove, found.id)
        for slot in {*self._tools.networks.left(), *self._tools.slots_with_files()}:
            if self._is_unknown(slot):
                with contextlib.suppress(AstraError):
                    await self._tools.networks.tear_down(slot)
                shutil.rmtree(self._tools.slot_folder(slot), ignore_errors=True)
        self._prune_logs()

    def _is_unknown(self, slot: str) -> bool:
        return slot not in self._slots and slot not in self._tools.book.unreadable

    # Slots, for the engine ----------------------------------------------------------------------------------------

    def put_slot(self, request: SlotRequest) -> tuple[SlotStatus, bool]:
        """
        Begin a slot. Returns its status, and whether it is new. Idempotent.

        Raises:
            Conflict: another slot of this ID is there, or was; or one of its GPUs is held.
            InvalidRequest: a GPU that is not on this machine.
            HostFault: this machine takes no new slots, or can't record one.
            Unavailable: an earlier use of this ID is just ending.
        """
        if (known := self._slots.get(request.slot)) is not None:
            if known.record.ending is not None and request.incarnation != known.record.request.incarnation:
                raise Unavailable(f"slot {request.slot} is just ending; ask again when it has")
            if not is_same_request(known.record.request, request):
                raise Conflict(f"slot {request.slot} is there already, with another request; choose a new ID")
            known.reuse(request)
            return known.status(), False
        stone = self._tools.book.tombstone(request.slot)
        if stone is not None and stone.incarnation == request.incarnation:
            raise Conflict(f"slot {request.slot} has ended; choose a new ID")
        if sentence := self._undying():
            raise HostFault(f"{self._config.name} takes no new slots: {sentence}")
        with contextlib.suppress(HostFault):  # a GPU that can't be used now is told by the slot
            chosen(self._tools.lookout.inventory, request.gpus)
        self._tools.holdings.claim_gpus(request)
        try:
            first = 0 if stone is None else stone.newest + 1
            slot = self._new_slot(SlotRecord(request, self._tools.boot, first=first))
            slot.save(slot.record)
        except HostFault:
            self._tools.holdings.release(request.slot)
            raise
        self._slots[request.slot] = slot
        if self._group is not None:
            self._group.create_task(self._attend(slot), name=slot.id)
        log.info("slot_accepted run=%s slot=%s image=%s", request.run.name, slot.id, request.image)
        return slot.status(), True

    def slot(self, slot: str) -> Slot:
        """Raises: NotFound; HostFault when its record can't be read."""
        self._check_readable(slot)
        if slot not in self._slots:
            raise NotFound(f"there is no slot {slot} on {self._config.name}")
        return self._slots[slot]

    def network_of(self, slot: str) -> Path | None:
        """The namespace that the slot's containers are in; None: the process's own. Raises: NotFound; HostFault."""
        request = self.slot(slot).record.request
        netns = Path(request.network.netns) if request.network is not None else self._tools.networks.netns(slot)
        if netns is not None and not netns.exists():
            raise NotFound(f"slot {slot} has no network on {self._config.name}: it is not ready yet, or is ending")
        return netns

    def slots(self) -> tuple[SlotStatus, ...]:
        return tuple(self._slots[slot].status() for slot in sorted(self._slots))

    async def wait(self, slot: str, timeout_s: float) -> Tombstone | None:
        """How the slot ended; None when it has not within *timeout_s*. Raises: NotFound."""
        self._check_readable(slot)
        if (known := self._slots.get(slot)) is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await known.ended.wait()
            if not known.ended.is_set():
                return None
        stone = self._tools.book.tombstone(slot)
        if stone is None:
            raise NotFound(f"there is no slot {slot} on {self._config.name}, and never was")
        return stone

    def _check_readable(self, slot: str) -> None:
        """Nothing is known of such a slot, also not that it has ended."""
        if slot in self._tools.book.unreadable:
            raise HostFault(f"the record of slot {slot} can't be read; remove it from {self._config.state_dir}/records")

    def finish(self, slot: str, ending: Ending, incarnation: str | None = None) -> None:
        """
        End the slot; one that is not there will never be. Idempotent. Raises: HostFault.

        Args:
            incarnation: None: of whatever incarnation; else nothing happens to another one.
        """
        known = self._slots.get(slot)
        if known is not None:
            if incarnation in (None, known.record.request.incarnation):
                known.finish(ending)
            return
        stone = self._tools.book.tombstone(slot)
        if stone is None:
            code = ending.code if ending.code is not None else endings.UNKNOWN
            self._tools.book.bury(slot, Tombstone(code, ending.reason, incarnation=incarnation or ""))
        elif incarnation is not None and incarnation != stone.incarnation:
            self._tools.book.bury(slot, replace(stone, incarnation=incarnation))

    def stop(self, slot: str, request: StopRequest) -> None:
        """End the slot with the code of its program. Idempotent. Raises: NotFound, HostFault, InvalidRequest."""
        if request.signal:
            signal_number(request.signal)
        ending = Ending(code=None, reason=request.reason)
        self.slot(slot).finish(ending, grace_s=request.grace_s, signal=request.signal)

    async def signal(self, slot: str, request: SignalRequest) -> None:
        """Raises: NotFound when nothing runs there; InvalidRequest; Unavailable."""
        await self._tools.containers.signal(self._running_container(slot), signal_number(request.signal))

    async def usage(self, slot: str) -> SlotUsage:
        """Raises: NotFound when nothing runs there."""
        used = await self._tools.containers.usage(self._running_container(slot))
        if used is None:
            raise NotFound(f"nothing runs in slot {slot} now")
        return SlotUsage.model_validate(dataclasses.asdict(used))

    async def look_ahead(self, request: SlotRequest) -> LookAhead:
        """Whether what the request names is there; bounded. Nothing is held by it."""
        return await look_ahead(request, self._tools)

    async def exec(self, request: ExecRequest) -> ExecSession:
        """Raises: NotFound when nothing runs there; InvalidRequest when there is no such program; Unavailable."""
        return await self._tools.containers.exec(
            self._running_container(request.slot),
            request.command,
            request.tty,
            request.stdin,
            request.width,
            request.height,
        )

    def watch(self) -> contextlib.AbstractContextManager[Watch]:
        """Statuses of all slots as they are, then every change."""
        return self._watches.open(self.slots())

    def _running_container(self, slot: str) -> str:
        container = self.slot(slot).running_container()
        if container is None:
            raise NotFound(f"nothing runs in slot {slot} now")
        return container

    # The coordinator ----------------------------------------------------------------------------------------------

    def hello(self) -> Hello:
        return Hello(version=version("astraeus"), boot=self._tools.boot, facts=self.facts(), slots=self.slots())

    def greet_term(self, term: int) -> None:
        """A coordinator of *term* is there. A full disk does not keep it out: nothing is done yet. Raises: Stale."""
        try:
            self._obey_term(term)
        except HostFault as error:
            log.error("term_not_written term=%d reason=%r", term, str(error))

    def _obey_term(self, term: int) -> None:
        """From now on, nothing of an older term. Raises: Stale when *term* is older; HostFault when not durable."""
        if term < self._record.term:
            raise Stale(f"the coordinator's term {term} is older than {self._record.term}, which this agent has obeyed")
        self._record = replace(self._record, term=term)
        if term > self._durable_term:
            self._tools.book.save_agent(self._record)
            self._durable_term = term

    def obey(self, directive: Directive) -> SlotGone | Refused | None:
        """What it wants is recorded and under way when this returns. Idempotent; None when it was taken."""
        slot = self._slots.get(directive.slot)
        if slot is None:
            # A sentence is nothing that has to be done: it says nothing of what the coordinator takes to be there.
            return None if isinstance(directive, Tell) else SlotGone(slot=directive.slot)
        try:
            self._obey_term(directive.term)
            match directive:
                case Arm():
                    slot.arm(directive)
                case Start():
                    slot.start(directive)
                case Stop():
                    slot.stop(directive)
                case Tell():
                    slot.tell(directive)
                case Finish():
                    slot.finish(Ending(directive.code, directive.reason), directive.term)
        except (Stale, HostFault) as error:
            log.warning("directive_refused kind=%s slot=%s reason=%r", directive.kind, directive.slot, str(error))
            return Refused(slot=directive.slot, reason=str(error))
        return None

    def learn(self, names: wire.Names) -> None:
        """Of other runs in the workspaces that have slots here. What an older term says changes nothing."""
        try:
            self._obey_term(names.term)
        except (Stale, HostFault) as error:
            log.warning("names_refused reason=%s", error)
        else:
            self._tools.names.learn(names)

    def acknowledged(self, seq: int) -> None:
        """The coordinator has every report up to *seq*."""
        for status in self.outbox.acknowledge(seq):
            slot = self._slots.get(status.slot)
            for attempt in status.attempts:
                if slot is not None and attempt.state == "exited":
                    slot.acknowledge(attempt.attempt)

    def lease_over(self, lease: Lease) -> None:
        """Cut off for too long: this machine's workers are given up by now, and end here before others take over."""
        log.error("lease_over limit_s=%g", lease.limit_s)
        for slot in self._slots.values():
            slot.stop_alone(f"No answer from the coordinator for {lease.limit_s:g} s")

    # What the machine is ------------------------------------------------------------------------------------------

    def facts(self) -> MachineFacts:
        return self._described.model_copy(update={"out_of_use": self._out_of_use()})

    @property
    def inventory(self) -> Inventory:
        return self._tools.lookout.inventory

    def _out_of_use(self) -> str | None:
        if sentence := self._undying() or self._tools.patience.sentence() or self._tools.book.fault:
            return sentence
        if self._tools.book.unreadable:
            names = ", ".join(sorted(self._tools.book.unreadable))
            return f"the record of slot {names} can't be read; remove it from {self._config.state_dir}/records"
        return self._described.out_of_use

    def is_running(self, slot: str, attempt: int) -> bool:
        """Whether more may still be written to the attempt's log."""
        return slot in self._slots and self._slots[slot].is_running(attempt)

    def _undying(self) -> str | None:
        return next((slot.stuck for slot in self._slots.values() if slot.stuck), None)

    @property
    def names(self) -> Names:
        return self._tools.names

    @property
    def logs(self) -> Logs:
        return self._tools.logs

    @property
    def containers(self) -> Containers:
        return self._tools.containers

    @property
    def boot(self) -> str:
        return self._tools.boot

    # Inside -------------------------------------------------------------------------------------------------------

    def _new_slot(self, record: SlotRecord) -> Slot:
        return Slot(record, self._tools, self._slot_changed, self._next_rev)

    def _next_rev(self) -> int:
        """Grows across restarts without a write for each change."""
        return self._record.epoch << _EPOCH_BITS | next(self._counter)

    def _slot_changed(self, slot: Slot) -> None:
        status = slot.status()
        self.outbox.put(status)
        self._watches.tell(status)
        self.facts_changed.set()

    def _inventory_changed(self, before: Inventory, after: Inventory) -> None:
        self._described = describe(self._machine, after)
        gone = {lost.address: lost.reason for lost in after.lost if lost.gone and lost.address}
        lost = {gpu.index: gpu.pci for gpu in before.gpus if gpu.pci in gone}
        for slot in self._slots.values():
            for index in slot.record.request.gpus:
                if index in lost:
                    where = f"GPU {index} ({lost[index]}) of {self._config.name}"
                    slot.lose(f"{where} is lost: {gone[lost[index]]}")
            slot.inventory_changed()
        self.facts_changed.set()

    def _runtime_changed(self) -> None:
        for slot in self._slots.values():
            slot.publish()
        self.facts_changed.set()

    def _growing_logs(self) -> Iterator[Path]:
        for slot in self._slots.values():
            yield from slot.growing_logs()

    def _prune_logs(self) -> None:
        self._tools.logs.prune({path for slot in self._slots.values() for path in slot.kept_logs()})
