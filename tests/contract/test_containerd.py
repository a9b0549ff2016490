"""What only the real runtime can get wrong: stops in all forms of a command, memory, interrupted creates, terminals."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from astra_agent.containerd import proc
from astra_agent.errors import AstraError, HostFault
from astra_agent.runtime import ExecSession, ExitStatus
from tests.contract.conftest import CGROUP_PARENT, ContainerdBench
from tests.fakes.eventually import until

pytestmark = pytest.mark.containers

BOUND_S = 40.0

SLOW_STOP = """\
import os, signal, subprocess, sys, time

def say(text):  # a handler may come in the middle of a print
    os.write(1, f"{text}\\n".encode())

def stop(signum, frame):
    say("stopping")
    time.sleep(0.7)
    say("checkpoint written")
    sys.exit(3)

signal.signal(signal.SIGTERM, stop)
subprocess.Popen(["sleep", "100000"], start_new_session=True)
subprocess.Popen(["sh", "-c", "sleep 100000 & exec true"])
say("ready")
while True:
    time.sleep(1)
"""
"""Needs SIGTERM and a while. Leaves a child in its own session and an orphan behind."""

WORKER_OF_A_LAUNCHER = """\
import os, signal, time
asked = 0

def stop(signum, frame):
    global asked
    asked += 1

signal.signal(signal.SIGTERM, stop)
os.write(1, b"ready\\n")
while not asked:
    time.sleep(0.01)
time.sleep(0.5)
os.write(1, f"worker was asked {asked} times\\n".encode())
"""

LAUNCHER = """\
import signal, sys, time
count = 0
def stop(signum, frame):
    global count
    count += 1
    print("worker asked", count, flush=True)
signal.signal(signal.SIGTERM, stop)
print("ready", flush=True)
while not count:
    time.sleep(0.01)
time.sleep(0.5)
print("worker ends after", count, flush=True)
"""

LAUNCHER = """\
import signal, subprocess, sys
worker = subprocess.Popen([sys.executable, sys.argv[1]])
def stop(signum, frame):
    worker.terminate()
