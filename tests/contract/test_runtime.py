"""What every container runtime must do for slots: the docstrings of `astra_agent.runtime`, sentence by sentence."""

from __future__ import annotations

import asyncio

import pytest

from astra_agent.errors import HostFault, InvalidRequest, NotFound, Unavailable
from astra_agent.runtime import ContainerStatus, ExecSession, ExitStatus
from tests.contract.conftest import RuntimeBench
from tests.fakes.eventually import until

BOUND_S = 40.0


async def ended(runtime: RuntimeBench, container: str) -> ExitStatus:
    return await asyncio.wait_for(runtime.containers.wait(container), BOUND_S)


async def said(session: ExecSession) -> bytes:
    return b"".join([piece async for _, piece in session.output()])


async def test_it_says_what_it_is(runtime: RuntimeBench) -> None:
    facts = await runtime.containers.probe()
    assert facts.version
    assert facts.cgroup_version in (1, 2)


async def test_who_asks_while_another_asks_has_an_answer_too(runtime: RuntimeBench) -> None:
    async def asked(number: int) -> str:
        await asyncio.sleep(number / 1000)
        return (await runtime.containers.probe()).version

    assert len(set(await asyncio.gather(*map(asked, range(40))))) == 1


# From created to ended ---------------------------------------------------------------------------------------------


async def test_a_created_program_waits_before_its_first_instruction(runtime: RuntimeBench) -> None:
    await runtime.containers.create(runtime.plan("s-a0", "echo hello"))
    status = await runtime.containers.status("s-a0")
    assert status.state == "created"
    assert status.pid > 0
    assert runtime.log("s-a0") == ""


async def test_a_waiting_container_is_tried_out_inside_and_starts_afterwards(runtime: RuntimeBench) -> None:
    await runtime.containers.create(runtime.plan("s-a0", "echo hello"))
    trials = ("open:1:3:/dev/null", "open:1:5:/dev/zero")
    assert await runtime.containers.try_inside("s-a0", trials) == ("ok", "ok")
    assert (await runtime.containers.status("s-a0")).state == "created"
    await runtime.containers.start("s-a0")
    assert (await ended(runtime, "s-a0")).code == 0
    assert runtime.log("s-a0") == "hello\n"


async def test_what_is_not_there_is_not_tried_out(runtime: RuntimeBench) -> None:
    with pytest.raises(NotFound):
        await runtime.containers.try_inside("s-a0", ("open:1:3:/dev/null",))


async def test_creating_a_second_time_leaves_the_container_as_it_is(runtime: RuntimeBench) -> None:
    await runtime.run("s-a0")
    before = await runtime.containers.status("s-a0")
    await runtime.containers.create(runtime.plan("s-a0"))
    assert await runtime.containers.status("s-a0") == before


async def test_a_container_with_other_labels_is_not_taken_for_the_same(runtime: RuntimeBench) -> None:
    await runtime.containers.create(runtime.plan("s-a0"))
    with pytest.raises(HostFault, match="other labels"):
        await runtime.containers.create(runtime.plan("s-a0", labels={"slot": "another"}))


async def test_a_create_goes_on_when_its_caller_is_cancelled(runtime: RuntimeBench) -> None:
    caller = asyncio.create_task(runtime.containers.create(runtime.plan("s-a0")))
    await asyncio.sleep(0.01)
    caller.cancel()
    await asyncio.gather(caller, return_exceptions=True)
    await runtime.containers.create(runtime.plan("s-a0"))
    assert (await runtime.containers.status("s-a0")).state == "created"


async def test_a_program_starts_once_however_often_it_is_started(runtime: RuntimeBench) -> None:
    await runtime.run("s-a0", "echo hello; sleep 1000")
    await runtime.containers.start("s-a0")
    await until(lambda: "hello" in runtime.log("s-a0"))
    await runtime.containers.kill("s-a0")
    await ended(runtime, "s-a0")
    await runtime.containers.start("s-a0")
    assert runtime.log("s-a0").count("hello") == 1
    assert (await runtime.containers.status("s-a0")).state == "stopped"


async def test_what_was_not_created_does_not_start(runtime: RuntimeBench) -> None:
    with pytest.raises(NotFound, match="s-a0"):
        await runtime.containers.start("s-a0")


