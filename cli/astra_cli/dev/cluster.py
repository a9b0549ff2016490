"""
A dev cluster that runs: start it, stop it, shape and cut its links, lose and boot its machines.

Not safe to use from several tasks at once; the supervisor has one that does everything in turn.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
import uuid
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

from astra_agent import namespaces
from astra_agent.containerd.private import PrivateContainerd
from astra_agent.errors import AstraError, Conflict, DeadlineExceeded, HostFault, InvalidRequest, handling
from astra_cli.client import Client
from astra_cli.context import Target
from astra_cli.dev import commands, files, network, ports, sweep
from astra_cli.dev.child import Child, last_words
from astra_cli.dev.network import Link
from astra_cli.dev.plan import API_PORT, ClusterPlan, Layout, address
from astra_cli.dev.topology import MachinePlan

Json = dict[str, Any]
Say = Callable[[str], None]
Result = TypeVar("Result")

READY_S = 60.0
"""From the coordinator's start until every agent is connected."""
CONTAINERD_CHECK_S = 1.0
PORTS_TRIED = 100


@dataclass(frozen=True, slots=True)
class MachineState:
    """What drills have done to a machine."""

    link: Link = field(default_factory=Link)
    off: bool = False


@dataclass(slots=True)
class Cluster:
    plan: ClusterPlan
    layout: Layout
    say: Say
    port: int = 0
    """Of the API on 127.0.0.1. 0: the first free one from 7410 on."""
    containerd: PrivateContainerd = field(init=False)
    coordinator: Child = field(init=False)
    agents: dict[str, Child] = field(init=False)
    states: dict[str, MachineState] = field(init=False)
    watch: asyncio.Task[None] | None = None
    reservation: ports.Reservation | None = None

    def __post_init__(self) -> None:
        self.containerd = PrivateContainerd(self.layout.containerd)
        config = self.layout.coordinator / "coordinator.toml"
        self.coordinator = self._child("the coordinator", "astra_gang.main", str(config), "coordinator")
        self.agents = {
            m.name: self._child(
                f"{m.name}'s agent", "astra_agent.main", str(self.layout.machine(m.name) / "agent.toml"), m.name
            )
            for m in self.plan.machines
        }
        self.states = {m.name: MachineState() for m in self.plan.machines}

    async def start(self) -> None:
        """
        Bring everything up; returns when every agent is connected. What a killed cluster left is taken over when it is
        the same cluster, and its workers go on; else it is removed first.

        Raises: HostFault, DeadlineExceeded, Conflict. What was made until then is for `stop` to remove, also after a
        cancellation.
        """
        adopted = await _to_end(asyncio.to_thread(self._take_over))
        self._reserve_port()
        files.write_all(self.plan, self.layout, self.port, self.containerd.socket, self.containerd.runc_root)
        if adopted:
            self.say("an earlier cluster was killed: its machines and workers are taken over")
        else:
            await self._make_network()
            for machine in self.plan.machines:
                self._boot(machine)
        self._remember()
        await self.containerd.start()
        self.watch = asyncio.create_task(self._watch_containerd(), name="containerd")
        self.say(f"containerd serves on {self.containerd.socket}")
        await self.coordinator.start()
        for name, agent in self.agents.items():
            if not self.states[name].off:
                await agent.start()
        await self._wait_connected()
        files.write_client(self.layout, self.port)

    async def stop(self) -> None:
        """End and remove everything that runs. Runs to its end whatever was done before. Raises: HostFault."""
        self.layout.client_file.unlink(missing_ok=True)
        if self.watch is not None:
            self.watch.cancel()
            with suppress(asyncio.CancelledError):
                await self.watch
        # The coordinator first: it must not take the end of the workers for their failure.
        await self.coordinator.stop()
        await asyncio.gather(*(agent.stop() for agent in self.agents.values()))
        await asyncio.to_thread(sweep.sweep, self.layout)
        if self.reservation is not None:
            self.reservation.give_back()

    async def link(self, name: str, rate_bit_s: int | None, up: bool | None) -> Link:
        """Shape a machine's link, take it down or up; None leaves that as it is. Returns what it is now."""
        machine, state = self.plan.machine(name), self.states[name]
        if state.off:
            raise Conflict(f"{name} is off; boot it with `astra dev start --machine {name}`")
        before = state.link
        wanted = Link(before.rate_bit_s if rate_bit_s is None else rate_bit_s, before.up if up is None else up)
        for netns, arguments in network.shape(machine, self.layout, before.rate_bit_s, wanted.rate_bit_s):
            await commands.inside(netns, "tc", *arguments.split())
        await self._set_link(machine, wanted.up)
        self._change(name, MachineState(wanted))
        return wanted

    async def kill_machine(self, name: str) -> None:
        """A power cut: the agent, the workers, the link, all at once and without a word. Idempotent."""
        machine, state = self.plan.machine(name), self.states[name]
        self._change(name, MachineState(state.link, off=True))
        await self.agents[name].kill()
        await _to_end(asyncio.to_thread(sweep.cut_power, self.layout, name))
        await self._set_link(machine, up=False)

    async def start_machine(self, name: str) -> None:
        """Boot a machine that was killed. Its slots are gone, its disk is not."""
        machine, state = self.plan.machine(name), self.states[name]
        if not state.off:
            raise Conflict(f"{name} runs already")
        self._boot(machine)
        await self._set_link(machine, state.link.up)
        self._change(name, MachineState(state.link))
        await self.agents[name].start()

    def status(self) -> Json:
        return {
            "cluster": self.layout.cluster_id,
            "state": str(self.layout.state),
            "api": f"http://127.0.0.1:{self.port}",
            "coordinator": {"pid": self.coordinator.pid},
            "containerd": {"pid": self.containerd.pid, "socket": str(self.containerd.socket)},
            "slot_network": self.plan.slot_network,
            "drives": dict(self.plan.drives),
            "machines": [self._machine_status(machine) for machine in self.plan.machines],
        }

    def _machine_status(self, machine: MachinePlan) -> Json:
        state = self.states[machine.name]
        return {
            "name": machine.name,
            "address": address(machine),
            "off": state.off,
            "agent": {"pid": self.agents[machine.name].pid, "socket": str(self.layout.agent_socket(machine.number))},
            "link": {"up": state.link.up and not state.off, "rate_bit_s": state.link.rate_bit_s},
            "log": str(self.agents[machine.name].log),
        }

    # Start -------------------------------------------------------------------------------------------------------

    def _take_over(self) -> bool:
        """Whether the network and the workers of a killed cluster stay; otherwise nothing of it is left."""
        if self._is_ours_to_adopt():
            sweep.end_processes(sweep.daemons(self.layout))
            sweep.remove_dead(sweep.shim_sockets(self.layout))
            return True
        if sweep.is_left(self.layout):
            self.say("an earlier cluster was killed: what it left is removed")
            sweep.sweep(self.layout)
        return False

    def _is_ours_to_adopt(self) -> bool:
        """The same machines, in namespaces that are still there."""
        try:
            running = json.loads(self.layout.running_file.read_text())
            states = {
                name: MachineState(Link(**state["link"]), state["off"]) for name, state in running["machines"].items()
            }
        except (OSError, ValueError, KeyError, TypeError):
            return False
        paths = [self.layout.hub, *(self.layout.netns(m.name) for m in self.plan.machines)]
        if running.get("plan") != _fixed(self.plan) or not all(namespaces.is_made(path) for path in paths):
            return False
        self.states = states
        return True

    async def _make_network(self) -> None:
        (self.layout.run / "net").mkdir(parents=True, exist_ok=True)
        for path in (self.layout.hub, *(self.layout.netns(m.name) for m in self.plan.machines)):
            namespaces.make(path)
        for batch in network.batches(self.plan, self.layout):
            await commands.inside(batch.netns, "ip", "-batch", "-", stdin="\n".join(batch.lines) + "\n")
        names = ", ".join(f"{m.name} {address(m)}" for m in self.plan.machines[:4])
        more = f" and {len(self.plan.machines) - 4} more" if len(self.plan.machines) > 4 else ""
        self.say(f"{len(self.plan.machines)} machines on one bridge: {names}{more}")

    def _boot(self, machine: MachinePlan) -> None:
        files.write(self.layout.boot_id(machine.number), str(uuid.uuid4()))

    def _reserve_port(self) -> None:
        wanted = (self.port,) if self.port else range(API_PORT, API_PORT + PORTS_TRIED)
        self.reservation = ports.reserve(wanted)
        if self.reservation.port != wanted[0]:
            self.say(f"port {API_PORT} of 127.0.0.1 is taken, the API is on {self.reservation.port}")
        self.port = self.reservation.port

    async def _wait_connected(self) -> None:
        target = Target(f"http://127.0.0.1:{self.port}", files.token(self.layout, "operator"), "default", "astra dev")
        expected = {name for name, state in self.states.items() if not state.off and state.link.up}
        deadline = time.monotonic() + READY_S
        missing = expected
        async with Client(target) as client:
            while missing and time.monotonic() < deadline:
                self._check_accepted()
                with suppress(AstraError):
                    items = (await client.machines())["items"]
                    missing = expected - {item["name"] for item in items if item["connected"]}
                if missing:
                    await asyncio.sleep(0.1)
        if missing:
            log = self.agents[min(missing)].log if self.coordinator.pid else self.coordinator.log
            names = ", ".join(sorted(missing))
            raise DeadlineExceeded(
                f"{names} did not connect to the coordinator within {READY_S:g} s: {last_words(log)}"
            )
        self.say(f"{len(expected)} of {len(self.plan.machines)} agents are connected to the coordinator")

    def _check_accepted(self) -> None:
        """What a daemon says of its configuration does not heal by starting it again."""
        for child in (self.coordinator, *self.agents.values()):
            if child.last_code == handling(InvalidRequest("")).exit:
                raise HostFault(f"{child.name} does not start: {last_words(child.log)}")

    async def _watch_containerd(self) -> None:
        """It has no keeper of its own: it outlives the supervisor, and may be an earlier one's."""
        while True:
            await asyncio.sleep(CONTAINERD_CHECK_S)
            if not self.containerd.pid:
                self.say("containerd ended; it is started again")
                try:
                    await self.containerd.start()
                except HostFault as fault:
                    self.say(str(fault))

    def _child(self, name: str, module: str, config: str, log: str) -> Child:
        command = (sys.executable, "-P", "-m", module, "--config", config)
        return Child(name, command, self.layout.logs / f"{log}.log", self.say)

    # Drills ------------------------------------------------------------------------------------------------------

    async def _set_link(self, machine: MachinePlan, up: bool) -> None:
        end = network.hub_end(machine)
        await commands.inside(str(self.layout.hub), "ip", "link", "set", end, "up" if up else "down")

    def _change(self, name: str, state: MachineState) -> None:
        self.states[name] = state
        self._remember()

    def _remember(self) -> None:
        document = {"plan": _fixed(self.plan), "machines": {name: asdict(state) for name, state in self.states.items()}}
        files.write(self.layout.running_file, json.dumps(document))


def _fixed(plan: ClusterPlan) -> Json:
    """What can't change under workers that run."""
    document: Json = json.loads(json.dumps(plan.to_json()))
    return {name: document[name] for name in ("machines", "slot_network", "drives")}


async def _to_end(work: Coroutine[Any, Any, Result]) -> Result:
    """Threads can't be cancelled: whoever is, waits for the thread, so that nothing is made behind the clean-up."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise
