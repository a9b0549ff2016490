"""The coordinator with agents on real links: gangs start, restart and end, whatever is cut off or killed meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest

from astra_agent.errors import Unavailable
from astra_agent.wire import Tell
from astra_gang.engine import Machine
from astra_gang.performer import RETRY_FIRST_S
from astra_gang.planner import SETTLE_S
from astra_gang.sightings import PUT_GRACE_S
from astra_gang.telling import LASTS_S
from tests.fakes.agent import FakeAgent
from tests.fakes.cluster import FakeCluster
from tests.fakes.eventually import until
from tests.fakes.nomad.recorded import NEWEST
from tests.fakes.runs import document


@pytest.fixture(params=["embedded", "nomad"])
async def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[FakeCluster]:
    on_nomad = NEWEST if request.param == "nomad" else None
    async with FakeCluster(tmp_path, machines=5, on_nomad=on_nomad) as made:
        await made.connected()
        yield made
        assert made.wrong() == []


async def submit(cluster: FakeCluster, name: str = "llama", machines: int = 4, gpus: int = 0, **spec: object) -> None:
    status, answer = await cluster.request("POST", "jobs", json=document(name, machines, gpus, **spec))
    assert status == 201, answer


async def run_of_four(cluster: FakeCluster, **spec: Any) -> None:
    await submit(cluster, **spec)
    await cluster.until_phase("running")


async def complete(cluster: FakeCluster, workers: int = 4, name: str = "llama") -> None:
    for rank in range(workers):
        agent, slot = cluster.slot(f"{name}-{rank}")
        await agent.exit(slot, 0)
    await cluster.until_phase("Completed", name)


def attempts_running(cluster: FakeCluster) -> list[int]:
    return sorted(attempt for agent in cluster.agents.values() for _, attempt in agent.running())


def all_given_back(cluster: FakeCluster) -> bool:
    return not any(agent.held for agent in cluster.agents.values())


async def test_a_gang_of_four_starts_together_and_completes(cluster: FakeCluster) -> None:
    await submit(cluster, gpus=32)
    await cluster.until_phase("running")
    arms = {}
    for rank in range(4):
        agent, slot = cluster.slot(f"llama-{rank}")
        arms[rank] = agent.held[slot].arms[0]
        assert agent.running() == [(slot, 0)]
    assert [arms[rank].env["RANK"] for rank in range(4)] == ["0", "1", "2", "3"]
    assert len({arm.env["MASTER_ADDR"] for arm in arms.values()}) == 1
    assert all(arm.hosts["llama-3"] for arm in arms.values())
    await complete(cluster)
    await until(lambda: all_given_back(cluster), "every slot is given back")
    assert (await cluster.job())["phase"] == "Completed"


async def test_nobody_is_armed_before_all_are_ready_and_nobody_started_before_all_are_armed(
    cluster: FakeCluster,
) -> None:
    late = cluster.agents["m4"]
    late.slow = True
    await submit(cluster, machines=5)
    await until(lambda: len(late.held) == 1)
    status = await cluster.job()
    while status["reason"] != "Starting together: 4 of 5 ready":
        await asyncio.sleep(0.01)
        status = await cluster.job()
    assert status["phase"] == "Starting"
    assert not any(held.arms for agent in cluster.agents.values() for held in agent.held.values())
    await late.ready(next(iter(late.held)))
    await cluster.until_phase("running")


async def test_a_failed_worker_restarts_the_gang_in_its_slots_after_the_back_off(cluster: FakeCluster) -> None:
    await run_of_four(cluster)
    before = {f"llama-{rank}": cluster.slot(f"llama-{rank}")[1] for rank in range(4)}
    agent, slot = cluster.slot("llama-1")
    await agent.exit(slot, 1)
    await until(lambda: attempts_running(cluster) == [], "the old attempt is stopped")
    await until(lambda: all(1 in h.attempts for a in cluster.agents.values() for h in a.held.values()))
    assert attempts_running(cluster) == [], "the back-off is not over"
    cluster.clock.advance(10.5)
    await until(lambda: attempts_running(cluster) == [1, 1, 1, 1])
    assert {f"llama-{rank}": cluster.slot(f"llama-{rank}")[1] for rank in range(4)} == before
    assert "Gang restart: llama-1 failed." in await cluster.sentences()
    await complete(cluster)


async def test_a_worker_that_runs_for_ten_minutes_is_shown_without_failures_again(cluster: FakeCluster) -> None:
    await run_of_four(cluster)
    agent, slot = cluster.slot("llama-1")
    await agent.exit(slot, 1)
    await until(lambda: attempts_running(cluster) == [], "the old attempt is stopped")
    cluster.clock.advance(10.5)
    await until(lambda: attempts_running(cluster) == [1, 1, 1, 1])
    await cluster.until_phase("running")
    for _ in range(59):
        cluster.pass_time(10)
    assert [worker["failures"] for worker in (await cluster.job())["workers"]] == [0, 1, 0, 0]
    cluster.pass_time(10)
    assert [worker["failures"] for worker in (await cluster.job())["workers"]] == [0, 0, 0, 0]
    await complete(cluster)


async def test_a_user_stops_a_run_and_every_machine_is_free(cluster: FakeCluster) -> None:
    await run_of_four(cluster)
    status, _ = await cluster.request("POST", "jobs/llama/stop")
    assert status == 202
    await cluster.until_phase("Stopped")
    await until(lambda: all_given_back(cluster))
    while {m.slots for m in await cluster.parts.engine.machines()} != {()}:  # noqa: ASYNC110  # no event says so
        await asyncio.sleep(0.01)


async def test_a_worker_that_never_says_it_ended_does_not_hold_up_the_end_of_its_run(cluster: FakeCluster) -> None:
    await run_of_four(cluster)
    stubborn, slot = cluster.slot("llama-1")
    stubborn.stubborn = True
    await cluster.request("POST", "jobs/llama/stop")
    await until(lambda: attempts_running(cluster) == [0])
    await until(lambda: cluster.phase() == "ending")
    policy = cluster.run().state.policy
    cluster.clock.advance(policy.stop_grace_s + policy.stop_timeout_s + policy.silence_s + 1)
    await cluster.until_phase("Stopped")
    await until(lambda: slot in stubborn.finished)


@pytest.mark.parametrize("link", ["closed", "open"])
async def test_a_machine_that_does_not_answer_is_told_of_before_it_counts_as_lost(
    cluster: FakeCluster, link: str
) -> None:
    await run_of_four(cluster)
    silent, _ = cluster.slot("llama-2")
    if link == "closed":
        await silent.disconnect()
        await until(lambda: not cluster_machine_connected(cluster, silent.name))
    cluster.clock.advance(12)
    for agent in cluster.agents.values():
        if agent is not silent:
            await agent.lease(1)
    await until(lambda: all(agent is silent or 1 in agent.leased for agent in cluster.agents.values()))
    status = await cluster.job()
    assert status["phase"] == "Running"
    assert status["reason"] == f"{silent.name} does not answer; after 105 s of silence it counts as lost"
    details = {worker["name"]: worker["detail"] for worker in status["workers"]}
    assert details.pop("llama-2") == f"{silent.name} does not answer since 12 s"
    assert set(details.values()) == {""}
    _, answer = await cluster.request("GET", "/v1/machines")
    assert {m["name"]: m["silent_s"] for m in answer["items"] if m["silent_s"] is not None} == {silent.name: 12.0}
    await (silent.lease(1) if link == "open" else back(cluster, silent))
    await until(lambda: cluster.parts.loop.watch.silent_s(silent.name) is None)
    assert (await cluster.job())["reason"] == "All 4 workers run"
    await complete(cluster)


async def back(cluster: FakeCluster, agent: FakeAgent) -> None:
    agent.connect(cluster.url)
    await until(lambda: cluster_machine_connected(cluster, agent.name))


async def test_a_lost_machine_is_replaced_once_its_agent_must_have_stopped_its_worker(cluster: FakeCluster) -> None:
    await run_of_four(cluster)
    lost, slot = cluster.slot("llama-2")
    await lost.disconnect()
    await until(lambda: not cluster_machine_connected(cluster, lost.name))
    # The limit of 60 s, the grace time of 30 s and the margin of 15 s are not over: nothing may take its place.
    cluster.clock.advance(104)
    await asyncio.sleep(0.1)
    assert attempts_running(cluster) == [0, 0, 0, 0]
    lost.held[slot].attempts.clear()  # by itself, as its agent does when its lease is over
    for agent in cluster.agents.values():
        await agent.lease(1)
    cluster.clock.advance(2)
    await until(lambda: attempts_running(cluster) == [1, 1, 1, 1])
    taken = cluster.run().state.workers[2].slot
    assert taken is not None and taken.machine != lost.name
    said = await cluster.sentences()
    assert f"llama-2 is Down: its machine {lost.name} is lost" in said
    await complete(cluster)


def cluster_machine_connected(cluster: FakeCluster, name: str) -> bool:
    return any(session == name for session in cluster.parts.links.connected())


async def test_who_looks_at_a_slot_through_nomad_is_told_what_its_gang_does(tmp_path: Path) -> None:
    async with FakeCluster(tmp_path, machines=4, on_nomad=NEWEST) as cluster:
        await cluster.connected()
        late = cluster.agents["m3"]
        late.slow = True
        await submit(cluster)
        await until(lambda: late.held)
        await until(lambda: cluster.run().state.reason == "Starting together: 3 of 4 ready")
        assert told(cluster, "m1") == [], "it may not last"
        cluster.clock.advance(LASTS_S)
        await until(lambda: told(cluster, "m1") == ["Starting together: 3 of 4 ready"])
        for slot in list(late.held):
            await late.ready(slot)
        await cluster.until_phase("running")
        agent, slot = cluster.slot("llama-2")
        await agent.exit(slot, 1)
        sentences = ["Starting together: 4 of 4 ready", "All 4 workers run", "Gang restart: llama-2 failed."]
        await until(lambda: told(cluster, "m1")[1:] == sentences)


def told(cluster: FakeCluster, machine: str) -> list[str]:
    return [sentence for _, sentence in cluster.agents[machine].told]


async def test_a_machine_that_is_away_for_less_than_the_limit_keeps_its_slot_and_its_process(
    cluster: FakeCluster,
) -> None:
    await run_of_four(cluster)
    away, _ = cluster.slot("llama-2")
    await away.disconnect()
    cluster.clock.advance(100)
    await asyncio.sleep(0.05)
    away.connect(cluster.url)
    await cluster.connected(away.name)
    cluster.clock.advance(100)
    await asyncio.sleep(0.05)
    assert attempts_running(cluster) == [0, 0, 0, 0]


async def test_a_coordinator_that_starts_again_grants_every_machine_a_whole_period(cluster: FakeCluster) -> None:
    await run_of_four(cluster)
    away, _ = cluster.slot("llama-2")
    await away.disconnect()
    cluster.clock.advance(100)
    await cluster.restart()
    cluster.clock.advance(100)
    await asyncio.sleep(0.1)
    away.connect(cluster.url)
    await cluster.connected()
    assert attempts_running(cluster) == [0, 0, 0, 0]


async def test_a_machine_that_was_booted_comes_back_without_its_slot(cluster: FakeCluster) -> None:
    await run_of_four(cluster)
    booted, _ = cluster.slot("llama-2")
    await booted.disconnect()
    booted.forget_everything()
    booted.connect(cluster.url)
    await until(lambda: attempts_running(cluster) == [1, 1, 1, 1])
    await complete(cluster)


async def test_a_slot_that_vanished_before_its_agent_ever_spoke_of_it_is_missed_in_the_end(
    cluster: FakeCluster,
) -> None:
    silent = cluster.agents["m1"]
    silent.on_put = lambda slot, request: None  # type: ignore[method-assign]  # takes it, and forgets it
    await submit(cluster, machines=5)
    await until(lambda: silent.puts)
    await until(lambda: cluster.phase() == "assembling")
    cluster.clock.advance(PUT_GRACE_S - 1)
    await asyncio.sleep(0.05)
    assert not any("came back without it" in sentence for sentence in await cluster.sentences())
    cluster.clock.advance(2)
    await until(lambda: cluster.phase() != "assembling" or len(cluster.agents["m1"].puts) > 1)
    assert any("came back without it" in sentence for sentence in await cluster.sentences())


async def test_a_run_waits_whole_until_every_worker_fits(cluster: FakeCluster) -> None:
    for name in ("m4", "m5"):
        await cluster.agents[name].disconnect()
    await until(lambda: len(cluster.parts.links.connected()) == 3)
    await submit(cluster, machines=4)
    await until(lambda: "Looking" not in cluster.run().state.reason)
    status = await cluster.job()
    assert status["phase"] == "Pending"
    assert status["reason"].startswith("Gang cannot be placed whole: ")
    assert all_given_back(cluster), "it holds nothing while it waits"
    cluster.agents["m4"].connect(cluster.url)
    await cluster.until_phase("running")


async def test_after_a_restart_a_waiting_run_is_not_judged_on_half_a_cluster(cluster: FakeCluster) -> None:
    await submit(cluster, "blocker", machines=5, gpus=40)
    await cluster.until_phase("running", "blocker")
    await submit(cluster, "waiting", machines=5, gpus=40)
    await until(lambda: cluster.run("waiting").state.reason.startswith("Gang cannot be placed whole: "))
    before = await cluster.sentences("waiting")
    for agent in cluster.agents.values():
        await agent.disconnect()
    await cluster.restart()
    cluster.clock.advance(SETTLE_S - 1)
    for agent in cluster.agents.values():
        agent.connect(cluster.url)
    await cluster.connected()
    await complete(cluster, 5, "blocker")
    await cluster.until_phase("running", "waiting")
    after = await cluster.sentences("waiting")
    assert after[len(before)].startswith("Placed: ")


async def test_two_runs_never_get_the_same_gpus_and_the_older_goes_first(cluster: FakeCluster) -> None:
    await submit(cluster, "blocker", machines=5, gpus=40)
    await cluster.until_phase("running", "blocker")
    for name in ("first", "second", "third"):
        await submit(cluster, name, machines=5, gpus=20)
        cluster.clock.advance(0.5)
    await complete(cluster, 5, "blocker")
    await cluster.until_phase("running", "first")
    await cluster.until_phase("running", "second")
    assert cluster.phase("third") == "pending"
    for agent in cluster.agents.values():
        taken = [gpu for held in agent.held.values() for gpu in held.request.gpus]
        assert len(taken) == len(set(taken)) == 8


async def test_a_directive_that_is_not_answered_is_sent_again(cluster: FakeCluster) -> None:
    deaf = cluster.agents["m3"]
    heard: list[str] = []
    obey = deaf.obey

    async def once_deaf(directive: object) -> None:
        if not isinstance(directive, Tell):
            heard.append(type(directive).__name__)
        if len(heard) > 1:
            await obey(directive)  # type: ignore[arg-type]

    deaf.obey = once_deaf  # type: ignore[method-assign]
    await submit(cluster, machines=5)
    await until(lambda: heard)
    await asyncio.sleep(0.05)
    assert heard == ["Arm"]
    cluster.clock.advance(RETRY_FIRST_S + 0.1)
    await cluster.until_phase("running")


async def test_reports_that_come_late_twice_and_out_of_order_change_nothing(cluster: FakeCluster) -> None:
    await submit(cluster, machines=5)
    await until(lambda: sum(len(agent.held) for agent in cluster.agents.values()) == 5)
    agent, slot = cluster.slot("llama-1")
    old = agent.status(slot)
    await cluster.until_phase("running")
    for _ in range(3):
        await agent.say_again(old)
    await until(lambda: not agent.unacknowledged)
    assert cluster.phase() == "running"
    assert (await cluster.job())["workers"][1]["state"] == "Running"
    await complete(cluster, 5)


async def test_a_report_is_acknowledged_only_once_it_is_recorded(cluster: FakeCluster) -> None:
    await run_of_four(cluster)
    await until(lambda: not any(agent.unacknowledged for agent in cluster.agents.values()))
    agent, slot = cluster.slot("llama-1")
    cluster.store.failing = "the disk is full"
    await agent.exit(slot, 1)
    await until(lambda: cluster.parts.loop.trouble)
    assert agent.unacknowledged
    status, health = await cluster.request("GET", "/v1/health")
    assert (status, health["status"]) == (503, "the disk is full")
    cluster.store.failing = None
    await until(lambda: not agent.unacknowledged)
    assert any("llama-1 failed" in sentence for sentence in await cluster.sentences())


async def test_while_nothing_can_be_recorded_clients_are_refused_and_nothing_of_it_stays(cluster: FakeCluster) -> None:
    cluster.store.failing = "the disk is full"
    for _ in range(2):
        status, answer = await cluster.request("POST", "jobs", json=document())
        assert (status, answer["error"]["message"], answer["error"]["code"]) == (503, "the disk is full", "Unavailable")
    agent = cluster.agents["m1"]
    await agent.disconnect()
    agent.connect(cluster.url)  # its hello waits to be recorded
    await cluster.connected()
    status, answer = await cluster.request("POST", "jobs", json=document())
    assert (status, answer["error"]["message"]) == (503, "the disk is full")
    cluster.store.failing = None
    await submit(cluster, "other", machines=1)
    await cluster.until_phase("running", "other")
    assert cluster.phase("llama") == "none"


async def test_a_run_says_that_nothing_can_be_recorded_as_long_as_it_is_so(cluster: FakeCluster) -> None:
    await run_of_four(cluster)
    before = (await cluster.job())["reason"]
    agent, slot = cluster.slot("llama-1")
    cluster.store.failing = "the disk is full"
    await agent.exit(slot, 1)
    await until(lambda: cluster.parts.loop.trouble)
    assert (await cluster.job())["reason"] == f"{before.rstrip('.')}; the disk is full"
    cluster.store.failing = None
    await until(lambda: not agent.unacknowledged)
    assert "disk" not in (await cluster.job())["reason"]


async def test_a_run_that_wants_machines_says_that_the_engine_can_not_be_asked(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails() -> tuple[Machine, ...]:
        raise Unavailable("Nomad can't list nodes")

    planner = cluster.parts.loop._planner
    with monkeypatch.context() as patch:
        patch.setattr(planner, "_engine", SimpleNamespace(machines=fails))
        await submit(cluster, machines=1)
        await until(lambda: planner.trouble)
        job = await cluster.job()
        assert (job["phase"], job["reason"]) == ("Pending", "Looking for machines; Nomad can't list nodes")
    await cluster.until_phase("running")
    assert "Nomad" not in (await cluster.job())["reason"]


async def test_leases_are_answered_while_nothing_can_be_recorded(cluster: FakeCluster) -> None:
    agent = cluster.agents["m1"]
    cluster.store.failing = "the disk is full"
    await agent.lease(1)
    await until(lambda: 1 in agent.leased)


async def test_every_directive_carries_a_term_higher_than_the_last_coordinators(cluster: FakeCluster) -> None:
    await run_of_four(cluster)
    agent, slot = cluster.slot("llama-1")
    first = agent.held[slot].term
    await cluster.restart()
    await cluster.connected()
    await agent.exit(slot, 1)
    await until(lambda: agent.held[slot].term > first)


async def test_events_are_numbered_without_gaps_over_restarts(cluster: FakeCluster) -> None:
    await run_of_four(cluster)
    await cluster.restart()
    await cluster.connected()
    await complete(cluster)
    _, events = await cluster.request("GET", "jobs/llama/events")
    ids = [item["id"] for item in events["items"]]
    assert ids == list(range(1, len(ids) + 1))
    assert [item["sentence"] for item in events["items"]].count("Submitted") == 1


async def test_ended_runs_beyond_those_that_are_kept_are_forgotten(tmp_path: Path) -> None:
    async with FakeCluster(tmp_path, machines=1, runs_kept=2) as cluster:
        await cluster.connected()
        for name in ("a", "b", "c"):
            await submit(cluster, name, machines=1)
            await cluster.until_phase("running", name)
            cluster.clock.advance(1)
            await complete(cluster, 1, name)
        assert [run.state.name for run in cluster.parts.loop.ledger.all()] == ["b", "c"]
        await cluster.restart()
        assert [run.state.name for run in cluster.parts.loop.ledger.all()] == ["b", "c"]


# Killed at every commit ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("on_nomad", [None, NEWEST], ids=["embedded", "nomad"])
@pytest.mark.parametrize("durable", [True, False], ids=["right after it", "right before it"])
async def test_killed_at_any_commit_nothing_is_lost_and_nothing_starts_twice(
    tmp_path: Path, durable: bool, on_nomad: str | None
) -> None:
    """The whole life of a gang, with a restart in place, once for each commit at which the coordinator may die."""
    number, survived = 0, False
    while not survived:
        number += 1
        folder = tmp_path / str(number)
        folder.mkdir()
        async with FakeCluster(folder, machines=4, on_nomad=on_nomad, disconnect_limit_s=100_000.0) as cluster:
            await cluster.connected()
            cluster.kill_at_commit(number, durable=durable)
            await live_and_complete(cluster)
            survived = cluster.store.terms == 1 and not cluster.is_dead()
            assert cluster.wrong() == [], f"killed at commit {number}"
            assert cluster.run().state.attempt == 1, f"killed at commit {number}"
    assert number > 12, "the script has more commits than that"


async def live_and_complete(cluster: FakeCluster) -> None:
    """Like a user who does not give up and a world that goes on: act on what is seen, start what was killed."""
    async with asyncio.timeout(60):
        while cluster.is_dead() or cluster.phase() != "Completed" or not all_given_back(cluster):
            if cluster.is_dead():
                await cluster.start()
            if cluster.phase() == "none":
                await submit_or_die(cluster)
            running = attempts_running(cluster)
            if running == [0, 0, 0, 0]:
                agent, slot = cluster.slot("llama-1")
                await agent.exit(slot, 1)
            elif running == [1, 1, 1, 1]:
                for agent in cluster.agents.values():
                    for slot, _ in agent.running():
                        await agent.exit(slot, 0)
            cluster.clock.advance(1.0)
            await asyncio.sleep(0.005)


async def submit_or_die(cluster: FakeCluster) -> None:
    try:
        status, answer = await cluster.request("POST", "jobs", json=document(machines=4))
    except aiohttp.ClientError:
        await until(cluster.is_dead)
        return
    assert status == 201, answer