@pytest.mark.parametrize("code", [0, 3])
async def test_the_exit_code_is_the_programs(runtime: RuntimeBench, code: int) -> None:
    await runtime.run("s-a0", f"exit {code}")
    assert await ended(runtime, "s-a0") == ExitStatus(code)
    assert await runtime.containers.status("s-a0") == ContainerStatus("stopped", ExitStatus(code))
    assert await ended(runtime, "s-a0") == ExitStatus(code), "a second wait says the same"


async def test_output_is_appended_to_the_log(runtime: RuntimeBench) -> None:
    (runtime.folder / "logs").mkdir()
    (runtime.folder / "logs" / "s-a0").write_text("before\n")
    await runtime.run("s-a0", "echo hello")
    await ended(runtime, "s-a0")
    await until(lambda: runtime.log("s-a0") == "before\nhello\n")


# Stopping ----------------------------------------------------------------------------------------------------------


async def test_a_killed_program_says_137_and_not_that_memory_ran_out(runtime: RuntimeBench) -> None:
    await runtime.run("s-a0")
    await runtime.containers.kill("s-a0")
    assert await ended(runtime, "s-a0") == ExitStatus(137, oom=False)


async def test_one_that_was_never_started_can_be_killed(runtime: RuntimeBench) -> None:
    await runtime.containers.create(runtime.plan("s-a0"))
    waiting = asyncio.create_task(runtime.containers.wait("s-a0"))
    await runtime.containers.kill("s-a0")
    assert await asyncio.wait_for(waiting, BOUND_S) == ExitStatus(137)


async def test_one_that_was_never_started_ends_when_it_is_asked_to(runtime: RuntimeBench) -> None:
    await runtime.containers.create(runtime.plan("s-a0"))
    await runtime.containers.terminate("s-a0")
    assert (await ended(runtime, "s-a0")).code in (137, 143)


async def test_a_program_without_a_handler_ends_when_it_is_asked_to(runtime: RuntimeBench) -> None:
    await runtime.run("s-a0")
    await runtime.containers.terminate("s-a0")
    assert await ended(runtime, "s-a0") == ExitStatus(143)


async def test_a_program_may_not_listen_and_is_then_killed(runtime: RuntimeBench) -> None:
    await runtime.run("s-a0", "trap '' TERM; echo deaf; sleep 1000")
    await until(lambda: "deaf" in runtime.log("s-a0"))
    await runtime.containers.terminate("s-a0")
    await asyncio.sleep(0.1)
    assert (await runtime.containers.status("s-a0")).state == "running"
    await runtime.containers.kill("s-a0")
    assert await ended(runtime, "s-a0") == ExitStatus(137)


async def test_nothing_happens_to_what_is_absent_or_stopped(runtime: RuntimeBench) -> None:
    await runtime.run("stopped-a0", "exit 3")
    await ended(runtime, "stopped-a0")
    for container in ("stopped-a0", "absent-a0"):
        await runtime.containers.terminate(container)
        await runtime.containers.kill(container)
        assert await runtime.containers.processes(container) == ()
    assert await ended(runtime, "stopped-a0") == ExitStatus(3)
    assert await ended(runtime, "absent-a0") == ExitStatus(None)
    assert await runtime.containers.status("absent-a0") == ContainerStatus("absent")


async def test_its_processes_are_known_while_it_runs(runtime: RuntimeBench) -> None:
    await runtime.run("s-a0")
    assert (await runtime.containers.status("s-a0")).pid in await runtime.containers.processes("s-a0")


# Removing ----------------------------------------------------------------------------------------------------------


async def test_removing_works_in_every_state_and_twice(runtime: RuntimeBench) -> None:
    await runtime.containers.create(runtime.plan("created-a0"))
    await runtime.run("running-a0")
    await runtime.run("stopped-a0", "exit 3")
    await ended(runtime, "stopped-a0")
    for container in ("created-a0", "running-a0", "stopped-a0", "absent-a0"):
        await runtime.containers.remove(container)
        await runtime.containers.remove(container)
        assert (await runtime.containers.status(container)).state == "absent"
        assert await runtime.containers.processes(container) == ()
    assert await runtime.containers.list() == ()


async def test_whoever_waits_for_a_container_that_is_removed_is_answered(runtime: RuntimeBench) -> None:
    await runtime.run("s-a0")
    waiting = asyncio.create_task(runtime.containers.wait("s-a0"))
    await asyncio.sleep(0.01)
    await runtime.containers.remove("s-a0")
    assert (await asyncio.wait_for(waiting, BOUND_S)).code in (137, None)


