"""The agent's own process on a real containerd: attempts, crashes, networks."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from astra_agent.wire import Arm, Directive, ExecExit, ExecRequest, FactsChanged, Finish, LogsRequest, Start, Stop
from tests.agent.machine import until
from tests.containers.agent_daemon import ADDRESS, AgentDaemon
from tests.containers.images import Image
from tests.runs_over_http import held

SLOT = "llama-0"
STOP_S = 5.0
"""In which an agent that is told to end has ended by itself: the unit waits for it a little longer."""


def arm(number: int = 0, slot: str = SLOT, hosts: dict[str, str] | None = None) -> Arm:
    return Arm(slot=slot, term=1, attempt=number, env={"RANK": str(number)}, hosts=hosts or {})


def start(number: int = 0, slot: str = SLOT) -> Start:
    return Start(slot=slot, term=1, attempt=number)


def stop(number: int = 0, grace_s: float = 10.0, slot: str = SLOT) -> Stop:
    return Stop(slot=slot, term=1, attempt=number, grace_s=grace_s)


@pytest.fixture
async def daemon(tmp_path: Path) -> AsyncIterator[AgentDaemon]:
    made = AgentDaemon(tmp_path)
    try:
        await made.start()
        yield made
    finally:
        await made.clean()


@pytest.fixture
async def own(tmp_path: Path) -> AsyncIterator[AgentDaemon]:
    made = AgentDaemon(tmp_path, "own")
    try:
        await made.start()
        yield made
    finally:
        await made.clean()


async def run(daemon: AgentDaemon, number: int = 0, slot: str = SLOT, hosts: dict[str, str] | None = None) -> None:
    await daemon.coordinator.tell(arm(number, slot, hosts))
    await daemon.attempt(slot, number, "armed")
    await daemon.coordinator.tell(start(number, slot))


async def test_an_attempt_is_armed_started_and_its_exit_told(daemon: AgentDaemon) -> None:
    ready = await daemon.ready(SLOT, "echo rank $RANK on $(hostname); exit 3")
    assert (ready.phase, ready.address) == ("ready", ADDRESS), ready.detail
    await daemon.coordinator.tell(arm())
    await daemon.attempt(SLOT, 0, "armed")
    assert daemon.log(SLOT) == ""
    await daemon.coordinator.tell(start())
    assert (await daemon.attempt(SLOT, 0, "exited")).code == 3
    assert daemon.log(SLOT) == "rank 0 on llama-0\n"


async def test_the_next_attempt_takes_over_in_place(daemon: AgentDaemon) -> None:
    """In a file system of its own, too: what the one before has left is not there."""
    await daemon.ready(SLOT, "[ ! -e /left ] || echo dirty; touch /left && echo attempt $RANK; sleep 1000")
    await run(daemon)
    await until_log(daemon, "attempt 0")
    await daemon.coordinator.tell(arm(1))
    await daemon.attempt(SLOT, 1, "armed")
    assert daemon.pids(SLOT, 0)
    await daemon.coordinator.tell(stop(0))
    assert (await daemon.attempt(SLOT, 0, "exited")).code == 143
    assert not daemon.pids(SLOT, 0)
    await daemon.coordinator.tell(start(1))
    await until(lambda: "attempt 1" in daemon.log(SLOT, 1))
    await daemon.coordinator.tell(Finish(slot=SLOT, term=1, code=0))
    await gone(daemon)
    assert (daemon.log(SLOT, 0), daemon.log(SLOT, 1)) == ("attempt 0\n", "attempt 1\n")


async def test_a_command_that_is_not_there_is_found_before_the_barrier(daemon: AgentDaemon) -> None:
    status = await daemon.ready(SLOT, "", command=("/no/such/program",))
    assert (status.phase, status.fault) == ("failed", "user")
    assert "/no/such/program" in status.detail


async def test_out_of_memory_is_told_apart(daemon: AgentDaemon) -> None:
    await daemon.ready(SLOT, "head -c 200M /dev/zero | tail", memory_bytes=64 * 1024**2)
    await run(daemon)
    seen = await daemon.attempt(SLOT, 0, "exited")
    assert (seen.oom, seen.detail) == (True, "Out of memory (limit 64 MiB)")


@pytest.mark.parametrize("later_s", [0.0, 0.01, 0.05])
async def test_killing_the_agent_at_any_point_loses_nothing_and_starts_nothing_twice(
    daemon: AgentDaemon, later_s: float
) -> None:
    async def tell_and_kill(directive: Directive) -> None:
        """As a coordinator would: what is not known to be done is told again."""
        await daemon.coordinator.tell(directive)
        await asyncio.sleep(later_s)
        await restart(daemon)
        await daemon.coordinator.tell(directive)

    await daemon.put(SLOT, "echo begun; sleep 1000")
    await asyncio.sleep(later_s)
    await restart(daemon)
    await daemon.seen(SLOT, lambda status: status.phase == "ready")
    await tell_and_kill(arm())
    await daemon.attempt(SLOT, 0, "armed")
    await tell_and_kill(start())
    await daemon.attempt(SLOT, 0, "running")
    (first, *_) = daemon.pids(SLOT)
    await tell_and_kill(stop())
    await daemon.attempt(SLOT, 0, "exited")
    assert not Path(f"/proc/{first}").exists()
    await tell_and_kill(Finish(slot=SLOT, term=1, code=0))
    await gone(daemon)
    assert daemon.log(SLOT) == "begun\n"


async def test_a_code_that_falls_while_the_agent_is_dead_is_told(daemon: AgentDaemon) -> None:
    await daemon.ready(SLOT, "trap 'exit 7' TERM; echo begun; while true; do sleep 0.1; done")
    await run(daemon)
    await daemon.attempt(SLOT, 0, "running")
    await until_log(daemon, "begun")
    daemon.kill_agent()
    for pid in daemon.pids(SLOT):
        if (Path(f"/proc/{pid}") / "comm").read_text().strip() in ("sh", "dash"):
            os.kill(int(pid), signal.SIGTERM)
    await asyncio.sleep(0.5)
    await daemon.start_agent()
    assert (await daemon.attempt(SLOT, 0, "exited")).code == 7


async def test_a_killed_containerd_comes_back_and_everything_goes_on(daemon: AgentDaemon) -> None:
    await daemon.ready(SLOT, "echo attempt $RANK; sleep 1000")
    await run(daemon)
    await daemon.attempt(SLOT, 0, "running")
    daemon.containerd.kill()
    await daemon.coordinator.tell(arm(1))
    await daemon.seen(SLOT, lambda status: "containerd on gpu-1 does not answer" in status.attempts[-1].detail)
    await daemon.containerd.start()
    await daemon.attempt(SLOT, 1, "armed")
    assert daemon.pids(SLOT, 0)
    await daemon.coordinator.tell(stop(0))
    await daemon.attempt(SLOT, 0, "exited")
    await daemon.coordinator.tell(start(1))
    await daemon.attempt(SLOT, 1, "running")


@pytest.mark.parametrize("hangs", [False, True], ids=["containerd answers", "containerd hangs"])
async def test_sigterm_ends_the_agent_in_time_and_no_container(daemon: AgentDaemon, hangs: bool) -> None:
    """Also in the middle of everything: an arming, a log that is followed, a program beside the worker."""
    await daemon.ready(SLOT, "echo begun; sleep 1000")
    await run(daemon)
    await daemon.attempt(SLOT, 0, "running")
    before = daemon.pids(SLOT)
    await daemon.coordinator.open_stream("l1", LogsRequest(slot=SLOT, follow=True))
    await daemon.coordinator.open_stream("e1", ExecRequest(slot=SLOT, command=("sleep", "1000")))
    with held(daemon.containerd.pid) if hangs else contextlib.nullcontext():
        if hangs:
            await daemon.coordinator.tell(arm(1))
            await daemon.put("llama-1", "sleep 1000")
            await asyncio.sleep(1)
        began_s = time.monotonic()
        assert daemon.end_agent() == 0
        took_s = time.monotonic() - began_s
    assert took_s < STOP_S, f"it took {took_s:.1f} s"
    assert set(before) <= set(daemon.pids(SLOT))
    assert not daemon.socket.exists()


async def test_a_log_is_followed_and_a_program_run_beside_the_worker(daemon: AgentDaemon) -> None:
    await daemon.ready(SLOT, "echo begun; sleep 1000")
    await run(daemon)
    await daemon.attempt(SLOT, 0, "running")
    wanted = ExecRequest(slot=SLOT, command=("sh", "-c", "echo beside $(hostname); exit 5"))
    connection = await daemon.coordinator.open_stream("e1", wanted)
    assert (await connection.receive()).data == b"\x01beside llama-0\n"
    assert ExecExit.model_validate_json((await connection.receive()).data).code == 5
    connection = await daemon.coordinator.open_stream("l1", LogsRequest(slot=SLOT, follow=True))
    assert (await connection.receive()).data == b"begun\n"


LISTEN = "import socket; s = socket.create_server(('', 29500)); c, _ = s.accept(); c.sendall(b'hello')"
CONNECT = "import socket; c = socket.create_connection(('llama-9', 29500), 5); print(c.recv(9), c.getsockname()[0])"


async def test_slots_with_addresses_of_their_own_reach_each_other_by_name(own: AgentDaemon) -> None:
    python = str(Path(sys.executable).resolve())
    listens = await own.ready("llama-0", "", command=(python, "-c", LISTEN))
    asks = await own.ready("llama-1", f'cat /sys/class/net/eth0/mtu; exec {python} -c "{CONNECT}"')
    assert (listens.address, asks.address) == ("10.83.3.1", "10.83.3.2")
    assert listens.port != asks.port
    await run(own, slot="llama-0")
    await own.attempt("llama-0", 0, "running")
    await run(own, slot="llama-1", hosts={"llama-9": "10.83.3.1"})
    assert (await own.attempt("llama-1", 0, "exited")).code == 0, own.log("llama-1")
    assert own.log("llama-1") == "1400\nb'hello' 10.83.3.2\n"


@pytest.mark.parametrize("network", ["host", "own"])
@pytest.mark.parametrize("image", ["host", "archive"])
async def test_a_worker_finds_itself_where_its_peers_do(tmp_path: Path, network: str, image: str) -> None:
    archive = tmp_path / "image.tar"
    programs = ("/bin/sh", "/bin/hostname", "/usr/bin/getent")
    Image().with_programs(*programs).write_oci_archive(archive)
    daemon = AgentDaemon(tmp_path, "own" if network == "own" else "host")
    try:
        await daemon.start()
        reference = "host" if image == "host" else f"oci-archive:{archive}"
        ready = await daemon.ready(SLOT, "getent ahostsv4 $(hostname)", image=reference)
        assert ready.phase == "ready", ready.detail
        await run(daemon)
        assert (await daemon.attempt(SLOT, 0, "exited")).code == 0, daemon.log(SLOT)
        found = {line.split()[0] for line in daemon.log(SLOT).splitlines()}
        assert found == {ready.address}
    finally:
        await daemon.clean()


async def restart(daemon: AgentDaemon) -> None:
    daemon.kill_agent()
    await daemon.start_agent()


async def gone(daemon: AgentDaemon, slot: str = SLOT) -> None:
    await until(lambda: not (daemon.folder / "state" / "records" / f"{slot}.json").exists())


async def until_log(daemon: AgentDaemon, text: str) -> None:
    await until(lambda: text in daemon.log(SLOT))


async def test_a_worker_that_does_not_die_puts_the_machine_out_of_use_and_back(tmp_path: Path) -> None:
    daemon = AgentDaemon(tmp_path, stuck_after_s=0.5)
    try:
        await daemon.start()
        await daemon.ready(SLOT, "sleep 1000")
        await run(daemon)
        await daemon.attempt(SLOT, 0, "running")
        with frozen(daemon):
            pids = daemon.pids(SLOT)
            await daemon.coordinator.tell(stop(grace_s=0))
            status = await daemon.seen(SLOT, lambda status: status.stuck)
            assert status.stuck in [f"process {pid} of {SLOT} does not die (its cgroup is frozen)" for pid in pids]
            await until(lambda: daemon.coordinator.said(FactsChanged))
            assert daemon.coordinator.said(FactsChanged)[-1].facts.out_of_use == status.stuck
        assert (await daemon.attempt(SLOT, 0, "exited")).code == 137
        await daemon.seen(SLOT, lambda status: status.stuck is None)
        await until(lambda: daemon.coordinator.said(FactsChanged)[-1].facts.out_of_use is None)
    finally:
        await daemon.clean()


@contextlib.contextmanager
def frozen(daemon: AgentDaemon) -> Iterator[None]:
    """The worker's cgroup, on whichever version of cgroups the machine has."""
    name = f"{daemon.cgroup_parent}/{SLOT}-a0"
    old = Path(f"/sys/fs/cgroup/freezer{name}/freezer.state")
    path, freeze, thaw = (
        (old, "FROZEN", "THAWED") if old.exists() else (Path(f"/sys/fs/cgroup{name}/cgroup.freeze"), "1", "0")
    )
    path.write_text(freeze)
    try:
        yield
    finally:
        path.write_text(thaw)