signal.signal(signal.SIGTERM, stop)
sys.exit(10 + worker.wait())
"""
"""As torchrun: passes a stop on to its worker, once."""


@pytest.fixture
def bench(containerd_bench: ContainerdBench) -> ContainerdBench:
    return containerd_bench


@pytest.fixture
def scripts() -> Iterator[Path]:
    """A folder of programs that containers of the image `host` see: they see no /tmp that is in memory."""
    with TemporaryDirectory(prefix="astra-scripts-", dir="/var/tmp") as folder:
        yield write_scripts(Path(folder))


def write_scripts(folder: Path) -> Path:
    (folder / "slow_stop.py").write_text(SLOW_STOP)
    (folder / "launcher.py").write_text(LAUNCHER)
    (folder / "worker.py").write_text(WORKER_OF_A_LAUNCHER)
    slow = f"{sys.executable} {folder}/slow_stop.py"
    (folder / "jobs.sh").write_text(f"set -m\n{slow}\necho done\n")
    (folder / "trap.sh").write_text(f"trap 'echo tidied' EXIT\n{slow}\necho done\n")
    return folder


async def ended(bench: ContainerdBench, container: str) -> ExitStatus:
    return await asyncio.wait_for(bench.containers.wait(container), BOUND_S)


# Stops -------------------------------------------------------------------------------------------------------------

FORMS = {
    "an argument list": ("{python}", "{scripts}/slow_stop.py"),
    "a shell that goes on afterwards": ("bash", "-c", "{python} {scripts}/slow_stop.py; echo done"),
    "a shell that becomes the program": ("bash", "-c", "exec {python} {scripts}/slow_stop.py"),
    "a script with job control": ("bash", "{scripts}/jobs.sh"),
    "a script that tidies up at its end": ("bash", "{scripts}/trap.sh"),
    "a shell in a shell": ("sh", "-c", "bash {scripts}/jobs.sh; echo done"),
    "a pipeline": ("bash", "-c", "{python} {scripts}/slow_stop.py 2>&1 | cat | tee /tmp/log; echo done"),
    "a program in the background": ("bash", "-c", "{python} {scripts}/slow_stop.py & wait; echo done"),
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())
async def test_a_stop_lets_the_program_write_its_checkpoint(
    bench: ContainerdBench, scripts: Path, form: tuple[str, ...]
) -> None:
    args = tuple(part.format(python=sys.executable, scripts=scripts) for part in form)
    await bench.run("s-a0", args=args)
    await until(lambda: "ready" in bench.log("s-a0"))
    await bench.containers.terminate("s-a0")
    status = await ended(bench, "s-a0")
    # The last words reach the log some milliseconds after the exit is known.
    await until(lambda: "checkpoint written" in bench.log("s-a0"))
    log = bench.log("s-a0")
    assert log.count("stopping") == 1, "asked once"
    assert "done" not in log, "the shell does not go on"
    assert status == ExitStatus(3), "the code is the program's"
    assert await bench.containers.processes("s-a0") == ()


async def test_the_workers_of_a_launcher_are_asked_by_it_alone(bench: ContainerdBench, scripts: Path) -> None:
    command = f"{sys.executable} {scripts}/launcher.py {scripts}/worker.py; echo done"
    await bench.run("s-a0", args=("bash", "-c", command))
    await until(lambda: "ready" in bench.log("s-a0"))
    await bench.containers.terminate("s-a0")
    assert await ended(bench, "s-a0") == ExitStatus(10)
    await until(lambda: bench.log("s-a0") == "ready\nworker was asked 1 times\n")


async def test_a_stop_right_after_the_start_is_not_lost(bench: ContainerdBench) -> None:
    await bench.run("s-a0")
    await bench.containers.terminate("s-a0")
    assert await ended(bench, "s-a0") == ExitStatus(143)


async def test_a_stop_needs_no_containerd(bench: ContainerdBench) -> None:
    await bench.run("term-a0")
    await bench.run("kill-a0")
    await bench.go_down()
    await bench.containers.terminate("term-a0")
    await bench.containers.kill("kill-a0")
    await until(lambda: not bench.processes("term-a0") and not bench.processes("kill-a0"))
    await bench.come_back()
    assert (await ended(bench, "term-a0")).code in (143, None)
    assert (await ended(bench, "kill-a0")).code in (137, None)


async def test_a_program_that_ends_takes_all_others_of_its_container_along(bench: ContainerdBench) -> None:
    await bench.run("s-a0", "setsid sleep 1000 & setsid sleep 1000 & exit 4")
    assert await ended(bench, "s-a0") == ExitStatus(4)
    assert await bench.containers.processes("s-a0") == ()


async def test_orphans_do_not_stay_as_zombies(bench: ContainerdBench) -> None:
    await bench.run("s-a0", "for i in $(seq 50); do sh -c 'sleep 0.01 & exec true'; done; echo ready; exec sleep 1000")
    await until(lambda: "ready" in bench.log("s-a0"))

    def zombies() -> int:
        return sum(proc.status(pid).get("State", "").startswith("Z") for pid in bench.processes("s-a0"))

    await until(lambda: zombies() == 0)


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGHUP, signal.SIGINT])
async def test_a_program_that_a_signal_ends_says_128_and_its_number(
    bench: ContainerdBench, number: signal.Signals
) -> None:
    await bench.run("s-a0", f"kill -{number.value} $$")
    assert await ended(bench, "s-a0") == ExitStatus(128 + number)


async def test_a_signal_to_the_first_process_reaches_the_program(bench: ContainerdBench) -> None:
    await bench.run("s-a0", "trap 'echo got it; exit 5' USR1; echo ready; while :; do sleep 0.01; done")
    await until(lambda: "ready" in bench.log("s-a0"))
    os.kill((await bench.containers.status("s-a0")).pid, signal.SIGUSR1)
    assert await ended(bench, "s-a0") == ExitStatus(5)


async def test_a_command_that_is_not_there_says_so_in_the_log(bench: ContainerdBench) -> None:
    await bench.run("s-a0", args=("/no/such",))
    assert await ended(bench, "s-a0") == ExitStatus(127)
    await until(lambda: bench.log("s-a0") == "astra-init: /no/such: No such file or directory\n")


# Memory ------------------------------------------------------------------------------------------------------------


async def test_a_kill_for_want_of_memory_is_told_from_any_other(bench: ContainerdBench) -> None:
    hungry = "x = bytearray(256 * 1024 * 1024); print('survived')"
    await bench.run("s-a0", args=(sys.executable, "-c", hungry), memory_bytes=64 * 1024 * 1024)
    assert await ended(bench, "s-a0") == ExitStatus(137, oom=True)
    assert (await bench.containers.status("s-a0")).exit == ExitStatus(137, oom=True)


async def test_limits_reach_the_program(bench: ContainerdBench) -> None:
    await bench.run(
        "s-a0",
        "df -k --output=size /dev/shm | tail -1; ulimit -n; hostname; id -u",
        memory_bytes=512 * 1024 * 1024,
        cpu_cores=0.5,
        uid=1000,
        gid=1000,
    )
    assert await ended(bench, "s-a0") == ExitStatus(0)
    await until(lambda: len(bench.log("s-a0").split()) == 4)
    shm_kib, files, hostname, uid = bench.log("s-a0").split()
    assert int(shm_kib) == 256 * 1024
    assert int(files) > 4096
    assert (hostname, uid) == ("worker-0", "1000")


# containerd that ends in the middle --------------------------------------------------------------------------------


async def test_an_exit_that_nobody_saw_is_known_or_unknown_and_never_waited_for(bench: ContainerdBench) -> None:
    await bench.run("s-a0", "sleep 0.2; exit 3")
    waiting = asyncio.create_task(bench.containers.wait("s-a0"))
    await bench.go_down()
    await until(lambda: not bench.processes("s-a0"))
    await bench.come_back()
    assert (await asyncio.wait_for(waiting, BOUND_S)).code in (3, None)


@pytest.mark.parametrize("delay_s", [0.0, 0.01, 0.02, 0.03, 0.04, 0.06])
async def test_a_create_that_containerd_did_not_live_to_end_can_be_done_again(
    bench: ContainerdBench, delay_s: float
) -> None:
    creating = asyncio.create_task(bench.containers.create(bench.plan("s-a0", "exit 3")))
    await asyncio.sleep(delay_s)
    await bench.go_down()
    await asyncio.gather(creating, return_exceptions=True)
    await bench.come_back()
    try:
        await bench.containers.create(bench.plan("s-a0", "exit 3"))
    except AstraError:
        # What is left of the first may be in the way for some seconds: then it can be removed.
        await bench.containers.remove("s-a0")
        await bench.containers.create(bench.plan("s-a0", "exit 3"))
    await bench.containers.start("s-a0")
    assert await ended(bench, "s-a0") == ExitStatus(3)
    await bench.containers.remove("s-a0")
    assert proc.Cgroups.of_this_machine().directories(f"{CGROUP_PARENT}/s-a0") == []


@pytest.mark.parametrize("delay_s", [0.0, 0.001, 0.002, 0.004, 0.006, 0.008, 0.012])
async def test_a_start_that_containerd_did_not_live_to_answer_happens_once(
    bench: ContainerdBench, delay_s: float
) -> None:
    await bench.containers.create(bench.plan("s-a0", "echo hello; exec sleep 1000"))
    starting = asyncio.create_task(bench.containers.start("s-a0"))
    await asyncio.sleep(delay_s)
    await bench.go_down()
    await bench.come_back()
    await asyncio.wait_for(starting, BOUND_S)
    if (await bench.containers.status("s-a0")).state == "running":
        await until(lambda: "hello" in bench.log("s-a0"))
        assert bench.log("s-a0") == "hello\n"
    else:
        # Killed at the wrong moment, runc's own process breaks in the place of the program.
        assert (await ended(bench, "s-a0")).code != 0
        assert "hello" not in bench.log("s-a0")


async def test_a_container_is_removed_though_its_shim_was_killed(bench: ContainerdBench) -> None:
    await bench.run("s-a0")
    shim = int(proc.status((await bench.containers.status("s-a0")).pid)["PPid"])
    os.kill(shim, signal.SIGKILL)
    await ended(bench, "s-a0")
    await bench.containers.remove("s-a0")
    assert await bench.containers.processes("s-a0") == ()
    assert await bench.containers.list() == ()


async def test_a_container_whose_record_is_gone_is_removed_all_the_same(bench: ContainerdBench) -> None:
    await bench.run("s-a0")
    await bench.again()._tasks.delete_record("s-a0")
    assert [found.id for found in await bench.containers.list()] == ["s-a0"]
    await bench.containers.remove("s-a0")
    assert await bench.containers.processes("s-a0") == ()
    assert await bench.containers.list() == ()


async def test_an_agent_that_starts_again_finds_everything(bench: ContainerdBench) -> None:
    await bench.run("s-a0")
    again = bench.again()
    assert [(found.id, found.status.state) for found in await again.list()] == [("s-a0", "running")]
    await again.start("s-a0")
    await again.kill("s-a0")
    assert await asyncio.wait_for(again.wait("s-a0"), BOUND_S) == ExitStatus(137)


# What can't be made ------------------------------------------------------------------------------------------------


async def test_what_runc_refuses_is_said_in_its_last_words_and_can_be_removed(bench: ContainerdBench) -> None:
    with pytest.raises(HostFault, match=r"^s-a0 can't be created: .*/no/such/netns"):
        await bench.containers.create(bench.plan("s-a0", netns="/no/such/netns"))
    await bench.containers.remove("s-a0")
    assert await bench.containers.list() == ()


# Exec --------------------------------------------------------------------------------------------------------------


async def read_until(session: ExecSession, text: bytes) -> bytes:
    got = b""
    async for _, piece in session.output():
        got += piece
        if text in got:
            break
    return got


async def test_an_exec_keeps_output_and_errors_apart(bench: ContainerdBench) -> None:
    await bench.run("s-a0")
    session = await bench.containers.exec("s-a0", ("sh", "-c", "echo out; echo err >&2"), False, False, 80, 24)
    got = {1: b"", 2: b""}
    async for number, piece in session.output():
        got[number] += piece
    await session.close()
    assert got == {1: b"out\n", 2: b"err\n"}


async def test_a_terminal_has_its_size_from_the_first_moment_and_can_be_resized(bench: ContainerdBench) -> None:
    await bench.run("s-a0")
    script = "stty size; trap 'stty size' WINCH; echo ready; while read -r line; do echo got $line; done; exit 6"
    session = await bench.containers.exec("s-a0", ("bash", "-c", script), True, True, 101, 33)
    try:
        assert (await asyncio.wait_for(read_until(session, b"ready"), BOUND_S)).startswith(b"33 101\r\n")
        await session.resize(90, 20)
        await session.write(b"hello\n")
        assert b"20 90\r\n" in await asyncio.wait_for(read_until(session, b"got hello"), BOUND_S)
        await session.close_stdin()
        assert await asyncio.wait_for(session.wait(), BOUND_S) == 6
    finally:
        await session.close()


async def test_much_output_of_an_exec_arrives_whole(bench: ContainerdBench) -> None:
    await bench.run("s-a0")
    session = await bench.containers.exec("s-a0", ("head", "-c", "5000000", "/dev/zero"), False, False, 80, 24)
    length = 0
    async for _, piece in session.output():
        length += len(piece)
    await session.close()
    assert length == 5_000_000


async def test_much_input_of_an_exec_arrives_whole(bench: ContainerdBench) -> None:
    await bench.run("s-a0")
    session = await bench.containers.exec("s-a0", ("wc", "-c"), False, True, 80, 24)
    for _ in range(50):
        await asyncio.wait_for(session.write(bytes(100_000)), BOUND_S)
    await session.close_stdin()
    assert (await asyncio.wait_for(read_until(session, b"\n"), BOUND_S)).strip() == b"5000000"
    await session.close()


async def test_closing_an_exec_ends_its_children_as_well(bench: ContainerdBench) -> None:
    await bench.run("s-a0", "echo ready; exec sleep 1000")
    await until(lambda: "ready" in bench.log("s-a0"))
    before = bench.processes("s-a0")
    session = await bench.containers.exec(
        "s-a0", ("sh", "-c", "sleep 2000 & sleep 2000 & echo ready; wait"), False, False, 80, 24
    )
    await asyncio.wait_for(read_until(session, b"ready"), BOUND_S)
    await session.close()
    await until(lambda: bench.processes("s-a0") == before)
    assert list((bench.folder / "agent" / "exec").glob("*/*")) == []


async def test_an_exec_that_nobody_listens_to_does_not_keep_the_container(bench: ContainerdBench) -> None:
    await bench.run("s-a0")
    session = await bench.containers.exec("s-a0", ("head", "-c", "5000000", "/dev/zero"), False, False, 80, 24)
    await bench.containers.remove("s-a0")
    assert await asyncio.wait_for(session.wait(), BOUND_S) == 137
    await session.close()