async def test_the_list_has_all_with_their_labels(runtime: RuntimeBench) -> None:
    await runtime.containers.create(runtime.plan("a-a0", labels={"slot": "a", "attempt": "0"}))
    await runtime.run("b-a1", "exit 3", labels={"slot": "b", "attempt": "1"})
    await ended(runtime, "b-a1")
    found = {one.id: (dict(one.labels), one.status.state, one.status.exit) for one in await runtime.containers.list()}
    assert found == {
        "a-a0": ({"slot": "a", "attempt": "0"}, "created", None),
        "b-a1": ({"slot": "b", "attempt": "1"}, "stopped", ExitStatus(3)),
    }


# A runtime that goes away ------------------------------------------------------------------------------------------


async def test_a_runtime_that_is_away_says_so(runtime: RuntimeBench) -> None:
    await runtime.containers.create(runtime.plan("s-a0"))
    await runtime.go_down()
    for ask in (runtime.containers.probe, runtime.containers.list):
        with pytest.raises(Unavailable):
            await ask()
    with pytest.raises(Unavailable):
        await runtime.containers.create(runtime.plan("t-a0"))
    with pytest.raises(Unavailable):
        await runtime.containers.status("s-a0")
    await runtime.come_back()


async def test_a_program_runs_on_without_its_runtime_and_is_waited_for_throughout(runtime: RuntimeBench) -> None:
    await runtime.run("s-a0")
    waiting = asyncio.create_task(runtime.containers.wait("s-a0"))
    pid = (await runtime.containers.status("s-a0")).pid
    await runtime.go_down()
    await asyncio.sleep(0.2)
    await runtime.come_back()
    assert not waiting.done()
    status = await runtime.containers.status("s-a0")
    assert (status.state, status.pid) == ("running", pid)
    await runtime.containers.kill("s-a0")
    assert await asyncio.wait_for(waiting, BOUND_S) == ExitStatus(137)


async def test_one_that_was_created_before_its_runtime_went_away_can_be_started(runtime: RuntimeBench) -> None:
    await runtime.containers.create(runtime.plan("s-a0", "echo hello; exit 3"))
    await runtime.go_down()
    await runtime.come_back()
    await runtime.containers.start("s-a0")
    assert await ended(runtime, "s-a0") == ExitStatus(3)
    await until(lambda: runtime.log("s-a0") == "hello\n")


# Exec --------------------------------------------------------------------------------------------------------------


async def test_an_exec_has_its_own_output_and_code(runtime: RuntimeBench) -> None:
    await runtime.run("s-a0")
    session = await runtime.containers.exec("s-a0", ("sh", "-c", "echo hello; exit 3"), False, False, 80, 24)
    try:
        assert await asyncio.wait_for(said(session), BOUND_S) == b"hello\n"
        assert await asyncio.wait_for(session.wait(), BOUND_S) == 3
    finally:
        await session.close()
    assert "hello" not in runtime.log("s-a0")


async def test_an_exec_reads_what_it_is_given_until_the_end(runtime: RuntimeBench) -> None:
    await runtime.run("s-a0")
    session = await runtime.containers.exec("s-a0", ("sh", "-c", "cat"), False, True, 80, 24)
    try:
        await session.write(b"one ")
        await session.write(b"two")
        await session.close_stdin()
        assert await asyncio.wait_for(said(session), BOUND_S) == b"one two"
        assert await asyncio.wait_for(session.wait(), BOUND_S) == 0
    finally:
        await session.close()


async def test_closing_an_exec_ends_it_and_nothing_else(runtime: RuntimeBench) -> None:
    await runtime.run("s-a0")
    session = await runtime.containers.exec("s-a0", ("sh", "-c", "sleep 1000"), False, False, 80, 24)
    await session.close()
    assert await asyncio.wait_for(session.wait(), BOUND_S) == 137
    assert (await runtime.containers.status("s-a0")).state == "running"


async def test_an_exec_needs_a_running_container(runtime: RuntimeBench) -> None:
    await runtime.containers.create(runtime.plan("s-a0"))
    for container in ("s-a0", "absent-a0"):
        with pytest.raises(NotFound, match=f"{container} is not running"):
            await runtime.containers.exec(container, ("true",), False, False, 80, 24)


async def test_an_exec_of_what_is_not_there_is_refused(runtime: RuntimeBench) -> None:
    await runtime.run("s-a0")
    with pytest.raises(InvalidRequest, match="/no/such"):
        await runtime.containers.exec("s-a0", ("/no/such",), False, False, 80, 24)
