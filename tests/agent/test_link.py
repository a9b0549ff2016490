"""The link to the coordinator, on real WebSockets: hello, reports, directives, leases, reconnects."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from astra_agent.lease import LeaseKeeper, now
from astra_agent.wire import PROTOCOL, FactsChanged, Hello, Refused, Report, SlotGone, SlotStatus
from tests.agent.daemon import Daemon, a_daemon
from tests.agent.machine import SLOT, arm, request, start, stop, until
from tests.fakes.coordinator import FakeCoordinator, a_coordinator


@pytest.fixture
async def coordinator() -> AsyncIterator[FakeCoordinator]:
    async with a_coordinator() as made:
        yield made


@pytest.fixture
async def daemon(tmp_path: Path, coordinator: FakeCoordinator) -> AsyncIterator[Daemon]:
    async with a_daemon(tmp_path, coordinator=coordinator.url) as made:
        await until(lambda: coordinator.connected and coordinator.hellos)
        yield made


def state(coordinator: FakeCoordinator, attempt: int = 0) -> str | None:
    seen = coordinator.slots.get(SLOT)
    return next((one.state for one in seen.attempts if one.attempt == attempt), None) if seen else None


async def running(daemon: Daemon, coordinator: FakeCoordinator) -> str:
    await daemon.ready()
    await coordinator.tell(arm())
    await until(lambda: state(coordinator) == "armed")
    await coordinator.tell(start())
    await until(lambda: state(coordinator) == "running")
    return f"{SLOT}-a0"


async def test_a_slot_is_told_from_ready_to_exited(daemon: Daemon, coordinator: FakeCoordinator) -> None:
    container = await running(daemon, coordinator)
    daemon.containers.exit(container, 3)
    await until(lambda: state(coordinator) == "exited")
    assert coordinator.slots[SLOT].attempts[0].code == 3
    await until(lambda: not daemon.containers.names())


async def test_the_hello_comes_first_and_carries_everything(daemon: Daemon, coordinator: FakeCoordinator) -> None:
    await running(daemon, coordinator)
    await coordinator.drop_link()
    await until(lambda: len(coordinator.hellos) == 2)
    assert isinstance(coordinator.messages[0], Hello)
    hello = coordinator.hellos[-1]
    assert (hello.facts.name, hello.slots[0].attempts[0].state) == ("gpu-1", "running")


async def test_reports_that_were_not_acknowledged_come_again(daemon: Daemon, coordinator: FakeCoordinator) -> None:
    coordinator.acknowledges = False
    container = await running(daemon, coordinator)
    daemon.containers.exit(container, 3)
    await until(lambda: state(coordinator) == "exited")
    assert daemon.containers.names() == (container,)
    before = len(coordinator.messages)
    coordinator.acknowledges = True
    await coordinator.drop_link()
    await until(lambda: any(isinstance(message, Report) for message in coordinator.messages[before:]))
    await until(lambda: not daemon.containers.names())


async def test_what_happens_while_the_coordinator_is_away_is_told_afterwards(
    daemon: Daemon, coordinator: FakeCoordinator
) -> None:
    container = await running(daemon, coordinator)
    await coordinator.stop()
    daemon.containers.exit(container, 3)
    await coordinator.start()
    await until(lambda: state(coordinator) == "exited")


async def test_an_agent_that_died_says_in_its_hello_what_it_knew(daemon: Daemon, coordinator: FakeCoordinator) -> None:
    await running(daemon, coordinator)
    before = coordinator.slots[SLOT].rev
    await daemon.crash()
    await daemon.start()
    await until(lambda: len(coordinator.hellos) == 2)
    assert coordinator.hellos[-1].slots[0].attempts[0].state == "running"
    assert coordinator.hellos[-1].slots[0].rev > before


async def test_unknown_slots_and_stale_directives_are_answered(daemon: Daemon, coordinator: FakeCoordinator) -> None:
    await daemon.ready()
    await coordinator.tell(arm(slot="nobody"))
    await coordinator.tell(start())
    await until(lambda: coordinator.said(SlotGone) and coordinator.said(Refused))
    assert coordinator.said(SlotGone)[0].slot == "nobody"


async def test_a_coordinator_of_an_older_term_is_not_obeyed(tmp_path: Path, coordinator: FakeCoordinator) -> None:
    coordinator.term = 4
    async with a_daemon(tmp_path, coordinator=coordinator.url) as daemon:
        await daemon.ready()
        await until(lambda: SLOT in coordinator.slots)
        coordinator.term = 3
        await coordinator.drop_link()
        await until(lambda: len(coordinator.hellos) >= 4)
        coordinator.term = 5
        tried = len(coordinator.hellos)
        await until(lambda: len(coordinator.hellos) > tried)
        await coordinator.tell(arm(term=5))
        await until(lambda: state(coordinator) == "armed")


async def test_a_process_that_does_not_die_is_told_as_a_fact_of_the_machine(
    tmp_path: Path, coordinator: FakeCoordinator
) -> None:
    async with a_daemon(tmp_path, coordinator=coordinator.url, stuck_after_s=0.05) as daemon:
        await until(lambda: coordinator.connected)
        container = await running(daemon, coordinator)
        daemon.containers.stick(container)
        await coordinator.tell(stop(grace_s=0))
        await until(lambda: coordinator.said(FactsChanged))
        assert "does not die" in str(coordinator.said(FactsChanged)[-1].facts.out_of_use)
        daemon.containers.unstick(container)
        await until(lambda: coordinator.said(FactsChanged)[-1].facts.out_of_use is None)


async def test_leases_that_are_answered_keep_workers_running(tmp_path: Path) -> None:
    async with a_coordinator(disconnect_limit_s=0.5) as coordinator:
        async with a_daemon(tmp_path, coordinator=coordinator.url) as daemon:
            await until(lambda: coordinator.connected)
            container = await running(daemon, coordinator)
            first = len(coordinator.messages)
            await until(lambda: sum(m.kind == "lease" for m in coordinator.messages[first:]) > 8)
            assert state(coordinator) == "running"
            assert daemon.containers.kills[container] == 0


@pytest.mark.parametrize("how", ["gone", "silent"])
async def test_a_worker_that_is_cut_off_for_too_long_is_ended_by_its_agent(tmp_path: Path, how: str) -> None:
    async with a_coordinator(disconnect_limit_s=0.5) as coordinator:
        async with a_daemon(tmp_path, coordinator=coordinator.url) as daemon:
            await until(lambda: coordinator.connected)
            container = await running(daemon, coordinator)
            if how == "gone":
                await coordinator.stop()
            else:
                coordinator.answers_leases = False
                coordinator.disconnect_limit_s = 10.0
                coordinator.term = 0
            await until(lambda: daemon.containers.kills[container])
            seen = await ended(daemon)
            assert seen.attempts[0].detail == "No answer from the coordinator for 0.5 s"
            assert (seen.attempts[0].fault, seen.phase) == ("machine", "ready")
            assert daemon.containers.terms[container] == 1


async def ended(daemon: Daemon) -> SlotStatus:
    await until(lambda: not daemon.containers.alive())
    while (seen := await daemon.status()).attempts[0].state != "exited":
        pass
    return seen


async def test_an_agent_that_dies_while_it_is_cut_off_grants_itself_no_second_lease(tmp_path: Path) -> None:
    async with a_coordinator(disconnect_limit_s=0.5) as coordinator:
        async with a_daemon(tmp_path, coordinator=coordinator.url) as daemon:
            await until(lambda: coordinator.connected)
            container = await running(daemon, coordinator)
            await coordinator.stop()
            await daemon.crash()
            await until(lambda: lease_is_over(daemon))
            assert daemon.containers.kills[container] == 0
            await daemon.start()
            await ended(daemon)


def lease_is_over(daemon: Daemon) -> bool:
    boot = daemon.config.boot_id_file.read_text().strip()
    lease = LeaseKeeper(daemon.config.state_dir / "lease.json", boot).lease
    return lease is not None and lease.ends_s <= now()


async def test_a_wrong_token_keeps_the_agent_out_until_it_is_right(
    tmp_path: Path, coordinator: FakeCoordinator
) -> None:
    (tmp_path / "other").write_text("wrong")
    async with a_daemon(tmp_path, coordinator=coordinator.url, token_file=tmp_path / "other") as daemon:
        await daemon.ready(request())
        assert not coordinator.hellos
        (tmp_path / "other").write_text((tmp_path / "token").read_text())
        await until(lambda: coordinator.hellos)


@pytest.mark.parametrize("welcome", [{"protocol": PROTOCOL + 1, "hologram": True}, {"protocol": PROTOCOL - 1}])
async def test_a_coordinator_of_another_protocol_is_refused_with_both_numbers_until_it_speaks_this_one(
    tmp_path: Path, coordinator: FakeCoordinator, caplog: pytest.LogCaptureFixture, welcome: dict[str, Any]
) -> None:
    caplog.set_level(logging.INFO)
    coordinator.welcome = welcome
    async with a_daemon(tmp_path, coordinator=coordinator.url) as daemon:
        await daemon.ready()
        await until(lambda: len(coordinator.hellos) > 2)
        said = f"the coordinator speaks protocol {welcome['protocol']}, this agent {PROTOCOL}: install the same version"
        assert caplog.text.count(said) == 1
        assert "link_up" not in caplog.text
        assert coordinator.said(Hello) == coordinator.messages, "it was told more than hello"
        coordinator.welcome = {}
        await until(lambda: "link_up" in caplog.text)
        await running(daemon, coordinator)
