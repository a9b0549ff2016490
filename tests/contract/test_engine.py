"""
What every engine promises the coordinator: whole or not at all, in writing first, nothing held twice, safe to repeat.

On the embedded engine, and on the one on Nomad with a server that answers as recorded versions do; with agents on real
unix sockets.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Coroutine
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from astra_agent.errors import NoCapacity, Unavailable
from astra_agent.wire import Hello, MachineFacts, RunRef, SlotRequest, SlotStatus
from astra_gang.engine import Engine, Held, Machine, SlotOffer
from astra_gang.engines.agent_socket import AgentSocket
from astra_gang.engines.book import TOMBSTONE_KEPT_S, BookEntry
from astra_gang.engines.embedded import EmbeddedEngine
from astra_gang.engines.nomad.answers import Node
from astra_gang.engines.nomad.api import NomadApi
from astra_gang.engines.nomad.engine import NomadEngine
from astra_gang.engines.nomad.job import Seat, Terms, build
from astra_gang.engines.nomad.transport import Access
from astra_gang.roster import Roster
from tests.fakes.agent_socket import FakeAgentSocket
from tests.fakes.clock import FakeClock
from tests.fakes.eventually import until
from tests.fakes.linked_agents import LinkedAgents
from tests.fakes.nomad.clients import Clients
from tests.fakes.nomad.cluster import FakeNomad
from tests.fakes.nomad.recorded import VERSIONS
from tests.fakes.nomad.server import NomadServer
from tests.fakes.runs import facts
from tests.fakes.store import MemoryStore

RUN = RunRef(workspace="default", name="llama", uid="u1")


def offer(
    slot: str, machine: str, *, gpus: tuple[int, ...] = (), cpu_cores: float = 1.0, memory_bytes: int = 0
) -> SlotOffer:
    return SlotOffer(
        machine,
        SlotRequest(
            slot=slot,
            run=RUN,
            worker="llama-0",
            image="host",
            gpus=gpus,
            cpu_cores=cpu_cores,
            memory_bytes=memory_bytes,
        ),
    )


def status(slot: str) -> SlotStatus:
    return SlotStatus(slot=slot, rev=1, run=RUN, worker="llama-0", phase="ready")


class Cluster(ABC):
    """Two machines with agents, and an engine that can be dropped and made again on the same records."""

    engine: Engine

    def __init__(self, folder: Path) -> None:
        self.clock = FakeClock()
        self.store = MemoryStore()
        self.agents = {name: FakeAgentSocket(folder / f"{name}.sock") for name in ("m1", "m2")}
        self.roster = Roster(self.clock)
        self.changes = 0
        self._stack = AsyncExitStack()

    async def start(self) -> None:
        """Make the engine from the records; agents say hello, as they do after every start of a coordinator."""
        self.roster = Roster(self.clock)
        self.roster.changes.append(self._count)
        await self.make((await self.store.load()).book)
        for name, agent in self.agents.items():
            self.hello(facts(name), *agent.slots)

    async def drop(self) -> None:
        await self._stack.aclose()

    @abstractmethod
    async def make(self, book: tuple[BookEntry, ...]) -> None:
        """Set `engine` and let it run; `drop` ends it."""

    @abstractmethod
    async def bring_stranger(self, slot: str, machine: str, gpu: int) -> None:
        """A slot on this machine that the book does not have, and that does not end by itself."""

    async def run(self, engine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(engine)

        async def stop() -> None:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

        self._stack.push_async_callback(stop)

    def hello(self, of: MachineFacts, *slots: str) -> None:
        known = tuple(status(slot) for slot in slots)
        self.roster.arrived(Hello(version="1", boot="b", facts=of, slots=known))

    async def machine(self, name: str) -> Machine:
        return next(m for m in await self.engine.machines() if m.facts.name == name)

    async def until_free(self, slot: str) -> None:
        async with asyncio.timeout(20):
            while any(held.slot == slot for held in await self.engine.held()):  # noqa: ASYNC110
                await asyncio.sleep(0.005)

    def _count(self) -> None:
        self.changes += 1


class EmbeddedCluster(Cluster):
    async def make(self, book: tuple[BookEntry, ...]) -> None:
        doors = {name: AgentSocket(name, agent.path) for name, agent in self.agents.items()}
        for door in doors.values():
            self._stack.push_async_callback(door.close)
        engine = EmbeddedEngine(
            store=self.store, clock=self.clock, roster=self.roster, doors=doors, book=book, hand_over_s=0.3
        )
        self.engine = engine
        await self.run(engine.run())

    async def bring_stranger(self, slot: str, machine: str, gpu: int) -> None:
        agent = self.agents[machine]
        agent.slots[slot] = offer(slot, machine, gpus=(gpu,)).request
        agent.lingering.add(slot)
        self.hello(facts(machine), slot)


class NomadCluster(Cluster):
    """Nomad outlives the coordinator, and so do the jobs in it."""

    def __init__(self, folder: Path, version: str) -> None:
        super().__init__(folder)
        self.nomad = FakeNomad(version)
        self.server = NomadServer(self.nomad)
        for name, agent in self.agents.items():
            self.nomad.add_node(name, agent, gpus=tuple(gpu.uuid for gpu in facts(name).gpus))
        self._nomad_stack = AsyncExitStack()

    async def start(self) -> None:
        if not self.server.url:
            await self._nomad_stack.enter_async_context(self.server.serving())
            await self._nomad_stack.enter_async_context(Clients(self.nomad))
        await super().start()

    async def make(self, book: tuple[BookEntry, ...]) -> None:
        api = await self._stack.enter_async_context(NomadApi(Access(self.server.url), patience_s=0.5))
        version = (await api.members()).version()
        assert version is not None
        engine = NomadEngine(
            api=api, store=self.store, clock=self.clock, roster=self.roster, terms=Terms("gpu", version, 60.0),
            term=1, book=book, hand_over_s=3.0,
        )  # fmt: skip
        self.engine = engine
        await self.run(engine.run(LinkedAgents(self.agents, lambda: self.roster)))

    async def bring_stranger(self, slot: str, machine: str, gpu: int) -> None:
        """Of a book that was lost while its coordinator was away."""
        await self.drop()
        self.agents[machine].lingering.add(slot)
        stranger = offer(slot, machine, gpus=(gpu,)).request
        gpus = (f"GPU-{machine}-{gpu}",)
        template = (await self.server_nodes())[machine]
        self.nomad.register(build("lost/1", (Seat(stranger, template, gpus),), Terms("gpu", (1, 6, 5), 60.0)))
        await until(lambda: slot in self.agents[machine].slots)
        await self.start()

    async def server_nodes(self) -> dict[str, Node]:
        async with NomadApi(Access(self.server.url)) as api:
            return {node.name: node for node in await api.nodes("gpu")}

    async def close(self) -> None:
        await self._nomad_stack.aclose()


@pytest.fixture(params=["embedded", *(f"nomad-{version}" for version in VERSIONS)])
async def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Cluster]:
    kind: str = request.param
    made = EmbeddedCluster(tmp_path) if kind == "embedded" else NomadCluster(tmp_path, kind.removeprefix("nomad-"))
    for agent in made.agents.values():
        await agent.start()
    await made.start()
    yield made
    await made.drop()
    if isinstance(made, NomadCluster):
        await made.close()
    for agent in made.agents.values():
        await agent.stop()


async def test_a_snapshot_shows_each_machine_less_what_its_slots_hold(cluster: Cluster) -> None:
    await cluster.engine.reserve("u1/1", (offer("a", "m2", gpus=(0, 7), cpu_cores=2.5, memory_bytes=2**30),))
    one, two = await cluster.engine.machines()
    assert (one.facts.name, one.slots, one.free_gpus) == ("m1", (), tuple(range(8)))
    assert (two.facts.name, two.slots, two.free_gpus) == ("m2", ("a",), (1, 2, 3, 4, 5, 6))
    assert (two.free_cpu_cores, two.free_memory_bytes) == (13.5, 63 * 2**30)


async def test_a_machine_without_a_link_is_shown_and_said_to_be_away(cluster: Cluster) -> None:
    cluster.roster.left("m1")
    assert [m.connected for m in await cluster.engine.machines()] == [False, True]


async def test_reserving_returns_once_every_agent_has_its_slot(cluster: Cluster) -> None:
    await cluster.engine.reserve("u1/1", (offer("a", "m1"), offer("b", "m2")))
    assert set(cluster.agents["m1"].slots) == {"a"}
    assert set(cluster.agents["m2"].slots) == {"b"}
    assert await cluster.engine.held() == (Held("a", "m1", leaving=False), Held("b", "m2", leaving=False))


@pytest.mark.parametrize(
    ("wanted", "sentence"),
    [
        (offer("b", "m2", gpus=(3,)), "GPU 3 of m2 is not free"),
        (offer("b", "m2", cpu_cores=15.5), "m2 has 15 CPU cores free; llama-0 needs 15.5"),
        (offer("b", "m2", memory_bytes=2**40), "m2 has .* bytes of memory free; llama-0 needs"),
        (offer("b", "m9"), "m9 is not connected"),
    ],
)
async def test_what_one_machine_lacks_leaves_nothing_held_on_the_others(
    cluster: Cluster, wanted: SlotOffer, sentence: str
) -> None:
    await cluster.engine.reserve("u0/1", (offer("z", "m2", gpus=(3,)),))
    with pytest.raises(NoCapacity, match=sentence):
        await cluster.engine.reserve("u1/1", (offer("a", "m1", gpus=(0,)), wanted))
    assert [held.slot for held in await cluster.engine.held()] == ["z"]
    assert "a" not in cluster.agents["m1"].slots


async def test_slots_of_one_reservation_never_share_a_gpu(cluster: Cluster) -> None:
    with pytest.raises(NoCapacity, match="GPU 1 of m1 is not free"):
        await cluster.engine.reserve("u1/1", (offer("a", "m1", gpus=(0, 1)), offer("b", "m1", gpus=(1,))))
    assert await cluster.engine.held() == ()


async def test_two_runs_at_the_same_moment_never_get_the_same_gpu(cluster: Cluster) -> None:
    both = [
        cluster.engine.reserve(f"u{i}/1", (offer(f"a{i}", "m1", gpus=(0,)), offer(f"b{i}", "m2"))) for i in range(2)
    ]
    outcomes = await asyncio.gather(*both, return_exceptions=True)
    assert sorted(type(outcome).__name__ for outcome in outcomes) == ["NoCapacity", "NoneType"]
    assert len(await cluster.engine.held()) == 2


async def test_a_machine_out_of_use_takes_nothing_new(cluster: Cluster) -> None:
    cluster.roster.facts_changed(facts("m1", out_of_use="process 4711 of llama-1 does not die"))
    with pytest.raises(NoCapacity, match="m1 is out of use: process 4711"):
        await cluster.engine.reserve("u1/1", (offer("a", "m1"),))


async def test_the_same_reservation_again_goes_on_where_it_was(cluster: Cluster) -> None:
    offers = (offer("a", "m1", gpus=(0,)), offer("b", "m2"))
    await cluster.engine.reserve("u1/1", offers)
    await cluster.engine.reserve("u1/1", offers)
    assert len(await cluster.engine.held()) == 2


async def test_a_reservation_is_in_writing_before_an_agent_hears_of_it(cluster: Cluster) -> None:
    cluster.store.failing = "the disk is full"
    with pytest.raises(Unavailable, match="the disk is full"):
        await cluster.engine.reserve("u1/1", (offer("a", "m1"),))
    assert cluster.agents["m1"].puts == []
    assert await cluster.engine.held() == ()


async def test_after_a_restart_the_reservation_that_was_cut_short_is_finished(cluster: Cluster) -> None:
    await cluster.agents["m2"].stop()
    cut = asyncio.ensure_future(cluster.engine.reserve("u1/1", (offer("a", "m1"), offer("b", "m2"))))
    await until(lambda: "a" in cluster.agents["m1"].slots)
    cut.cancel()
    with suppress(asyncio.CancelledError):
        await cut
    await cluster.drop()
    await cluster.agents["m2"].start()
    await cluster.start()
    await cluster.engine.reserve("u1/1", (offer("a", "m1"), offer("b", "m2")))
    assert set(cluster.agents["m2"].slots) == {"b"}


async def test_an_agent_that_is_away_makes_the_whole_reservation_fail(cluster: Cluster) -> None:
    await cluster.agents["m2"].stop()
    with pytest.raises((Unavailable, NoCapacity), match="slot b could not be handed to m2"):
        await cluster.engine.reserve("u1/1", (offer("a", "m1", gpus=(0,)), offer("b", "m2")))
    await cluster.until_free("a")
    assert "a" in cluster.agents["m1"].finished
    assert (await cluster.machine("m1")).free_gpus == tuple(range(8))
    assert [(held.slot, held.leaving) for held in await cluster.engine.held()] == [("b", True)]


async def test_an_agent_that_comes_back_in_time_makes_the_reservation_succeed(cluster: Cluster) -> None:
    await cluster.agents["m2"].stop()
    reserving = asyncio.ensure_future(cluster.engine.reserve("u1/1", (offer("b", "m2"),)))
    await asyncio.sleep(0.02)
    await cluster.agents["m2"].start()
    await reserving
    assert set(cluster.agents["m2"].slots) == {"b"}


async def test_an_agent_that_refuses_a_slot_makes_the_whole_reservation_fail(cluster: Cluster) -> None:
    cluster.agents["m2"].refusing = "drive datasets is not on this machine"
    with pytest.raises(NoCapacity, match=r"the agent of m2 says: drive datasets is not on this machine"):
        await cluster.engine.reserve("u1/1", (offer("a", "m1"), offer("b", "m2")))
    await cluster.until_free("a")
    await cluster.until_free("b")


async def test_given_back_resources_are_held_until_no_process_is_left(cluster: Cluster) -> None:
    await cluster.engine.reserve("u1/1", (offer("a", "m1", gpus=(0,)),))
    cluster.agents["m1"].lingering.add("a")
    await cluster.engine.give_back("a", 137, "the run was stopped")
    await until(lambda: "a" in cluster.agents["m1"].finished)
    assert await cluster.engine.held() == (Held("a", "m1", leaving=True),)
    assert 0 not in (await cluster.machine("m1")).free_gpus
    with pytest.raises(NoCapacity, match="GPU 0 of m1 is not free"):
        await cluster.engine.reserve("u2/1", (offer("c", "m1", gpus=(0,)),))
    before = cluster.changes
    cluster.agents["m1"].lingering.clear()
    await cluster.until_free("a")
    await asyncio.sleep(0)
    assert cluster.changes > before, "whoever waits for machines is told"
    assert cluster.agents["m1"].finished["a"] == (137, "the run was stopped")
    await cluster.engine.reserve("u2/1", (offer("c", "m1", gpus=(0,)),))


async def test_giving_back_returns_at_once_when_the_agent_is_away_and_is_done_when_it_is_back(cluster: Cluster) -> None:
    await cluster.engine.reserve("u1/1", (offer("a", "m1"),))
    await cluster.agents["m1"].stop()
    await cluster.engine.give_back("a", 0, "it completed")
    assert await cluster.engine.held() == (Held("a", "m1", leaving=True),)
    await cluster.agents["m1"].start()
    await cluster.until_free("a")


async def test_what_was_leaving_goes_on_leaving_after_a_restart(cluster: Cluster) -> None:
    await cluster.engine.reserve("u1/1", (offer("a", "m1"),))
    await cluster.agents["m1"].stop()
    await cluster.engine.give_back("a", 0, "it completed")
    await cluster.drop()
    await cluster.agents["m1"].start()
    await cluster.start()
    await cluster.until_free("a")
    assert cluster.agents["m1"].finished["a"] == (0, "it completed")


async def test_giving_back_twice_is_giving_back_once(cluster: Cluster) -> None:
    await cluster.engine.reserve("u1/1", (offer("a", "m1"),))
    await cluster.engine.give_back("a", 0, "it completed")
    await cluster.engine.give_back("a", 1, "again")
    await cluster.until_free("a")
    await cluster.engine.give_back("a", 1, "and again")
    assert await cluster.engine.held() == ()
    assert cluster.agents["m1"].finished["a"] == (0, "it completed")


@pytest.mark.parametrize("restart", [False, True])
async def test_a_slot_that_was_given_back_before_it_was_reserved_never_comes_to_life(
    cluster: Cluster, restart: bool
) -> None:
    await cluster.engine.give_back("a", 143, "the run was stopped")
    if restart:
        await cluster.drop()
        await cluster.start()
    with pytest.raises(NoCapacity, match="slot a of this reservation has been given back"):
        await cluster.engine.reserve("u1/1", (offer("a", "m1"), offer("b", "m2")))
    assert await cluster.engine.held() == ()
    assert cluster.agents["m2"].puts == []


async def test_a_slot_given_back_while_it_is_being_reserved_ends_the_reservation(cluster: Cluster) -> None:
    await cluster.agents["m2"].stop()
    reserving = asyncio.ensure_future(cluster.engine.reserve("u1/1", (offer("a", "m1"), offer("b", "m2"))))
    await until(lambda: "a" in cluster.agents["m1"].slots)
    await cluster.engine.give_back("b", 143, "the run was stopped")
    with pytest.raises((NoCapacity, Unavailable)):
        await reserving
    await cluster.agents["m2"].start()
    await cluster.until_free("a")
    await cluster.until_free("b")
    assert "b" not in cluster.agents["m2"].slots


async def test_a_slot_that_the_book_does_not_know_is_ended_before_its_machine_is_used(cluster: Cluster) -> None:
    """As after a state directory was lost: its worker may still run there, on GPUs that look free."""
    agent = cluster.agents["m1"]
    await cluster.bring_stranger("stranger", "m1", gpu=0)
    await until(lambda: "stranger" in agent.finished)
    with pytest.raises(NoCapacity, match=r"m1 is out of use: m1 has slot stranger|GPU 0 of m1 is not free"):
        await cluster.engine.reserve("u1/1", (offer("a", "m1", gpus=(0,)),))
    agent.lingering.clear()
    async with asyncio.timeout(20):
        while (m1 := await cluster.machine("m1")).out_of_use or 0 not in m1.free_gpus:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    await cluster.engine.reserve("u1/1", (offer("a", "m1", gpus=(0,)),))


async def test_tombstones_are_forgotten_in_the_end(cluster: Cluster) -> None:
    await cluster.engine.give_back("a", 143, "the run was stopped")
    await cluster.drop()
    cluster.clock.advance(TOMBSTONE_KEPT_S + 1)
    await cluster.start()
    await until(lambda: not cluster.store.book)
