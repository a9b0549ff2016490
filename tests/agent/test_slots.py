"""Slots and attempts on a runtime in memory: what directives do, what is refused, what is told."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from astra_agent.errors import Conflict, HostFault, InvalidRequest, Unavailable
from astra_agent.records import Ending
from astra_agent.runtime import ImageConfig
from astra_agent.wire import DriveMount, GpuFacts, Refused, SlotGone, Tell
from tests.agent.machine import SLOT, Machine, a_machine, arm, finish, request, start, stop, until


@pytest.fixture
async def machine(tmp_path: Path) -> AsyncIterator[Machine]:
    (tmp_path / "data").mkdir()
    async with a_machine(tmp_path, drives={"datasets": tmp_path / "data"}) as made:
        yield made


# Preparing ---------------------------------------------------------------------------------------------------------


async def test_a_slot_becomes_ready_with_the_machines_address_and_a_port_of_its_own(machine: Machine) -> None:
    status = await machine.ready()
    assert (status.phase, status.address) == ("ready", "10.83.0.3")
    assert status.port is not None and status.port >= 29500


async def test_two_slots_on_one_machine_have_different_ports(machine: Machine) -> None:
    first = await machine.ready(request("one"))
    second = await machine.ready(request("two"))
    assert first.port != second.port


async def test_progress_of_a_pull_is_the_slots_detail(machine: Machine) -> None:
    machine.images.hold()
    machine.agent.put_slot(request())
    await until(lambda: machine.status().detail == "Pulling host: 43 %")
    machine.images.release()


async def test_the_newest_progress_is_told_though_it_came_right_after_other(machine: Machine) -> None:
    machine.images.hold()
    machine.images.says = ["Pulling host", "Pulling host: 0 % of 2.1 MB (0 B)"]
    with machine.agent.watch() as watch:
        machine.agent.put_slot(request())
        told: list[str] = []

        def hears_the_last() -> bool:
            told.extend(status.detail for status in watch.take())
            return told[-1:] == machine.images.says[-1:]

        await until(hears_the_last)
    machine.images.release()


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"image": "nosuch:1"}, 'there is no image "nosuch:1"'),
        ({"command": ("/no/such",)}, 'command "/no/such" is not in image "host"'),
        ({"user": "nobody-here"}, 'user "nobody-here" is not in image "host"'),
        ({"drives": (DriveMount(name="scratch", mount_path="/s"),)}, 'drive "scratch" is not on this machine'),
        ({"command": ()}, "has no command of its own"),
    ],
)
async def test_what_the_user_got_wrong_fails_the_slot_as_the_users_fault(
    machine: Machine, changes: dict[str, Any], says: str
) -> None:
    status = await machine.ready(request(**changes))
    assert (status.phase, status.fault) == ("failed", "user")
    assert says in status.detail


async def test_what_the_machine_lacks_fails_the_slot_as_the_machines_fault(machine: Machine) -> None:
    machine.images.errors.append(HostFault("the disk is full"))
    status = await machine.ready()
    assert (status.phase, status.fault, status.detail) == ("failed", "machine", "the disk is full")


async def test_a_drive_that_is_not_mounted_is_the_machines_fault(machine: Machine, tmp_path: Path) -> None:
    (tmp_path / "data").rmdir()
    status = await machine.ready(request(drives=(DriveMount(name="datasets", mount_path="/data"),)))
    assert (status.phase, status.fault) == ("failed", "machine")


async def test_a_registry_that_does_not_answer_is_asked_again_and_said(machine: Machine) -> None:
    machine.images.errors.append(Unavailable("registry hub.test does not answer"))
    machine.agent.put_slot(request())
    await until(lambda: "registry hub.test does not answer; asking again" in machine.status().detail)
    await until(lambda: machine.status().phase == "ready")


async def test_a_registry_that_never_answers_fails_the_slot(tmp_path: Path) -> None:
    async with a_machine(tmp_path, registry_patience_s=0.0) as machine:
        machine.images.errors.append(Unavailable("registry hub.test does not answer"))
        status = await machine.ready()
        assert (status.phase, status.fault) == ("failed", "machine")
        assert status.detail == "registry hub.test does not answer"


# Asking for slots --------------------------------------------------------------------------------------------------


async def test_the_same_request_twice_is_one_slot(machine: Machine) -> None:
    assert machine.agent.put_slot(request())[1]
    assert not machine.agent.put_slot(request())[1]


async def test_another_request_under_the_same_id_is_refused(machine: Machine) -> None:
    machine.agent.put_slot(request())
    with pytest.raises(Conflict, match="another request"):
        machine.agent.put_slot(request(command=("other",)))


async def test_an_ended_slot_can_not_be_had_again(machine: Machine) -> None:
    await machine.ready()
    assert machine.agent.obey(finish()) is None
    await until(lambda: not machine.agent.slots())
    with pytest.raises(Conflict, match="has ended"):
        machine.agent.put_slot(request())


async def test_a_slot_that_was_given_back_before_it_was_asked_for_never_comes_to_life(machine: Machine) -> None:
    machine.agent.finish(SLOT, Ending(code=1, reason="given back"))
    with pytest.raises(Conflict, match="has ended"):
        machine.agent.put_slot(request())


async def test_a_gpu_belongs_to_one_slot_until_that_has_ended(tmp_path: Path) -> None:
    (tmp_path / "facts.json").write_text('{"gpus": [{"index": 0, "uuid": "GPU-0"}]}')
    async with a_machine(tmp_path, facts_file=tmp_path / "facts.json") as machine:
        assert machine.agent.facts().gpus == (GpuFacts(index=0, uuid="GPU-0", model="simulated"),)
        await machine.ready(request("one", gpus=(0,)))
        with pytest.raises(Conflict, match="GPU 0 is held by slot one"):
            machine.agent.put_slot(request("two", gpus=(0,)))
        with pytest.raises(InvalidRequest, match="GPU 7 is not on gpu-1"):
            machine.agent.put_slot(request("two", gpus=(7,)))
        machine.agent.obey(finish(slot="one"))
        await until(lambda: not machine.agent.slots())
        machine.agent.put_slot(request("two", gpus=(0,)))


# An attempt's life -------------------------------------------------------------------------------------------------


async def test_an_armed_attempt_waits_for_its_start(machine: Machine) -> None:
    await machine.ready()
    await machine.armed()
    assert machine.containers.starts[f"{SLOT}-a0"] == 0
    machine.agent.obey(start())
    await until(lambda: machine.attempt().state == "running")
    assert machine.containers.starts[f"{SLOT}-a0"] == 1


async def test_a_start_that_comes_while_arming_is_kept(machine: Machine) -> None:
    await machine.ready()
    machine.containers.hold_creates()
    machine.agent.obey(arm())
    machine.agent.obey(start())
    machine.containers.release_creates()
    await until(lambda: machine.attempt().state == "running")


async def test_the_users_own_variables_win_over_all_others(machine: Machine) -> None:
    machine.images.images["app"] = ImageConfig(env={"PATH": "/app", "RANK": "image", "LANG": "C"})
    await machine.ready(request(image="app", env={"RANK": "mine"}))
    await machine.armed()
    env = machine.containers.plan(f"{SLOT}-a0").env
    assert env["RANK"] == "mine"
    assert (env["LANG"], env["PATH"], env["HOSTNAME"]) == ("C", "/app", "llama-1")


async def test_a_worker_finds_itself_under_the_address_that_its_peers_use(machine: Machine) -> None:
    await machine.ready()
    await machine.armed()
    plan = machine.containers.plan(f"{SLOT}-a0")
    source = next(mount.source for mount in plan.mounts if mount.target == "/etc/hosts")
    lines = Path(source).read_text().splitlines()
    assert [line for line in lines if line.split()[1:] == ["llama-1"]] == ["10.83.0.3 llama-1"]
    assert "10.83.0.2 llama-0" in lines
    assert plan.hostname == "llama-1"


@pytest.mark.parametrize(
    ("code", "oom", "detail"),
    [(0, False, ""), (3, False, ""), (137, False, "Killed by signal 9"), (137, True, "Out of memory (limit 2 GiB)")],
)
async def test_an_exit_is_told_with_what_its_code_does_not_say(
    machine: Machine, code: int, oom: bool, detail: str
) -> None:
    await machine.ready(request(memory_bytes=2 * 1024**3))
    machine.containers.exit(await machine.running(), code, oom=oom)
    seen = await machine.exited()
    assert (seen.code, seen.oom, seen.detail, seen.code_unknown) == (code, oom, detail, False)


async def test_no_process_is_left_when_an_exit_is_told(machine: Machine) -> None:
    await machine.ready()
    container = await machine.running()
    machine.containers.leave(container)
    machine.containers.exit(container, 0)
    seen = await machine.exited()
    assert seen.code == 0
    assert await machine.containers.processes(container) == ()


async def test_a_container_that_the_runtime_has_lost_ended_with_unknown_code(machine: Machine) -> None:
    await machine.ready()
    machine.containers.lose(await machine.running())
    seen = await machine.exited()
    assert (seen.code, seen.code_unknown) == (None, True)


async def test_a_container_stays_until_its_exit_is_acknowledged(machine: Machine) -> None:
    await machine.ready()
    container = await machine.running()
    machine.containers.exit(container, 1)
    await machine.exited()
    assert (await machine.containers.status(container)).state == "stopped"
    await machine.acknowledge_all()
    await until(lambda: machine.agent.slot(SLOT).record.attempts[0].removed)
    assert (await machine.containers.status(container)).state == "absent"


async def test_the_next_attempt_is_armed_while_the_old_one_runs(machine: Machine) -> None:
    await machine.ready()
    await machine.running(0)
    await machine.armed(1)
    assert machine.attempt(0).state == "running"
    machine.agent.obey(stop(0))
    await machine.exited(0)
    machine.agent.obey(start(1))
    await until(lambda: machine.attempt(1).state == "running")


async def test_what_can_not_be_created_is_told_as_not_armed(machine: Machine) -> None:
    await machine.ready()
    machine.containers.fail_next_create(InvalidRequest("working_dir /nowhere is not there"))
    machine.agent.obey(arm())
    await until(lambda: machine.status().arm_failed == 0)
    status = machine.status()
    assert (status.fault, status.detail) == ("user", "working_dir /nowhere is not there")
    assert machine.attempt(0).state == "arming"
    machine.agent.obey(stop(0))
    await machine.exited(0)
    await machine.armed(1)
    assert (machine.status().fault, machine.status().detail) == (None, "")


async def test_what_can_not_be_started_is_told_and_taken_away(machine: Machine) -> None:
    await machine.ready()
    await machine.armed()
    machine.containers.fail_next_start(HostFault("cannot start a stopped process"))
    machine.agent.obey(start())
    await until(lambda: machine.status().arm_failed == 0)
    assert (machine.status().fault, machine.attempt().state) == ("machine", "armed")
    await until(lambda: not machine.containers.names())


async def test_a_container_that_dies_while_it_waits_is_told_as_not_armed(machine: Machine) -> None:
    await machine.ready()
    await machine.armed()
    machine.containers.exit(f"{SLOT}-a0", 137)
    await until(lambda: machine.status().arm_failed == 0)
    assert machine.status().fault == "machine"


# Stopping ----------------------------------------------------------------------------------------------------------


async def test_a_stop_asks_first(machine: Machine) -> None:
    await machine.ready()
    container = await machine.running()
    machine.agent.obey(stop())
    seen = await machine.exited()
    assert seen.code == 143
    assert machine.containers.kills[container] == 0


async def test_a_stop_kills_what_does_not_end_in_its_grace_time(machine: Machine) -> None:
    await machine.ready(request(command=("sh", "-c", "trap '' TERM; sleep 1000")))
    container = await machine.running()
    machine.agent.obey(stop(grace_s=0.1))
    seen = await machine.exited()
    assert (seen.code, seen.detail) == (137, "Killed: it did not end within 0.1 s of SIGTERM")
    assert machine.containers.terms[container] == 1


async def test_a_second_stop_may_be_sooner_and_never_later(machine: Machine) -> None:
    await machine.ready(request(command=("sh", "-c", "trap '' TERM; sleep 1000")))
    await machine.running()
    machine.agent.obey(stop(grace_s=1000))
    await until(lambda: machine.attempt().state == "stopping")
    machine.agent.obey(stop(grace_s=2000))
    machine.agent.obey(stop(grace_s=0))
    assert (await machine.exited()).code == 137


async def test_a_stop_while_arming_leaves_nothing(machine: Machine) -> None:
    await machine.ready()
    machine.containers.hold_creates()
    machine.agent.obey(arm())
    machine.agent.obey(stop())
    machine.containers.release_creates()
    seen = await machine.exited()
    assert (seen.code, seen.code_unknown, seen.detail) == (None, False, "Stopped before it was started")
    await machine.acknowledge_all()
    await until(lambda: not machine.containers.names())


async def test_a_process_that_does_not_die_puts_the_machine_out_of_use_until_it_does(machine: Machine) -> None:
    await machine.ready()
    container = await machine.running()
    pid = (await machine.containers.processes(container))[0]
    machine.containers.stick(container)
    machine.agent.obey(stop(grace_s=0))
    await until(lambda: machine.status().stuck)
    assert machine.status().stuck == f"process {pid} of llama-1 does not die"
    assert machine.agent.facts().out_of_use == machine.status().stuck
    assert machine.attempt().state == "stopping"
    with pytest.raises(HostFault, match="takes no new slots: process"):
        machine.agent.put_slot(request("other"))
    machine.containers.unstick(container)
    await machine.exited()
    assert (machine.status().stuck, machine.agent.facts().out_of_use) == (None, None)


async def test_a_finished_slot_holds_its_place_while_a_process_does_not_die(machine: Machine) -> None:
    await machine.ready(request(stop_grace_s=0))
    container = await machine.running()
    machine.containers.stick(container)
    machine.agent.finish(SLOT, Ending(code=1, reason="given back"))
    await until(lambda: machine.status().stuck)
    assert machine.status().phase == "finished"
    machine.containers.unstick(container)
    await until(lambda: not machine.agent.slots())
    assert machine.containers.names() == ()


# Fences ------------------------------------------------------------------------------------------------------------


async def test_an_unknown_slot_is_told_as_gone(machine: Machine) -> None:
    assert machine.agent.obey(arm(slot="nobody")) == SlotGone(slot="nobody")
    assert machine.agent.obey(Tell(slot="nobody", term=1, sentence="Gang restart: llama-1 failed.")) is None


async def test_an_older_term_is_refused(machine: Machine) -> None:
    await machine.ready()
    await machine.armed(term=3)
    for directive in (arm(1, term=2), start(term=2), stop(term=2), finish(term=2)):
        assert isinstance(machine.agent.obey(directive), Refused)
    assert machine.attempt().state == "armed"


async def test_a_term_holds_for_all_slots_of_the_machine(machine: Machine) -> None:
    await machine.ready()
    await machine.ready(request("other"))
    await machine.armed(term=3)
    assert isinstance(machine.agent.obey(arm(term=2, slot="other")), Refused)


async def test_an_older_attempt_is_refused(machine: Machine) -> None:
    await machine.ready()
    await machine.armed(4)
    for directive in (arm(3), start(3)):
        assert isinstance(machine.agent.obey(directive), Refused)


async def test_an_attempt_that_was_stopped_before_it_was_armed_is_never_armed(machine: Machine) -> None:
    await machine.ready()
    assert machine.agent.obey(stop(2)) is None
    for number in (1, 2):
        assert isinstance(machine.agent.obey(arm(number)), Refused)
    await machine.armed(3)


async def test_directives_may_come_twice(machine: Machine) -> None:
    await machine.ready()
    for directive in (arm(), arm(), start(), start()):
        assert machine.agent.obey(directive) is None
    await until(lambda: machine.attempt().state == "running")
    for directive in (arm(), start()):
        assert machine.agent.obey(directive) is None
    assert machine.containers.starts == {f"{SLOT}-a0": 1}
    assert len(machine.containers.plans) == 1
    for late in (stop(), stop(), start(), arm()):
        machine.agent.obey(late)
    await machine.exited()
    assert machine.containers.starts == {f"{SLOT}-a0": 1}


async def test_a_start_of_an_attempt_that_is_not_armed_here_is_refused(machine: Machine) -> None:
    await machine.ready()
    assert isinstance(machine.agent.obey(start(0)), Refused)


async def test_a_start_after_a_stop_does_nothing(machine: Machine) -> None:
    await machine.ready()
    await machine.armed()
    machine.agent.obey(stop())
    machine.agent.obey(start())
    await machine.exited()
    assert not machine.containers.starts


# The end -----------------------------------------------------------------------------------------------------------


async def test_a_finished_slot_leaves_its_log_and_its_tombstone_only(machine: Machine, tmp_path: Path) -> None:
    await machine.ready()
    container = await machine.running()
    machine.containers.write(container, b"step 1\n")
    machine.agent.obey(finish(code=3, reason="Gang failed"))
    ending = await machine.agent.wait(SLOT, 10)
    assert ending is not None and (ending.code, ending.reason) == (3, "Gang failed")
    assert machine.containers.names() == ()
    assert machine.containers.terms[container] == 1
    await until(lambda: not machine.agent.slots())
    assert machine.agent.logs.path(SLOT, 0).read_bytes() == b"step 1\n"
    assert not list((tmp_path / "state" / "slots").iterdir())


async def test_waiting_for_a_slot_has_a_bound(machine: Machine) -> None:
    await machine.ready()
    assert await machine.agent.wait(SLOT, 0.01) is None


async def test_a_slot_may_be_finished_while_it_prepares(machine: Machine) -> None:
    machine.images.hold()
    machine.agent.put_slot(request())
    machine.agent.obey(finish())
    await until(lambda: not machine.agent.slots())


async def test_only_the_newest_ended_attempts_are_remembered(machine: Machine) -> None:
    await machine.ready()
    for number in range(12):
        machine.containers.exit(await machine.running(number), 1)
        await machine.exited(number)
        await machine.acknowledge_all()
        await until(lambda number=number: machine.agent.slot(SLOT).record.attempts[-1].removed)  # type: ignore[misc]
    assert [seen.attempt for seen in machine.status().attempts] == list(range(4, 12))


# The runtime away --------------------------------------------------------------------------------------------------


async def test_everything_waits_for_a_runtime_that_is_away_and_goes_on(machine: Machine) -> None:
    await machine.ready()
    machine.containers.go_down()
    machine.agent.obey(arm())
    await until(lambda: "containerd on gpu-1 does not answer since" in machine.attempt().detail)
    assert "does not answer" in str(machine.agent.facts().out_of_use)
    machine.containers.come_back()
    await until(lambda: machine.attempt().state == "armed")
    assert machine.agent.facts().out_of_use is None


async def test_a_stop_meanwhile_does_not_hide_that_the_runtime_is_away(machine: Machine) -> None:
    await machine.ready()
    container = await machine.running()
    machine.containers.go_down()
    machine.agent.obey(arm(1))
    machine.agent.obey(stop(0))
    await until(lambda: "containerd on gpu-1 does not answer since" in machine.status().detail)
    assert machine.containers.terms[container] == 1
    machine.containers.come_back()
    await machine.exited()
    await until(lambda: machine.attempt(1).state == "armed")


async def test_an_exit_while_the_runtime_is_away_is_told_when_it_is_back(machine: Machine) -> None:
    await machine.ready()
    container = await machine.running()
    machine.containers.go_down()
    machine.containers.exit(container, 5)
    machine.containers.come_back()
    assert (await machine.exited()).code == 5


async def test_revisions_of_a_slot_only_grow(machine: Machine) -> None:
    await machine.ready()
    before = machine.status().rev
    await machine.running()
    assert machine.status().rev > before
