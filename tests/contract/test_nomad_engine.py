"""What the engine on Nomad does where Nomad is not what it should be: partial, silent, busy, of another mind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from astra_agent.errors import NoCapacity, Unavailable
from astra_agent.wire import Hello, RunRef, SlotRequest
from astra_gang.engine import SlotOffer
from astra_gang.engines.nomad.api import NomadApi
from astra_gang.engines.nomad.clearing import BY_ITSELF_S
from astra_gang.engines.nomad.engine import NomadEngine
from astra_gang.engines.nomad.job import Terms, machine_ids
from astra_gang.engines.nomad.transport import Access, Answered, Transport
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

JOB = ("default", "llama-u1-1")
MACHINES = ("m1", "m2", "m3")


class Bench:
    """Three machines with agents that have links, a Nomad, and an engine on it."""

    def __init__(self, folder: Path, version: str) -> None:
        self.clock = FakeClock()
        self.store = MemoryStore()
        self.roster = Roster(self.clock)
        self.nomad = FakeNomad(version)
        self.server = NomadServer(self.nomad)
        self.agents = {name: FakeAgentSocket(folder / f"{name}.sock") for name in MACHINES}
        self.token_file = folder / "token"
        self.engine: NomadEngine
        self.api: NomadApi

    async def start(self, stack: AsyncExitStack, **more: Any) -> None:
        await stack.enter_async_context(self.server.serving())
        await stack.enter_async_context(Clients(self.nomad))
        for name, agent in self.agents.items():
            await agent.start()
            stack.push_async_callback(agent.stop)
            self.nomad.add_node(name, agent)
        token_file = self.token_file if self.token_file.exists() else None
        self.api = await stack.enter_async_context(NomadApi(Access(self.server.url, token_file), patience_s=0.3))
        version = (await self.api.members()).version()
        assert version is not None
        self.engine = NomadEngine(
            api=self.api, store=self.store, clock=self.clock, roster=self.roster, term=3,
            terms=Terms("gpu", version, 60.0), look_s=0.05,
            **{"hand_over_s": 5.0, **more},
        )  # fmt: skip
        for name in MACHINES:
            self.roster.arrived(Hello(version="1", boot="b", facts=facts(name), slots=()))
        running = asyncio.ensure_future(self.engine.run(LinkedAgents(self.agents, lambda: self.roster)))

        async def stop() -> None:
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running

        stack.push_async_callback(stop)

    def cut_off(self, name: str) -> None:
        """Its link is gone; its client does not answer either."""
        self.roster.left(name)
        self.nomad.set_node(name, status="disconnected")
        for allocation in self.nomad.allocations:
            if allocation.node.name == name and not allocation.over:
                self.nomad.update(allocation, client="unknown")

    async def come_back(self, name: str) -> None:
        self.roster.arrived(Hello(version="1", boot="b", facts=facts(name), slots=()))
        self.nomad.set_node(name, status="ready")

    def live(self) -> list[str]:
        return sorted(a.node.name for a in self.nomad.of(JOB) if a.desired == "run" and not a.over)

    async def reserve(self, *machines: str, reservation: str = "u1/1") -> None:
        await self.engine.reserve(reservation, tuple(offer(name) for name in machines))

    async def until_nothing_is_held(self) -> None:
        async with asyncio.timeout(20):
            while await self.engine.held():  # noqa: ASYNC110
                await asyncio.sleep(0.005)


def offer(machine: str) -> SlotOffer:
    run = RunRef(workspace="default", name="llama", uid="u1")
    request = SlotRequest(slot=f"llama-u1-{machine}", run=run, worker=f"llama-{machine}", image="host", cpu_cores=1.0)
    return SlotOffer(machine, request)


@pytest.fixture(params=VERSIONS)
async def bench(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Bench]:
    made = Bench(tmp_path, request.param)
    async with AsyncExitStack() as stack:
        await made.start(stack)
        yield made


# Whole or not --------------------------------------------------------------------------------------------------------


async def test_a_part_is_given_back_when_a_machine_is_taken_in_between(bench: Bench) -> None:
    """Between the snapshot and the registration somebody else took m2: Nomad places the other two, and waits."""
    taken = bench.nomad.nodes["m2"]

    def take(_: int) -> None:
        taken.eligible = False

    bench.store.after_commit = take
    with pytest.raises(NoCapacity, match="Nomad found no place for 1 of the workers"):
        await bench.reserve(*MACHINES)
    bench.store.after_commit = lambda _: None
    await bench.until_nothing_is_held()
    assert bench.live() == []
    assert bench.nomad.jobs[JOB].stopped, "nothing waits for m2 any more"
    assert not any(e["Status"] == "blocked" for e in bench.nomad.evaluations.values())


async def test_of_two_gangs_that_want_the_same_machines_one_gets_them_whole(bench: Bench) -> None:
    outcomes = await asyncio.gather(
        bench.reserve("m1", "m2"), bench.reserve("m1", "m2", reservation="u1/2"), return_exceptions=True
    )
    assert sum(outcome is None for outcome in outcomes) >= 1


async def test_what_nomad_does_not_take_is_told_in_its_words(bench: Bench) -> None:
    bench.nomad.broken = []
    run = RunRef(workspace="default", name="llama", uid="u 1")
    with pytest.raises(NoCapacity, match="Job ID contains a space"):
        await bench.engine.reserve(
            "u 1/1", (SlotOffer("m1", SlotRequest(slot="s", run=run, worker="llama-0", image="host")),)
        )


async def test_a_job_that_somebody_stopped_in_nomad_is_no_reservation(bench: Bench) -> None:
    await bench.reserve("m1")
    bench.nomad.deregister(JOB)
    with pytest.raises(NoCapacity, match="job llama-u1-1 has been stopped in Nomad"):
        await bench.reserve("m1")


async def test_a_registration_whose_answer_was_lost_is_found_and_not_made_twice(bench: Bench) -> None:
    bench.server.lose_answers_to("POST /v1/jobs", 1)
    await bench.reserve("m1", "m2")
    assert bench.live() == ["m1", "m2"]
    assert bench.nomad.jobs[JOB].version == 0


async def test_servers_that_drop_the_disconnect_limit_are_found_out(bench: Bench, tmp_path: Path) -> None:
    other = {"1.6.5": (2, 0, 5), "2.0.5": (1, 6, 5)}[bench.nomad.version]
    bench.engine._terms = Terms("gpu", other, 60.0)
    with pytest.raises(Unavailable, match="Nomad has not kept the disconnect limit of job llama-u1-1"):
        await bench.reserve("m1")
    await bench.until_nothing_is_held()


# Giving back ---------------------------------------------------------------------------------------------------------


async def test_slots_end_by_their_agents_hands_with_their_own_codes(bench: Bench) -> None:
    await bench.reserve("m1", "m2")
    await bench.engine.give_back("llama-u1-m1", 0, "it completed")
    await bench.engine.give_back("llama-u1-m2", 0, "it completed")
    await bench.until_nothing_is_held()
    assert [a.client for a in bench.nomad.of(JOB)] == ["complete", "complete"]
    assert not bench.nomad.jobs[JOB].stopped, "it ended as its workers did"


async def test_a_failed_run_ends_as_a_failed_job(bench: Bench) -> None:
    await bench.reserve("m1")
    await bench.engine.give_back("llama-u1-m1", 3, "Exited with code 3")
    await bench.until_nothing_is_held()
    assert [a.client for a in bench.nomad.of(JOB)] == ["failed"]


async def test_one_that_takes_its_time_is_stopped_by_nomad_too(bench: Bench) -> None:
    await bench.reserve("m1")
    bench.agents["m1"].lingering.add("llama-u1-m1")
    await bench.engine.give_back("llama-u1-m1", 143, "the run was stopped")
    await asyncio.sleep(0.1)
    assert not bench.nomad.jobs[JOB].stopped
    bench.clock.advance(BY_ITSELF_S)
    await until(lambda: bench.nomad.jobs[JOB].stopped)
    assert await bench.engine.held(), "its machine is not free while it runs"
    bench.agents["m1"].lingering.clear()
    await bench.until_nothing_is_held()


async def test_a_lost_machine_is_taken_off_the_list_and_the_others_keep_running(bench: Bench) -> None:
    await bench.reserve(*MACHINES)
    before = {a.node.name: a.id for a in bench.nomad.of(JOB)}
    bench.cut_off("m3")
    await bench.engine.give_back("llama-u1-m3", 143, "its machine is lost")
    await until(lambda: bench.nomad.nodes["m3"].id not in machine_ids(bench.nomad.jobs[JOB].document))
    assert {a.node.name: a.id for a in bench.nomad.of(JOB) if a.client == "running"} == {
        name: before[name] for name in ("m1", "m2")
    }
    assert ("llama-u1-m3", True) in [(held.slot, held.leaving) for held in await bench.engine.held()]


async def test_a_machine_that_comes_back_ends_its_slot_and_is_free_again(bench: Bench) -> None:
    await bench.reserve(*MACHINES)
    bench.cut_off("m3")
    await bench.engine.give_back("llama-u1-m3", 143, "its machine is lost")
    await asyncio.sleep(0.1)
    await bench.come_back("m3")
    async with asyncio.timeout(20):
        while any(held.slot == "llama-u1-m3" for held in await bench.engine.held()):  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    assert bench.live() == ["m1", "m2"]


async def test_while_nomad_does_not_answer_slots_end_all_the_same(bench: Bench) -> None:
    await bench.reserve("m1")
    bench.server.down = True
    await bench.engine.give_back("llama-u1-m1", 0, "it completed")
    await until(lambda: "llama-u1-m1" in bench.agents["m1"].finished)
    assert await bench.engine.held(), "nobody can say that Nomad has let it go"
    bench.server.down = False
    await bench.until_nothing_is_held()


# Machines ------------------------------------------------------------------------------------------------------------


async def test_what_runs_on_a_machine_that_is_drained_is_told(bench: Bench) -> None:
    await bench.reserve("m1", "m2")
    bench.nomad.set_node("m2", draining=True)
    await until(lambda: bench.roster.withdrawn("m2") == "m2 is being drained")
    assert bench.roster.withdrawn("m1") is None
    (m2,) = (m for m in await bench.engine.machines() if m.facts.name == "m2")
    assert m2.out_of_use == "m2 is being drained"
    bench.nomad.set_node("m2", draining=False)
    await until(lambda: bench.roster.withdrawn("m2") is None)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"status": "down"}, "m2 is down in Nomad"),
        ({"status": "disconnected"}, "m2 is disconnected in Nomad"),
        ({"eligible": False}, "m2 is not eligible: nomad node eligibility -enable"),
    ],
    ids=["down", "disconnected", "not eligible"],
)
async def test_what_runs_on_a_machine_that_only_takes_nothing_new_is_left_alone(
    bench: Bench, changes: dict[str, Any], sentence: str
) -> None:
    await bench.reserve("m1", "m2")
    bench.nomad.set_node("m2", **changes)
    bench.nomad.set_node("m3", draining=True)  # once this one is told, the engine has looked at both
    await until(lambda: bench.roster.withdrawn("m3") is not None)
    assert bench.roster.withdrawn("m2") is None
    (m2,) = (m for m in await bench.engine.machines() if m.facts.name == "m2")
    assert m2.out_of_use is not None and m2.out_of_use.startswith(sentence)
    assert [(held.machine, held.leaving) for held in await bench.engine.held()] == [("m1", False), ("m2", False)]


async def test_nodes_of_other_pools_are_no_machines(bench: Bench) -> None:
    bench.nomad.add_node("web-1", pool="default")
    assert [m.facts.name for m in await bench.engine.machines()] == list(MACHINES)


# Refusals ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("capability", "sentence"),
    [
        ("node:read", r'list nodes: it lacks node read; its policy needs the line node \{ policy = "read" \}'),
        ("read-job", r'it lacks read-job; its policy needs the line namespace "\*" \{ capabilities = \["read-job"\]'),
        (
            "submit-job",
            r"register job llama-u1-1: it lacks submit-job; its policy needs the line "
            r'namespace "default" \{ capabilities = \["submit-job"\] \}',
        ),
    ],
)
async def test_a_right_that_is_missing_is_named_with_the_line_that_gives_it(
    bench: Bench, capability: str, sentence: str
) -> None:
    bench.engine._hand_over_s = 1.0
    bench.nomad.forbidden = {capability}
    with pytest.raises(Unavailable, match=sentence):
        await bench.reserve("m1")
    bench.nomad.forbidden.clear()
    await bench.until_nothing_is_held()
    await bench.reserve("m2", reservation="u1/2")


async def test_a_reservation_that_nomad_does_not_take_now_says_so_while_it_is_asked_again(bench: Bench) -> None:
    bench.nomad.forbidden = {"submit-job"}
    reserving = asyncio.ensure_future(bench.reserve("m1", reservation="u1/1"))
    await until(lambda: bench.engine.trouble("u1/1"))
    assert "lacks submit-job; its policy needs the line" in str(bench.engine.trouble("u1/1"))
    bench.nomad.forbidden.clear()
    await reserving
    assert bench.engine.trouble("u1/1") is None


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("end", "said"), [("expired", "it (has )?expired"), ("deleted", "it was deleted")])
async def test_a_token_that_is_none_any_more_is_named_and_a_new_one_is_read_at_the_next_call(
    tmp_path: Path, version: str, end: str, said: str
) -> None:
    """Nomad denies it what it denies one that lacks a right, in the same words."""
    bench = Bench(tmp_path, version)
    bench.token_file.write_text("first\n")
    bench.server.tokens, bench.server.token_end = {"first"}, end
    async with AsyncExitStack() as stack:
        await bench.start(stack)
        await bench.engine.machines()
        bench.server.tokens = {"second"}
        with pytest.raises(Unavailable, match=rf"does not know the token in {bench.token_file}: {said}.*new one"):
            await bench.engine.machines()
        bench.token_file.write_text("second\n")
        assert len(await bench.engine.machines()) == 3


@pytest.mark.parametrize(
    ("status", "text"), [(429, "Your IP is issuing too many concurrent connections"), (500, "No cluster leader")]
)
async def test_a_nomad_that_is_busy_or_elects_a_leader_is_waited_for(bench: Bench, status: int, text: str) -> None:
    bench.nomad.broken = [(status, text)] * 2
    await bench.reserve("m1", "m2")
    assert bench.live() == ["m1", "m2"]


async def test_a_nomad_that_takes_its_time_to_refuse_is_asked_again_no_longer_than_any_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A server that knows no leader says so after 5 s."""
    asked: list[str] = []

    async def refuse(self: Transport, method: str, path: str, *_: object, **__: object) -> Answered:
        asked.append(path)
        await asyncio.sleep(0.5)
        raise Unavailable("Nomad has no leader now")

    monkeypatch.setattr(Transport, "ask", refuse)
    async with NomadApi(Access("http://127.0.0.1:1"), patience_s=1.5) as api:
        with pytest.raises(Unavailable, match="no leader"):
            await api.nodes("default")
    assert 2 <= len(asked) <= 3


async def test_a_nomad_that_is_away_is_a_sentence_with_its_address(bench: Bench) -> None:
    bench.server.down = True
    with pytest.raises(Unavailable, match=f"Nomad does not answer at {bench.server.url}"):
        await bench.engine.machines()
    bench.server.down = False


# The event stream ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", ["silent", "refused", "cut", "words"])
async def test_without_an_event_stream_everything_works_by_queries(bench: Bench, stream: str) -> None:
    bench.server.break_stream(stream)
    await bench.reserve("m1", "m2")
    await bench.engine.give_back("llama-u1-m1", 0, "it completed")
    await bench.engine.give_back("llama-u1-m2", 0, "it completed")
    await bench.until_nothing_is_held()
