"""Output that an engine listens to: nothing is lost while its reader is away, and no program waits for one."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from astra_agent.wire import LogFifos, StopRequest
from tests.agent.machine import BOUND_S, SLOT, Machine, a_machine, request, until

CONTAINER = f"{SLOT}-a0"


class Reader:
    """As Nomad's: opens a FIFO once and reads to the end, which is when nobody has it open for writing any more."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        self.text = b""
        self.ended = False
        self._had_writer = False

    def read(self) -> bytes:
        try:
            data = os.read(self._descriptor, 1 << 20)
        except BlockingIOError:
            self._had_writer = True
            return self.text
        if data:
            self._had_writer = True
            self.text += data
        elif self._had_writer:
            self.ended = True
        return self.text

    def close(self) -> None:
        os.close(self._descriptor)


@pytest.fixture
async def machine(tmp_path: Path) -> AsyncIterator[Machine]:
    async with a_machine(tmp_path, log_max_bytes=64 * 1024) as made:
        yield made
        if SLOT in {status.slot for status in made.agent.slots()}:
            made.agent.stop(SLOT, StopRequest(grace_s=0.0))
            await made.agent.wait(SLOT, BOUND_S)


@pytest.fixture
def fifos(tmp_path: Path) -> LogFifos:
    for name in ("out", "err"):
        os.mkfifo(tmp_path / name)
    return LogFifos(stdout=str(tmp_path / "out"), stderr=str(tmp_path / "err"))


async def run(machine: Machine, fifos: LogFifos, **changes: Any) -> None:
    wanted = request(starts="when_ready", command=("sh", "-c", "sleep 300"), fifos=fifos, **changes)
    machine.agent.put_slot(wanted)
    await until(lambda: machine.containers.starts[CONTAINER] == 1)


def say_error(machine: Machine, data: bytes) -> None:
    path = machine.containers.plan(CONTAINER).error_log_path
    assert path is not None
    with Path(path).open("ab") as file:
        file.write(data)


async def test_output_and_error_reach_their_readers_apart(machine: Machine, fifos: LogFifos) -> None:
    out, err = Reader(Path(fifos.stdout)), Reader(Path(fifos.stderr))
    await run(machine, fifos)
    machine.containers.write(CONTAINER, b"hello\n")
    say_error(machine, b"oops\n")
    await until(lambda: (out.read(), err.read()) == (b"hello\n", b"oops\n"))
    machine.containers.write(CONTAINER, b"last words\n")
    machine.containers.exit(CONTAINER, 0)
    await machine.agent.wait(SLOT, BOUND_S)
    out.read()
    await until(lambda: out.read() and out.ended)
    assert out.text == b"hello\nlast words\n"


async def test_a_reader_sees_no_end_while_the_agent_is_away(machine: Machine, fifos: LogFifos) -> None:
    out = Reader(Path(fifos.stdout))
    await run(machine, fifos)
    machine.containers.write(CONTAINER, b"one\n")
    await until(lambda: out.read() == b"one\n")
    await machine.crash()
    machine.containers.write(CONTAINER, b"two\n")
    assert out.read() == b"one\n" and not out.ended, "without a writer the engine would listen no more"
    machine.start()
    await until(lambda: out.read() == b"one\ntwo\n")


async def test_a_reader_that_comes_back_finds_all_that_was_said(machine: Machine, fifos: LogFifos) -> None:
    first = Reader(Path(fifos.stdout))
    await run(machine, fifos)
    machine.containers.write(CONTAINER, b"one\n")
    await until(lambda: first.read() == b"one\n")
    first.close()
    machine.containers.write(CONTAINER, b"two\n")
    await asyncio.sleep(0.3)
    second = Reader(Path(fifos.stdout))
    await until(lambda: second.read() == b"two\n")


async def test_what_is_not_kept_while_nobody_reads_is_marked_with_its_size(machine: Machine, fifos: LogFifos) -> None:
    out = Reader(Path(fifos.stdout))
    await run(machine, fifos)
    line = b"x" * 1023 + b"\n"
    written = 0
    async with asyncio.timeout(BOUND_S):
        for _ in range(40):
            for _ in range(16):
                machine.containers.write(CONTAINER, line)
                written += len(line)
            await asyncio.sleep(0.03)
    await until(lambda: out.read().endswith(line) and b"of output were dropped here" in out.text)
    assert len(out.text) < written


async def test_a_reader_that_reads_no_more_does_not_hold_up_the_end(machine: Machine, fifos: LogFifos) -> None:
    out = Reader(Path(fifos.stdout))
    await run(machine, fifos)
    machine.containers.write(CONTAINER, b"x" * 300_000)
    await asyncio.sleep(0.2)
    machine.containers.exit(CONTAINER, 0)
    stone = await machine.agent.wait(SLOT, BOUND_S)
    assert stone is not None and stone.code == 0
    out.close()


async def test_a_slot_that_fails_opens_its_fifos_as_well(machine: Machine, fifos: LogFifos) -> None:
    """Nomad's reader would wait four seconds for a writer."""
    out = Reader(Path(fifos.stdout))
    machine.images.hold()
    machine.agent.put_slot(request(starts="when_ready", image="nowhere", fifos=fifos))
    await until(lambda: out.read() == b"" and out._had_writer)
    machine.images.release()
    await machine.agent.wait(SLOT, BOUND_S)
    await until(lambda: out.read() == b"" and out.ended)


async def test_nobody_holds_them_once_the_slot_has_ended(machine: Machine, fifos: LogFifos) -> None:
    outs = [Reader(Path(fifo)) for fifo in (fifos.stdout, fifos.stderr)]
    await run(machine, fifos)
    await until(lambda: len(holders()) == 1)
    machine.containers.exit(CONTAINER, 0)
    await machine.agent.wait(SLOT, BOUND_S)
    assert holders() == []
    for out in outs:
        out.close()


async def test_an_agent_ends_what_holds_for_a_slot_that_it_does_not_know_and_no_other_agents(
    machine: Machine, fifos: LogFifos, tmp_path: Path
) -> None:
    """Its records are gone, as on a machine that was made anew; another agent on this machine has the same slot ID."""
    outs = [Reader(Path(fifo)) for fifo in (fifos.stdout, fifos.stderr)]
    await run(machine, fifos)
    await until(lambda: len(holders()) == 1)
    other = os.posix_spawn(  # noqa: ASYNC221 -- returns at once
        "/bin/sleep", ["/bin/sleep", "30"], {"ASTRA_HOLDS_FOR": SLOT, "ASTRA_STATE_DIR": str(tmp_path / "other")}
    )
    try:
        await machine.crash()
        (machine.config.state_dir / "records" / f"{SLOT}.json").unlink()
        machine.start()
        await until(lambda: holders() == [str(other)])
    finally:
        os.kill(other, 9)
        os.waitpid(other, 0)  # noqa: ASYNC222 -- it has been killed
        for out in outs:
            out.close()


def holders() -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            environment = path.read_bytes()
        except OSError:
            continue
        if f"ASTRA_HOLDS_FOR={SLOT}\0".encode() in environment:
            found.append(path.parent.name)
    return found
