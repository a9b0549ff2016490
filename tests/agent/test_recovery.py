"""An agent that dies at any point and comes back: nothing is lost, nothing starts twice."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from astra_agent.errors import HostFault
from astra_agent.lease import Lease
from astra_agent.wire import Refused
from tests.agent.machine import SLOT, Machine, a_machine, arm, finish, request, start, stop, until


@pytest.fixture
async def machine(tmp_path: Path) -> AsyncIterator[Machine]:
    async with a_machine(tmp_path) as made:
        yield made


async def test_a_slot_that_was_preparing_is_prepared(machine: Machine) -> None:
    machine.images.hold()
    machine.agent.put_slot(request())
    await machine.restart()
    machine.images.release()
    await until(lambda: machine.status().phase == "ready")


async def test_a_ready_slot_keeps_its_address_and_port(machine: Machine) -> None:
    before = await machine.ready()
    await machine.restart()
    after = machine.status()
    assert (after.phase, after.address, after.port) == ("ready", before.address, before.port)
    assert after.rev > before.rev


async def test_a_port_stays_held_across_a_restart(machine: Machine) -> None:
    before = await machine.ready()
    await machine.restart()
    assert (await machine.ready(request("other"))).port != before.port


async def test_an_armed_attempt_still_waits(machine: Machine) -> None:
    await machine.ready()
    await machine.armed()
    await machine.restart()
    assert machine.attempt().state == "armed"
    machine.agent.obey(start())
    await until(lambda: machine.attempt().state == "running")
    assert machine.containers.starts == {f"{SLOT}-a0": 1}
    assert len(machine.containers.plans) == 1


async def test_an_attempt_is_armed_when_the_agent_died_before_its_container_was_made(machine: Machine) -> None:
    await machine.ready()
    machine.containers.hold_creates()
    machine.agent.obey(arm())
    await machine.restart()
    machine.containers.release_creates()
    await until(lambda: machine.attempt().state == "armed")
    assert len(machine.containers.plans) == 1


async def test_an_armed_container_that_is_gone_is_made_again_since_it_never_started(machine: Machine) -> None:
    await machine.ready()
    await machine.armed()
    await machine.crash()
    machine.containers.lose(f"{SLOT}-a0")
    machine.start()
    machine.agent.obey(start())
    await until(lambda: machine.attempt().state == "running")
    assert machine.containers.starts == {f"{SLOT}-a0": 1}


async def test_a_running_attempt_runs_on_and_its_code_arrives(machine: Machine) -> None:
    await machine.ready()
    container = await machine.running()
    await machine.restart()
    assert machine.attempt().state == "running"
    machine.containers.exit(container, 7)
    assert (await machine.exited()).code == 7


async def test_a_code_that_fell_while_the_agent_was_dead_is_told(machine: Machine) -> None:
    await machine.ready()
    container = await machine.running()
    await machine.crash()
    machine.containers.exit(container, 7)
    machine.start()
    assert (await machine.exited()).code == 7


async def test_a_started_container_that_is_gone_has_ended_with_unknown_code(machine: Machine) -> None:
    await machine.ready()
    container = await machine.running()
    await machine.crash()
    machine.containers.lose(container)
    machine.start()
    seen = await machine.exited()
    assert (seen.code, seen.code_unknown) == (None, True)
    assert machine.containers.starts == {container: 1}


async def test_a_start_that_was_told_and_not_done_is_done_once(machine: Machine) -> None:
    await machine.ready()
    await machine.armed()
    machine.agent.obey(start())
    await machine.restart()
    await until(lambda: machine.attempt().state == "running")
    machine.agent.obey(start())
    assert machine.containers.starts == {f"{SLOT}-a0": 1}


async def test_a_stop_goes_on(machine: Machine) -> None:
    await machine.ready(request(command=("sh", "-c", "trap '' TERM; sleep 1000")))
    await machine.running()
    machine.agent.obey(stop(grace_s=0.2))
    await until(lambda: machine.attempt().state == "stopping")
    await machine.restart()
    assert (await machine.exited()).code == 137


async def test_an_exit_that_was_told_before_is_told_again(machine: Machine) -> None:
    await machine.ready()
    machine.containers.exit(await machine.running(), 1)
    await machine.exited()
    await machine.restart()
    report = await machine.agent.outbox.next()
    assert (report.status.slot, report.status.attempts[0].state) == (SLOT, "exited")
    machine.agent.acknowledged(report.seq)
    await until(lambda: not machine.containers.names())


async def test_an_attempt_that_failed_to_arm_stays_failed(machine: Machine) -> None:
    await machine.ready()
    machine.containers.fail_next_create(HostFault("no space left"))
    machine.agent.obey(arm())
    await until(lambda: machine.status().arm_failed == 0)
    await machine.restart()
    assert (machine.status().arm_failed, machine.status().detail) == (0, "no space left")
    machine.agent.obey(stop())
    await machine.exited()
    assert not machine.containers.plans


async def test_fences_are_remembered(machine: Machine) -> None:
    await machine.ready()
    await machine.armed(3, term=5)
    machine.agent.obey(stop(4, term=5))
    await machine.restart()
    assert isinstance(machine.agent.obey(arm(9, term=4)), Refused)
    assert isinstance(machine.agent.obey(arm(4, term=5)), Refused)
    assert isinstance(machine.agent.obey(start(3, term=4)), Refused)


async def test_finishing_goes_on(machine: Machine) -> None:
    await machine.ready(request(stop_grace_s=0))
    container = await machine.running()
    machine.containers.stick(container)
    machine.agent.obey(finish(code=4))
    await machine.restart()
    machine.containers.unstick(container)
    ending = await machine.agent.wait(SLOT, 10)
    assert ending is not None and ending.code == 4
    assert machine.containers.names() == ()


async def test_containers_without_a_record_go_and_nobody_elses(machine: Machine, tmp_path: Path) -> None:
    await machine.ready()
    await machine.running()
    await machine.crash()
    (tmp_path / "state" / "records" / f"{SLOT}.json").unlink()
    machine.start()
    await until(lambda: not machine.containers.names())


async def test_a_record_that_can_not_be_read_protects_its_container_and_is_said(
    machine: Machine, tmp_path: Path
) -> None:
    await machine.ready()
    container = await machine.running()
    await machine.crash()
    (tmp_path / "state" / "records" / f"{SLOT}.json").write_text("{")
    machine.start()
    assert f"the record of slot {SLOT} can't be read" in str(machine.agent.facts().out_of_use)
    await machine.ready(request("other"))
    assert container in machine.containers.names()


async def test_a_record_that_a_crash_of_the_machine_has_torn_holds_nobody_up(machine: Machine, tmp_path: Path) -> None:
    await machine.ready()
    await machine.running()
    await machine.crash()
    (tmp_path / "state" / "records" / f"{SLOT}.json").write_text("")
    machine.boot()
    machine.start()
    assert machine.agent.slots() == ()
    assert machine.agent.facts().out_of_use is None
    await machine.ready(request("other"))


async def test_slots_of_an_earlier_boot_are_gone(machine: Machine) -> None:
    await machine.ready()
    await machine.running()
    await machine.crash()
    machine.boot()
    machine.start()
    assert machine.agent.slots() == ()
    await until(lambda: machine.agent.hello().boot == "boot-2")
    ending = None
    while ending is None:
        ending = await machine.agent.wait(SLOT, 0.1)
    assert ending.reason == "The machine was booted"


async def test_the_runtime_may_be_away_when_the_agent_comes_back(machine: Machine) -> None:
    await machine.ready()
    container = await machine.running()
    await machine.crash()
    machine.containers.go_down()
    machine.start()
    assert machine.attempt().state == "running"
    machine.containers.exit(container, 2)
    machine.containers.come_back()
    assert (await machine.exited()).code == 2


async def test_a_disk_that_can_not_be_written_delays_what_is_told_and_loses_nothing(
    machine: Machine, tmp_path: Path
) -> None:
    await machine.ready()
    container = await machine.running()
    records = tmp_path / "state" / "records"
    records.rename(tmp_path / "away")
    assert isinstance(machine.agent.obey(arm(1)), Refused)
    machine.containers.exit(container, 3)
    await until(lambda: "can't be written" in str(machine.agent.facts().out_of_use))
    assert machine.attempt().state == "running"
    (tmp_path / "away").rename(records)
    assert (await machine.exited()).code == 3
    assert machine.agent.facts().out_of_use is None


async def test_a_disk_that_can_not_be_written_keeps_no_worker_alive_past_the_lease(
    machine: Machine, tmp_path: Path
) -> None:
    await machine.ready()
    container = await machine.running()
    (tmp_path / "state" / "records").rename(tmp_path / "away")
    machine.agent.lease_over(Lease("boot-1", 0.0, 60.0))
    await until(lambda: machine.containers.kills[container])
    (tmp_path / "away").rename(tmp_path / "state" / "records")
    assert (await machine.exited()).detail == "No answer from the coordinator for 60 s"
